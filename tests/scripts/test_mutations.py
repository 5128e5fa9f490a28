"""The wrong lines of scripts/mutations can be planted in the sources as they are today, and have tests that apply."""

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("run", "cases", "further_lines", "kernel_lines")


@pytest.fixture
def mutations(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "mutation"))
    yield importlib.import_module("run")
    for name in MODULES:
        sys.modules.pop(name, None)


def test_the_text_of_every_line_stands_exactly_once_in_the_sources(mutations):
    texts = mutations.texts_of(ROOT)
    places = {case.old: mutations.place_of(texts, case) for case in mutations.CASES}
    assert {old: place for old, place in places.items() if isinstance(place, str)} == {}
    assert [case.old for case in mutations.CASES if case.old == case.new] == []


def test_a_text_that_is_gone_or_stands_twice_is_named(mutations):
    case = mutations.CASES[0]
    one, other = Path("one.py"), Path("other.py")
    assert mutations.place_of({one: "", other: f"x = {case.old}"}, case) == other
    assert mutations.place_of({one: ""}, case) == "found in no source, not exactly once"
    assert mutations.place_of({one: case.old * 2}, case) == "found in one.py, not exactly once"
    assert mutations.place_of({one: case.old, other: case.old}, case) == "found in one.py, other.py, not exactly once"


def test_every_pattern_names_tests(mutations):
    patterns = {pattern for case in mutations.CASES for pattern in case.tests}
    assert sorted(pattern for pattern in patterns if not mutations.tests_of(ROOT, [pattern])) == []


def test_the_page_counts_the_lines(mutations):
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    assert f"plants {len(mutations.CASES)} wrong lines" in page
    own = [case for case in mutations.CASES if not case.area.startswith("kernels")]
    areas = {area: sum(case.area == area for case in own) for area in dict.fromkeys(case.area for case in own)}
    rows = [f"| {area} | {num} | " for area, num in [*areas.items(), ("all", len(own))]]
    assert [row for row in rows if f"\n{row}" not in page] == []
