"""The result as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from yardstick.scoring import Mark, wilson
from yardstick.sets import Set
from yardstick.tools import NOT_RUN, TOOLS

__all__ = ["first_answers", "numbered", "page", "table"]

MAX_MISSES = 6  # of a tool, listed by name
HEAD = (
    "| tool | answers | cause right | family right | line right | first change right | harmful | false alarms | "
    "stated less measured saving | time to answer |\n|---|---|---|---|---|---|---|---|---|---|"
)
INTRODUCTION = """# Who is right: the open yardstick

Made by `evaluation/run.py --write`. Each case is a program or a recording whose cause, lines and repair its author
fixed. Each tool answers in the form that its own documentation recommends, and only its first answer counts. Rules
compare it with the truth. What rules cannot compare is judged by a reader who does not see which tool answered
(`evaluation/judged.csv`).

- **cause right**: the answer names one cause, and it is the right one. **family right**: it names a family of causes
  that holds the right one. No answer counts as not right.
- **line right**: the place of the cause, or of the first change, is one of the true lines.
- **false alarms**: healthy cases with an answer. A dash: the tool's answers have no such part, or no case has a truth
  about it.
- **without the cases that led to its rules**: [`led.json`](../led.json) names the cases that led to each rule and limit
  of diagnose, or changed it, as its history shows. Sets that it was corrected with as a whole count under the rule
  that their author names. A case of another set counts under the rules that a commit changed because of its answer.
  The row leaves out a case that led to the rule that answers, to one that is right for the case, or to a limit. No
  simulated case is left out, since no commit names one; a gate in CI answers the same 60.
- Intervals are Wilson's for 95%. Answers that no reader has judged yet are left out of a share; "open" counts them.
"""


def numbered(thing: str, num: int) -> str:
    """Return "1 case" or "2 cases"."""
    return f"{num} {thing}" if num == 1 else f"{num} {thing}s"


def table(marks: Sequence[Mark]) -> list[str]:
    """Return a row for each tool, and one without the cases that led to its rules."""
    rows = [HEAD]
    for name in dict.fromkeys(mark.tool for mark in marks):
        mine = [mark for mark in marks if mark.tool == name]
        rows.append(_row(name, mine))
        if TOOLS[name].led.rules:
            rest = [mark for mark in mine if not mark.is_led]
            rows.append(_row(f"{name}, without the cases that led to its rules", rest))
    return rows


def _row(name: str, marks: list[Mark]) -> str:
    wasteful = [mark for mark in marks if not mark.truth.healthy]
    healthy = [mark for mark in marks if mark.truth.healthy]
    answered = sum(not mark.failed for mark in marks)
    harmful = sum(mark.change == "harmful" for mark in wasteful)
    judged = [mark for mark in wasteful if mark.change not in ("", "open")]
    errors = [mark.error for mark in marks if mark.error is not None]
    cells = (
        name,
        f"{answered} of {len(marks)}",
        _share(wasteful, lambda mark: mark.cause, ("right",)),
        _share(wasteful, lambda mark: mark.cause, ("fair",)),
        _share(wasteful, lambda mark: mark.line, ("right",)),
        _share(wasteful, lambda mark: mark.change, ("right",)),
        f"{harmful}" if judged else "–",
        _share([mark for mark in healthy if not mark.failed], lambda mark: mark.cause, ("false",)),
        f"{100 * median(errors):+.0f} points in the median of {len(errors)}" if errors else "–",
        f"{median(mark.seconds for mark in marks if not mark.failed):.1f} s" if answered else "–",
    )
    return "| " + " | ".join(cells) + " |"


def _share(marks: Iterable[Mark], part: Callable[[Mark], str], wanted: tuple[str, ...]) -> str:
    words = [word for mark in marks if (word := part(mark))]
    closed = [word for word in words if word != "open"]
    waiting = f", {len(words) - len(closed)} open" if len(closed) < len(words) else ""
    if not closed:
        return f"–{waiting}"
    hits = sum(word in wanted for word in closed)
    low, high = wilson(hits, len(closed))
    return f"{hits} of {len(closed)} ({100 * low:.0f}–{100 * high:.0f}%){waiting}"


def first_answers(entries: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Return what was answered first about sets that nobody had tuned on, as their readers judged it; by set."""
    lines = [
        "| set | with a waste | cause right | fair | line right | first change right | harmful | healthy, silent |\n"
        "|---|---|---|---|---|---|---|---|"
    ]
    total: list[tuple[bool, str, str, str]] = []
    for name, listed in entries.items():
        rows = [_judged(entry) for entry in listed.values()]
        lines.append(_first_row(name, rows))
        total += rows
    return [*lines, _first_row("all", total)]


def _judged(entry: Mapping[str, Any]) -> tuple[bool, str, str, str]:
    """Return whether the case is healthy, and how cause, line and change were judged; files differ in their words."""
    given = entry["first_answer"]
    line = given["line"] if isinstance(given["line"], str) else "right" if given["line"] in entry["lines"] else "other"
    silent = not given["cause"] if "cause_is" in given else given["cause"] == "silent"
    cause = ("silent" if silent else "false") if entry["healthy"] else given.get("cause_is", given["cause"])
    return entry["healthy"], cause, line, given.get("change_is", given["change"])


def _first_row(name: str, rows: Sequence[tuple[bool, str, str, str]]) -> str:
    wasteful = [row for row in rows if not row[0]]
    healthy = [row for row in rows if row[0]]

    def share(place: int, word: str, among: Sequence[tuple[bool, str, str, str]]) -> str:
        hits = sum(row[place] == word for row in among)
        low, high = wilson(hits, len(among))
        return f"{hits} ({100 * low:.0f}–{100 * high:.0f}%)"

    harmful = sum(row[3] == "harmful" for row in wasteful)
    cells = [
        name,
        str(len(wasteful)),
        *(share(place, word, wasteful) for place, word in ((1, "right"), (1, "fair"), (2, "right"), (3, "right"))),
        str(harmful),
        f"{sum(row[1] == 'silent' for row in healthy)} of {len(healthy)}",
    ]
    return "| " + " | ".join(cells) + " |"


def page(
    marks: Sequence[Mark], sets: Sequence[Set], firsts: Mapping[str, Mapping[str, Mapping[str, Any]]], slices: str
) -> str:
    """Return the whole page."""
    lines = [INTRODUCTION, "## First answers of diagnose\n"]
    lines += [
        "Sets of authors who knew no tool, answered once before anything was corrected with them. A reader who had",
        "seen neither code nor rules judged the answers. From then on each set is development data.\n",
        *first_answers(firsts),
        "",
        "## Side by side, development data\n",
        slices,
        "diagnose was developed with these cases in view, the other tools were not: its shares here are no score. The",
        "bundled recordings are cut to a few steps and have no annotations of the GPU, which gpu-idle and TraceLens",
        "use. Times are of two cores that others used as well. The hashes of sets that were open before 2026-11-28",
        "were written on that day.\n",
    ]
    for kind in ("recording", "script"):
        mine = [mark for mark in marks if mark.case.kind == kind]
        if mine:
            num = len({mark.case.id for mark in mine})
            healthy = len({mark.case.id for mark in mine if mark.truth.healthy})
            lines += [f"### {numbered(kind, num)}, {healthy} of them healthy\n", *table(mine), ""]
    lines += ["## Worst misses\n", *_misses(marks), "", "## Cases not answered\n", *_unanswered(marks), ""]
    lines += ["## Sets\n", *_sets(sets), "", "## Tools\n", *_tools(marks), "", HOW_TO_ADD]
    return "\n".join(lines)


def _misses(marks: Sequence[Mark]) -> list[str]:
    """Return the wrong causes and false alarms of each tool, those with the largest measured saving first."""
    lines = []
    for name in dict.fromkeys(mark.tool for mark in marks):
        missed = [mark for mark in marks if mark.tool == name and mark.cause in ("wrong", "missed", "false")]
        missed.sort(key=lambda mark: -(mark.truth.saved or 0.0))
        lines += [f"- {name}: {mark.case.id}, {_truth(mark)}; answered: {_said(mark)}" for mark in missed[:MAX_MISSES]]
        if len(missed) > MAX_MISSES:
            lines.append(f"- {name}: {len(missed) - MAX_MISSES} more")
    return lines or ["- none"]


def _truth(mark: Mark) -> str:
    saved = f" ({100 * mark.truth.saved:.0f}% of the step)" if mark.truth.saved else ""
    return "healthy" if mark.truth.healthy else f"{_short(mark.truth.cause)}{saved}"


def _said(mark: Mark) -> str:
    return _short(mark.answer.cause) or "nothing"


def _short(text: str) -> str:
    first = " ".join(text.split()).replace("|", "/")
    return first if len(first) <= 110 else f"{first[:107].rsplit(' ', 1)[0]} …"


def _unanswered(marks: Sequence[Mark]) -> list[str]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for mark in marks:
        if mark.failed:
            reasons.setdefault((mark.tool, _short(mark.failed)), []).append(mark.case.id)
    return [f"- {tool}: {', '.join(ids)}: {reason}" for (tool, reason), ids in reasons.items()] or ["- none"]


def _sets(sets: Sequence[Set]) -> list[str]:
    rows = ["| set | cases | what | author knew no tool | machine | licence | part |\n|---|---|---|---|---|---|---|"]
    for each in sets:
        part = f"development, opened {each.opened}" if each.opened else "sealed"
        able = sum(not case.missing for case in each.cases)
        num = f"{able} of {len(each.cases)}" if able < len(each.cases) else str(able)
        blind = "yes" if each.is_blind else "no"
        rows.append(
            f"| {each.name} | {num if each.cases else each.absent} | {each.title}, {each.author} | {blind} | "
            f"{each.machine} | {each.licence} | {part} |"
        )
    for part in ("development", "sealed"):
        total = sum(len(each.cases) for each in sets if each.part == part)
        rows.append(f"| all, {part} | {total} | | | | | |")
    return rows


def _tools(marks: Sequence[Mark]) -> list[str]:
    rows = ["| tool | packages | form of its use |\n|---|---|---|"]
    for name in dict.fromkeys(mark.tool for mark in marks):
        tool = TOOLS[name]
        packages = ", ".join((*filter(None, (tool.without_dependencies,)), *tool.requirements)) or "this repository"
        rows.append(f"| {name} | {packages} | {tool.form} |")
    return [*rows, "", "Not run:", "", *(f"- {name}: {reason}." for name, reason in NOT_RUN.items())]


HOW_TO_ADD = """## Add a case

Put scripts or recordings into a folder with a `truth.json` like that of [`blind`](../blind/truth.json). It has for
each the cause in plain words, the lines, the repair, what else is fine, what harms, and the share of the step that the
repair saved; or that the case is healthy. Fix these before any tool runs. Enter the folder in
[`manifest.json`](../manifest.json) with an empty `opened`: the set is sealed. `evaluation/run.py --fix SET` writes the
hashes once, and `--seal SET` packs the truth into `truth.sealed`, so that no reader meets it by accident.
`--part sealed --keep FOLDER` lets the tools answer without reading the truth. `--open DATE --keep FOLDER` scores these
answers, unpacks the truth, and writes the first answer of diagnose into each entry. From then on the set is development
data. Its first answers are on this page once a reader has judged in `judged.csv` what rules cannot.

## Add a tool

Write one file in `evaluation/yardstick/tools` with a [`Tool`](../yardstick/tools/tool.py): pinned packages, the form of
its use, `ask`, which returns what the tool printed, and `read`, which turns that into an `Answer`. Enter it in `TOOLS`.
`evaluation/run.py --install --tool NAME` makes its environment.
"""
