"""Findings with their line and their fix, and the host's operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from diagnose.answer.cards import Prediction
from diagnose.answer.rows import FindingRow, finding_rows
from diagnose.answer.screen import answer
from diagnose.answer.tried import trial_of
from diagnose.model.charts import HostOperator
from diagnose.model.diagnosis import Diagnosis, Example, Prescription, Where
from diagnose.model.frozen import NamedTuple
from diagnose.reports.format import confidence, duration, percent, place, plural, said
from diagnose.reports.language import tr, translated
from diagnose.reports.measured import measured_words
from diagnose.reports.saving_words import gain
from diagnose.reports.text_answer import place_style
from diagnose.reports.text_charts import bar
from diagnose.reports.text_code_lines import code_block, code_lines
from diagnose.text.plain_text import middle, one_line

__all__ = ["findings", "first_code", "operators"]

_MAX_FINDINGS = 5
_MAX_CODE_LINES = 12
_MAX_FIRST_LINES = 8
_MAX_SHORT_LINES = 4  # of an alternative
_MAX_DIFF_LINES = 16  # with the neighbours of each changed line: two calls of several arguments
_MAX_OPERATORS = 8
_MAX_ALSO = 4  # further changes of a finding, by id
_CONFIDENCE_STYLES = {"high": "dim", "medium": "yellow", "low": "yellow"}


def findings(
    d: Diagnosis, width: int, *, verbose: bool = False, written: Sequence[Path] | None = None
) -> Iterator[RenderableType]:
    """Yield the first five findings, and those of the cards; a line where there is none.

    With ``verbose`` all of them are yielded, and their evidence. ``written`` are the files that have whole diffs, None
    outside of a command.
    """
    if not d.findings:
        if d.checked or d.not_checked:
            yield Padding(Text(tr("What was checked"), "bold"), (1, 0, 0, 0))
        yield from _checked(d)
        return
    a = answer(d)
    title = Text(tr("Seen in this recording"), "bold")
    if a.record_again is None:
        title = Text.assemble((tr("Findings"), "bold"), (f"  {tr('by what the step saves without each')}", "dim"))
    yield Padding(title, (1, 0, 0, 0))
    rows = finding_rows(d, a.each)
    of_cards = {card.finding for card in a.cards}  # their code is printed here
    noted = [row for row in rows if not verbose and not row.finding.worth_ns and a.record_again is None]
    rows = tuple(row for row in rows if row not in noted)
    shown = [row for row in rows if verbose or row.number <= _MAX_FINDINGS or row.number in of_cards]
    for row in shown:
        yield _finding(row, d, a.each, _Layout(width, verbose, written))
    if len(rows) > len(shown):
        left = plural(len(rows) - len(shown), "smaller finding")
        yield Text("  " + tr("and {left}, which --verbose, JSON and HTML show", left=left), style="dim")
    if noted:
        names = ", ".join(dict.fromkeys(row.finding.rule for row in noted))
        yield Padding(Text(tr("No saving known: {rules} (--verbose shows them)", rules=names), "dim"), (0, 0, 0, 2))
    if d.dominant is None:
        yield from _checked(d)


def _checked(d: Diagnosis) -> Iterator[RenderableType]:
    """Yield what was looked for, where little or nothing was found."""
    if d.checked:
        yield Padding(Text(tr("Checked: {rules}.", rules=", ".join(d.checked)), style="dim"), (0, 0, 0, 2))
    for what in dict.fromkeys(d.not_checked.values()):
        rules = ", ".join(rule for rule, missing in d.not_checked.items() if missing == what)
        yield Padding(
            Text(
                tr(
                    "Not checked, for lack of {what}: {rules}.",
                    what=", ".join(map(translated, what.split(", "))),
                    rules=rules,
                ),
                style="dim",
            ),
            (0, 0, 0, 2),
        )


class _Layout(NamedTuple):
    width: int
    verbose: bool
    written: Sequence[Path] | None  # files that have whole diffs; None outside of a command


def _finding(row: FindingRow, d: Diagnosis, each: Mapping[str, Prediction], layout: _Layout) -> RenderableType:
    finding, width, verbose = row.finding, layout.width, layout.verbose
    parts: list[RenderableType] = [_first_line(row), Text(one_line(finding.title))]
    if finding.where:
        parts.extend(_where(finding.where, width))
    shown = finding.evidence if verbose else finding.evidence[:1] if not finding.where else ()
    parts.extend(Text(one_line(sentence), style="dim") for sentence in shown)
    if verbose:
        parts.extend(_example(example) for example in finding.examples)
    if row.fix is not None:
        parts.extend(_fix(row.fix, tr("fix") if row.finding.worth_ns else tr("try"), _gained(row.fix, d, each), layout))
    if row.alternative is not None:
        best = row.alternative
        words = tr("or  {title}  {gain}", title=one_line(translated(best.title)), gain=_gained(best, d, each))
        parts.append(Text(words, style="dim"))
        parts.extend(_details(best, layout, code_lines(best, neighbours=0), _MAX_SHORT_LINES))
    for p in row.refuted:
        words = f"{one_line(translated(p.title))}  {_gained(p, d, {})}"
        parts.append(Text(tr("tried  {change}", change=words), style="dim"))
    if row.also:
        shown_ids = ", ".join(row.also[:_MAX_ALSO])
        if len(row.also) > _MAX_ALSO:
            more = plural(len(row.also) - _MAX_ALSO, "more change")
            shown_ids = tr("{words} and {last}", words=shown_ids, last=more)
        parts.append(Text(tr("also possible: {changes}", changes=shown_ids), style="dim"))
    grid = Table.grid()
    grid.add_column(width=4)
    grid.add_column(overflow="fold")
    grid.add_row(Text(f"  {row.number}", style="bold"), Group(*parts))
    return grid


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


def _first_line(row: FindingRow) -> Text:
    """Return the rule, and what the step saves without it."""
    if row.saves is None:
        return Text(row.finding.rule, "bold")
    sure = row.finding.confidence
    return Text.assemble(
        (row.finding.rule, "bold"),
        "  ",
        (said(row.saves), "bold red" if row.finding.worth_ns else "dim"),
        (f", {confidence(sure)}" if sure != "high" else "", _CONFIDENCE_STYLES["medium"]),
    )


def _where(places: tuple[Where, ...], width: int) -> Iterator[Text]:
    first = places[0]
    more = "  " + tr("and {others}", others=plural(len(places) - 1, "more place")) if len(places) > 1 else ""
    text = one_line(place(first, limit=width // 2))
    if text:
        yield Text.assemble((tr("at") + "  ", "dim"), (text, Style.parse("cyan") + place_style(first)), (more, "dim"))
    if first.code:
        yield Text(f"    {middle(one_line(first.code), width - 12)}")


def _fix(fix: Prescription, name: str, gained: str, layout: _Layout) -> Iterator[RenderableType]:
    yield Text.assemble((name + " ", "dim"), (one_line(fix.title), "green"), (f"  {gained}" if gained else "", "dim"))
    yield from _details(fix, layout, code_lines(fix), _MAX_DIFF_LINES if fix.diff else _MAX_CODE_LINES)


def first_code(fix: Prescription, width: int, written: Sequence[Path] | None) -> Iterator[RenderableType]:
    """Yield the first lines of code of a change."""
    yield from code_block(fix, code_lines(fix, neighbours=0), _MAX_FIRST_LINES, width - 5, written)


def _details(fix: Prescription, layout: _Layout, lines: Sequence[str], most: int) -> Iterator[RenderableType]:
    """Yield what a change asks for and its first lines of code."""
    if fix.safety and (fix.promise != "identical" or fix.safety not in ("same numbers", tr("same numbers"))):
        yield Padding(Text(one_line(fix.safety), style="yellow"), (0, 0, 0, 4))
    if fix.needs:
        yield Padding(Text(tr("needs {what}", what=one_line(fix.needs)), style="dim"), (0, 0, 0, 4))
    if fix.edits:
        yield Text.assemble(
            (f"    {tr('edit')} ", "dim"), (", ".join(one_line(place(edit)) for edit in fix.edits), "cyan")
        )
    yield from code_block(fix, lines, most, layout.width, layout.written)


def operators(operators: tuple[HostOperator, ...], step_ns: float, width: int) -> Table:
    """Return the host's most expensive operators, one line each."""
    shown = operators[:_MAX_OPERATORS]
    top = max((op.self_ns for op in shown), default=0.0) or 1.0
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    for _ in range(3):
        grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True)
    for op in shown:
        share = percent(op.self_ns / step_ns) if step_ns > 0 else "–"
        name = "  " + middle(one_line(op.name), max(14, min(46, width - 50)))
        picture = Text(bar(op.self_ns / top, 10), style="cyan")
        grid.add_row(Text(name), f"{op.calls_per_step:,.0f} ×", duration(op.self_ns), share, picture)
    return grid
