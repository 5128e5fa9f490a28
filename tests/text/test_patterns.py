"""Patterns that are compiled with their first use do what compiled ones do, and all of the package's own compile."""

import ast
import copy
import re
from pathlib import Path

import pytest

from diagnose.text.patterns import lazy_pattern

ROOT = Path(__file__).parents[2]


def written_patterns():
    """Yield each pattern that the package writes as a literal, and where."""
    for folder in ("diagnose", "analyzers", "reports"):
        for path in (ROOT / folder).rglob("*.py"):
            if any(parent.is_symlink() for parent in path.parents):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "lazy_pattern":
                    text = node.args[0]
                    if isinstance(text, ast.Constant):
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", text.value


def test_every_pattern_of_the_package_compiles():
    wrong, num = [], 0
    for place, text in written_patterns():
        num += 1
        try:
            re.compile(text)
        except re.error as error:
            wrong.append(f"{place}: {error}")
    assert wrong == []
    assert num > 150


def test_it_searches_as_a_compiled_one(monkeypatch):
    compiled = []
    monkeypatch.setattr(re, "compile", lambda *args, made=re.compile: compiled.append(args) or made(*args))
    pattern = lazy_pattern(r"(\d+) ms", re.IGNORECASE)
    assert compiled == []
    assert pattern.search("took 12 MS").group(1) == "12"
    assert pattern.sub(r"\1 s", "12 ms") == "12 s"
    assert (pattern.findall("1 ms, 2 Ms"), pattern.match("in 3 ms")) == (["1", "2"], None)
    assert compiled == [(r"(\d+) ms", re.IGNORECASE)]
    assert (pattern.pattern, pattern.flags) == (r"(\d+) ms", re.IGNORECASE)


def test_a_wrong_one_says_so_with_its_first_use():
    pattern = lazy_pattern("(")
    with pytest.raises(re.error):
        pattern.search("")


def test_a_copy_is_a_pattern_of_its_own():
    assert copy.deepcopy(lazy_pattern("b+")).search("abba").span() == (1, 3)
