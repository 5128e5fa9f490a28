"""Words of which a pattern needs one: none is missed, and names without them are not searched."""

import gzip
import json
import pkgutil
import re
from importlib import import_module
from pathlib import Path

import pytest

import diagnose.analyzers
import diagnose.tables
from diagnose.tables.names import AnyCase, words_of
from diagnose.text.needed_words import ANY, needed_words


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("fmha|flash_attn", ("fmha", "flash_attn")),
        ("soft_?max", ("soft",)),
        ("soft?max", ("sof",)),
        ("radix_?sort|merge_?sort", ("radix", "merge")),
        (r"flash_(fwd|bwd)_kernel", ("_kernel",)),
        (r"(fwd|bwd)", ANY),
        (r"gemm|(fwd|bwd)", ANY),  # one alternative without a word: all are searched
        (r"\bmla_|gemm", ("mla_", "gemm")),
        (r"aten::mm\.out", ("aten::mm.out",)),
        (r"aten.mm|x\w*gather", ("aten", "gather")),
        (r"[wd]grad[|)]*", ("grad",)),
        (r"[]|]grad", ("grad",)),
        (r"[^]|]grad", ("grad",)),
        (r"(a\)|[)])grad", ("grad",)),
        (r"splits{2,}k|splits{0}k_", ("split",)),
        (r"ab+cdef", ("cdef",)),
        (r"gemm|gemm", ("gemm",)),
        ("ab|gemm", ANY),
        ("", ANY),
        ("gemm|", ANY),
    ],
)
def test_the_longest_plain_text_of_each_alternative(pattern, words):
    assert needed_words(pattern) == words


def test_a_pattern_that_ignores_case_needs_no_word_as_it_is_written():
    assert words_of(re.compile("gemm")) == ("gemm",)
    assert words_of(re.compile("gemm", re.IGNORECASE)) == ANY
    assert words_of(re.compile("ge mm", re.VERBOSE)) == ANY
    assert words_of(AnyCase("gemm")) == ANY


def test_what_ignores_case_is_found_in_any_case():
    pattern = AnyCase("radix_?sort|direct_copy")
    assert pattern.search("void RadixSort<4>")
    assert pattern.search("DIRECT_COPY_KERNEL")
    assert not pattern.search("radix_direct")
    assert AnyCase("^(?=.*all).*kernel", ("all",)).search("AllKernel")
    assert not AnyCase("^(?=.*all).*kernel", ("every",)).search("AllKernel")  # the words that it was given


@pytest.fixture(scope="module")
def recorded_names():
    """Return the names of events in the recorded traces of the fixtures."""
    folder = Path(__file__).parents[2] / "fixtures" / "traces"
    found = set()
    for path in sorted(folder.glob("*/*.light.pt.trace.json.gz")):
        found.update(
            each.get("name", "")[:600] for each in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        )
    return sorted(found)


def patterns():
    """Yield the patterns of the modules that look at names, in tuples too."""
    for package in (diagnose.tables, diagnose.analyzers):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for value in vars(import_module(module.name)).values():
                each = value if isinstance(value, tuple) else [[value]]
                parts = [part for pair in each if isinstance(pair, list | tuple) for part in pair]
                yield from (part for part in parts if isinstance(part, AnyCase) or is_text(part))


def is_text(part):
    return isinstance(part, re.Pattern) and isinstance(part.pattern, str)


def test_no_name_of_the_recorded_traces_is_missed(recorded_names):
    """Whether a name holds a needed word is asked before a search: it finds whatever the search alone finds."""
    missed, searched = [], 0
    for pattern in set(patterns()):
        is_any_case = isinstance(pattern, AnyCase)
        search = pattern._pattern.search if is_any_case else pattern.search
        words = pattern._words if is_any_case else words_of(pattern)
        for name in recorded_names:
            text = name.lower() if is_any_case else name
            if not any(word in text for word in words):
                searched += 1
                missed += [(search, name)] if search(text) else []
    assert missed == []
    assert searched > 10_000  # what was saved
