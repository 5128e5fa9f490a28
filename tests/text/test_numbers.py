"""Words for numbers and for lists."""

import re
from pathlib import Path

import pytest

from diagnose.text.numbers import enumeration, growth, percent, upper_first

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("words", "text"), [(["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")])
def test_an_enumeration_has_one_and(words, text):
    assert enumeration(words) == text


def test_percentages_have_one_form():
    sources = (file for folder in ("analyzers", "diagnose", "reports") for file in (ROOT / folder).rglob("*.py"))
    own = (file for file in sources if "kernels" not in file.parts)  # remedies stand alone
    assert [file.name for file in own if re.search(r"\.\d%\}", file.read_text(encoding="utf-8"))] == []  # but percent()


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0 %"), (0.004, "<1 %"), (0.28, "28 %"), (0.996, ">99 %"), (1, "100 %"), (1.5, "150 %")]
)
def test_whole_percentages_never_round_to_nothing_or_to_all(share, text):
    assert percent(share, 0) == text


@pytest.mark.parametrize(("share", "text"), [(0.004, "<1 %"), (0.28, "28 %"), (0.996, "100 %"), (1.5, "150 %")])
def test_what_becomes_longer_has_no_whole_to_fall_short_of(share, text):
    assert growth(share, 0) == text


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ("collectives wait for other ranks", "Collectives wait for other ranks"),
        ("the host's code waits", "The host's code waits"),
        ("aten::_cudnn_attention_forward runs on the CPU", "aten::_cudnn_attention_forward runs on the CPU"),
        ("empty_cache() empties", "empty_cache() empties"),
    ],
)
def test_a_sentence_begins_with_a_capital_unless_it_begins_with_a_name_of_code(title, shown):
    assert upper_first(title) == shown
