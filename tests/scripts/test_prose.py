"""The prose check: which turns and sentences it counts, and that its exceptions only shrink."""

import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def prose(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.delitem(sys.modules, "prose", raising=False)
    import prose

    return prose


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        ("Where steps vary, more runs help.", "where for if or when"),
        ("It stands beside the loss.", "beside"),
        ("Frames behind the wait.", "behind"),
        ("A rank of its own.", "of its own"),
        ("They run in turns.", "in turns"),
        ("A utilization as NVML has it.", "as … has it"),
        ("A prediction is none.", "is none"),
        ("It takes 3 ms a step.", "a step for per step"),
        ("It is late at the begin.", "begin as a noun"),
        ("The report knows the line.", "code that speaks"),
        ("| `x` | nobody waits |", "nobody"),
    ],
)
def test_a_turn_is_counted(prose, text, turn):
    assert prose.count(text).turns[turn] == 1


@pytest.mark.parametrize(
    "text",
    [
        "The line where it waits.",
        "Where the step goes",
        "`where` has a file.",
        "    where(mask, a, b)",
        "```python\nx = where(mask)  # beside y\n```",
        "There is no queue.",
        "It is no longer slow.",
        "3 ms per step",
        "::: diagnose.Where",
    ],
)
def test_other_text_is_not(prose, text):
    assert not prose.count(text).turns


def test_sentences_are_those_of_paragraphs_and_items(prose):
    page = "# A heading\n\nOne two three. Four five\nsix.\n\n- seven eight\n- [nine](a.md) ten\n\n| a | table |\n"
    counts = prose.count(page)
    assert (counts.words, counts.sentences, counts.mean) == (10, 4, 2.5)
    assert prose.count(f"{'word ' * 26}.").long == [f"{'word ' * 26}."]


def test_what_exceeds_an_exception_is_named(prose):
    page = prose.count(f"Beside it. {'word ' * 26}end.")
    assert page.faults == {"turns": 1, "long": 1, "mean": 15}
    assert [line.partition(": ")[2].split(",")[0] for line in prose.exceeding("a.md", page, {"turns": 1})] == [
        "long 1",
        "mean 15",
    ]
    assert not list(prose.exceeding("a.md", page, {"turns": 1, "long": 2, "mean": 15}))


def test_exceptions_only_shrink(prose):
    assert prose.lowered({"turns": 5, "long": 2}, {"turns": 3, "mean": 20}) == {"turns": 3}
    assert prose.lowered({"turns": 2}, {"turns": 3}) == {"turns": 2}
