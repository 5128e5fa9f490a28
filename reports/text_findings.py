"""Findings for a terminal: each with its line, its change, and code that can be pasted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

from rich.console import RenderableType
from rich.text import Text

from diagnose.answer.cards import Prediction, trial_of
from diagnose.answer.screen import FindingRow, answer, finding_rows
from diagnose.model.diagnosis import Diagnosis, Example, Prescription, Where
from diagnose.reports.format import confidence, duration, place, plural, said
from diagnose.reports.language import tr, translated
from diagnose.reports.saving_words import gain, measured_words
from diagnose.reports.text_charts import listed, note, place_style, title
from diagnose.text.plain_text import clean, middle, one_line

MAX_ALSO = 4  # further changes of a finding, by id
COMMENTED = r"(?P<margin> *)(?P<code>(?:[^#+\- ].*?)?) *# +(?P<comment>.*)$"


class Layout(NamedTuple):
    """How a text is laid out."""

    width: int
    verbose: bool = False
    written: Sequence[Path] | None = None  # files that have whole diffs; None outside of a command


def findings(d: Diagnosis, layout: Layout) -> Iterator[RenderableType]:
    """Yield the first findings, and those of the cards, with ``verbose`` all; a line where there is none."""
    if not d.findings:
        if d.checked or d.not_checked:
            yield title(tr("What was checked"))
        yield from _checked(d)
        return
    a = answer(d)
    if a.record_again is None:
        yield title(tr("Findings"), tr("by what the step saves without each"))
    else:
        yield title(tr("Seen in this recording"))
    rows = finding_rows(d, a.each)
    of_cards = {card.finding for card in a.cards}  # their code is printed here
    noted = [row for row in rows if not (layout.verbose or row.finding.worth_ns or a.record_again)]
    rows = tuple(row for row in rows if row not in noted)
    shown = [row for row in rows if layout.verbose or row.number <= 5 or row.number in of_cards]
    for row in shown:
        yield listed(str(row.number), *_finding(row, d, a.each, layout))
    if len(rows) > len(shown):
        left = plural(len(rows) - len(shown), "smaller finding")
        yield Text("  " + tr("and {left}, which --verbose, JSON and HTML show", left=left), style="dim")
    if noted:
        names = ", ".join(dict.fromkeys(row.finding.rule for row in noted))
        yield note(tr("No saving known: {rules} (--verbose shows them)", rules=names))
    if d.dominant is None:
        yield from _checked(d)


def _checked(d: Diagnosis) -> Iterator[RenderableType]:
    """Yield what was looked for, where little or nothing was found."""
    if d.checked:
        yield note(tr("Checked: {rules}.", rules=", ".join(d.checked)))
    lacking: dict[str, list[str]] = {}
    for rule, missing in d.not_checked.items():
        lacking.setdefault(missing, []).append(rule)
    for missing, rules in lacking.items():
        what = ", ".join(map(translated, missing.split(", ")))
        yield note(tr("Not checked, for lack of {what}: {rules}.", what=what, rules=", ".join(rules)))


def _finding(row: FindingRow, d: Diagnosis, each: Mapping[str, Prediction], layout: Layout) -> Iterator[RenderableType]:
    finding, sure = row.finding, row.finding.confidence
    first = Text(finding.rule, "bold")
    if row.saves is not None:
        first = Text.assemble(first, "  ", (said(row.saves), "bold red" if finding.worth_ns else "dim"))
        first.append("" if sure == "high" else f", {confidence(sure)}", "yellow")
    yield first
    yield Text(one_line(finding.title))
    yield from _where(finding.where, layout.width)
    evidence = finding.evidence if layout.verbose else finding.evidence[: not finding.where]
    yield from (Text(one_line(sentence), style="dim") for sentence in evidence)
    yield from map(_example, finding.examples if layout.verbose else ())
    if row.fix is not None:
        name, gained = tr("fix") if finding.worth_ns else tr("try"), _gained(row.fix, d, each)
        yield Text.assemble((f"{name} ", "dim"), (one_line(row.fix.title), "green"), (gained and f"  {gained}", "dim"))
        # With the neighbours of each changed line: two calls of several arguments.
        most = 16 if row.fix.diff else 12
        yield from _details(row.fix, layout, code_lines(row.fix), most)
    if row.alternative is not None:
        name, gained = one_line(translated(row.alternative.title)), _gained(row.alternative, d, each)
        yield Text(tr("or  {title}  {gain}", title=name, gain=gained), style="dim")
        yield from _details(row.alternative, layout, code_lines(row.alternative, neighbours=0), 4)
    for p in row.refuted:
        words = f"{one_line(translated(p.title))}  {_gained(p, d, {})}"
        yield Text(tr("tried  {change}", change=words), style="dim")
    if row.also:
        ids = ", ".join(row.also[:MAX_ALSO])
        if len(row.also) > MAX_ALSO:
            ids = tr("{words} and {last}", words=ids, last=plural(len(row.also) - MAX_ALSO, "more change"))
        yield Text(tr("also possible: {changes}", changes=ids), style="dim")


def _gained(p: Prescription, d: Diagnosis, each: Mapping[str, Prediction]) -> str:
    """Return what a trial of the change measured, in words; without one what is predicted."""
    trial = trial_of(d, p.id)
    if trial is None:
        return gain(p, each)
    return one_line(measured_words(trial, alone=p.id in each and bool(each[p.id].behind)))


def _example(example: Example) -> Text:
    at = place(example.where, limit=40) or one_line(example.host)
    begin, lost = duration(example.start_ns), duration(example.lost_ns)
    when = tr("step {num} at {begin}: {lost}", num=example.step, begin=begin, lost=lost)
    return Text(f"{when}  {one_line(at)}", "dim")


def _where(places: tuple[Where, ...], width: int) -> Iterator[Text]:
    for first in places[:1]:
        more = "  " + tr("and {others}", others=plural(len(places) - 1, "more place")) if len(places) > 1 else ""
        if text := one_line(place(first, limit=width // 2)):
            yield Text.assemble((tr("at") + "  ", "dim"), (text, place_style(first)), (more, "dim"))
        if first.code:
            yield Text(f"    {middle(one_line(first.code), width - 12)}")


def _details(fix: Prescription, layout: Layout, lines: Sequence[str], most: int) -> Iterator[RenderableType]:
    """Yield what a change asks for and its first lines of code."""
    if fix.promise != "identical" or fix.safety not in ("", "same numbers", tr("same numbers")):
        yield from [note(one_line(fix.safety), "yellow", indent=4)] if fix.safety else []
    if fix.needs:
        yield note(tr("needs {what}", what=one_line(fix.needs)), indent=4)
    if fix.edits:
        edits = ", ".join(one_line(place(edit)) for edit in fix.edits)
        yield Text.assemble((f"    {tr('edit')} ", "dim"), (edits, "cyan"))
    yield from code_block(fix, lines, most, layout)


def code_block(fix: Prescription, lines: Sequence[str], most: int, layout: Layout) -> Iterator[Text]:
    """Yield the first ``most`` lines of code, each in parts that fit, how many are left, and where the whole diff is.

    A single line more is shown, as its number would take a line too.
    """
    most += len(lines) == most + 1
    for line in lines[:most]:
        yield from (Text.assemble(("    │ ", "dim"), part) for part in _folded(line, layout.width - 12))
    if len(lines) > most:
        yield Text(f"    │ … {plural(len(lines) - most, 'more line')}", style="dim")
    if fix.diff:
        yield Text(f"    {_whole_diff(fix, layout.written)}", style="dim")


def code_lines(fix: Prescription, *, neighbours: int = 1) -> list[str]:
    """Return the lines of the diff that change something, each with so many before and after; without one the code.

    A line between two of them is one too.
    """
    if not fix.diff:
        return clean(fix.after).rstrip().splitlines()
    lines = [line for line in clean(fix.diff).splitlines() if not line.startswith(("---", "+++", "@@", "\\"))]
    changed = [line.startswith(("+", "-")) for line in lines]
    changed = [is_so or changed[at - 1 : at] == changed[at + 1 : at + 2] == [True] for at, is_so in enumerate(changed)]
    return [line for at, line in enumerate(lines) if any(changed[max(at - neighbours, 0) : at + neighbours + 1])]


def _whole_diff(fix: Prescription, written: Sequence[Path] | None) -> str:
    """Return where the diff is that the lines shown are taken from."""
    if fix.apply_with:
        return tr("an excerpt; {command} makes the change", command=one_line(fix.apply_with))
    if written:
        return tr("an excerpt; {file} has the whole diff", file=one_line(str(written[0])))
    if written is not None:
        return tr("an excerpt; -o report.html writes the whole diff")
    return tr("an excerpt; an HTML or JSON report has the whole diff")


def _folded(line: str, width: int) -> list[str]:
    """Return a line of code in parts that fit; code that is to be pasted is never cut.

    A comment behind code that is too long goes before it, and its further lines are comments too.
    """
    commented = re.match(COMMENTED, line) if len(line) > width else None
    if commented is not None and all(commented["code"].count(quote) % 2 == 0 for quote in "'\""):
        margin = commented["margin"][: width // 2]
        parts = wrap(commented["comment"], width, initial_indent=f"{margin}# ", subsequent_indent=f"{margin}# ")
        return parts + (_folded(margin + commented["code"], width) if commented["code"] else [])
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    parts = wrap(line, width - 2, subsequent_indent=indent[: width // 2], break_on_hyphens=False, drop_whitespace=False)
    return [part + _continued("".join(parts[: at + 1])) for at, part in enumerate(parts[:-1])] + (parts[-1:] or [""])


def _continued(code: str) -> str:
    """Return what ends a part of a line: a backslash where no bracket is open and no string."""
    is_open = any(code.count(a) != code.count(b) for a, b in ("()", "[]", "{}")) or any(
        code.count(q) % 2 for q in "'\""
    )
    return "" if is_open or code.startswith(("+", "-")) else "\\" if code.endswith(" ") else " \\"
