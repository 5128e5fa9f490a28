"""The diagnosis for a terminal: the answer first, then the picture, then findings with their line and fix."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from diagnose.answer.cards import Prediction, trial_of, verdict
from diagnose.answer.screen import FindingRow, answer, finding_rows
from diagnose.model.charts import HostOperator, KernelTime, Picture
from diagnose.model.cross_check import CrossCheck
from diagnose.model.diagnosis import Diagnosis, Example, Partition, Prescription, Queue, RankSummary, Trial, Where
from diagnose.model.forecast import Forecast, Waterfall
from diagnose.model.rules import Legend
from diagnose.reports import text as text_findings
from diagnose.reports import text as text_forecast
from diagnose.reports import text as text_kernels
from diagnose.reports import text as text_picture
from diagnose.reports import text as text_trials
from diagnose.reports import text_code
from diagnose.reports.format import confidence, duration, flops, path_tail, percent, place, plural, ranks, said, summed
from diagnose.reports.job_words import job_sentences, left_out, worst_first
from diagnose.reports.language import tr, translated
from diagnose.reports.localized import localized
from diagnose.reports.measured import certainty_words, measured_words
from diagnose.reports.rule_labels import PHASES, shown_phases
from diagnose.reports.saving_words import gain
from diagnose.reports.text_answer import NO_BREAK, first_screen, padded, place_style
from diagnose.reports.text_charts import bar, cause_shares, cells, depth_columns, idle_columns, shades, sparkline
from diagnose.reports.text_code_lines import code_block, code_lines
from diagnose.text.kernel_names import shorten
from diagnose.text.plain_text import MAX_WIDTH, MIN_WIDTH, columns, in_encoding, middle, one_line

__all__ = [
    "WIDTH",
    "after",
    "calls",
    "causes",
    "findings",
    "first_code",
    "host",
    "kernels",
    "operators",
    "partition",
    "path",
    "phases",
    "queue",
    "render",
    "render_answer",
    "terminal_text",
    "trials",
    "waterfall",
]

# The trials of the prescriptions, and the diagnosis after them, for a terminal.


def trials(d: Diagnosis) -> Iterator[RenderableType]:
    """Yield a line for each trial, with its prediction and how its losses compare."""
    for trial in d.trials:
        yield Padding(_failed(trial) if trial.failure else _line(trial), (0, 0, 0, 2))
        if trial.note:
            yield Padding(Text(one_line(trial.note), style="dim"), (0, 0, 0, 4))


def after(d: Diagnosis) -> Iterator[RenderableType]:
    """Yield the diagnosis after the best combination, in a sentence."""
    if d.after is not None:
        yield Padding(Text(one_line(said(answer(d.after).headline))), (0, 0, 0, 2))


def _text_trials_name(trial: Trial) -> str:
    name = one_line(trial.id)
    if trial.kind == "single":
        return name
    return (
        tr("together: {name}", name=name) if trial.kind == "combination" else tr("together, without {name}", name=name)
    )


def _failed(trial: Trial) -> Text:
    return Text.assemble((tr("failed") + " ", "red"), _text_trials_name(trial), (f"  {one_line(trial.failure)}", "dim"))


def _line(trial: Trial) -> Text:
    low, high = trial.interval
    style = {"gain": "green", "loss": "red"}.get(verdict(trial), "yellow")
    parts = ["  " + tr("numbers: {numbers}", numbers=_numbers(trial)), *_times(trial)]
    return Text.assemble(
        (f"{trial.speed_up:.2f} × ", style),
        (f"({tr('{low} to {high}', low=f'{low:.2f}', high=f'{high:.2f}')})  ", "dim"),
        _text_trials_name(trial),
        (f"  {words}" if (words := certainty_words(trial)) else "", style),
        ("".join(parts), "dim"),
    )


def _numbers(trial: Trial) -> str:
    if trial.numerics == "identical" or trial.drift is None or trial.worst_drift is None:
        return translated(trial.numerics)
    apart = tr("losses {drift} apart, the worst {worst}", drift=f"{trial.drift:.1e}", worst=f"{trial.worst_drift:.1e}")
    return f"{translated(trial.numerics)} ({apart})"


def _times(trial: Trial) -> Iterator[str]:
    if trial.steps_ms is None:
        return
    baseline, changed = trial.steps_ms
    guess = "" if trial.predicted_ms is None else tr(" (predicted {time})", time=duration(trial.predicted_ms * 1e6))
    yield "  " + tr("step {low} to {high}", low=duration(baseline * 1e6), high=duration(changed * 1e6)) + guess
    if trial.peak_bytes is not None and trial.peak_bytes[0] > 0:
        change = trial.peak_bytes[1] / trial.peak_bytes[0] - 1
        if abs(change) >= 0.02:  # less is the allocator's own rounding
            yield f"  {tr('memory')} {'+' if change > 0 else '−'}{percent(abs(change))}"


# The queue, the partition and the causes as pictures of one to a few lines.

_LABEL_WIDTH = 9  # width of the names at the left of the queue's rows
_MAX_CAUSES = 6
_TEXT_PICTURE_BAR_CELLS = 10
_NAMED_SHARE = 0.25  # of a column: less idle than this is shown by its shade alone
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_STYLES = ("red", "yellow", "magenta", "cyan", "green", "blue")
_PARTS = {
    "compute": ("█", "green", "computing"),
    "exposed_communication": ("▓", "cyan", "communication not overlapped"),
    "exposed_copy": ("▒", "yellow", "copies not overlapped"),
    "idle": ("░", "red", "idle"),
}


def queue(
    picture: Picture, queue: Queue | None, idle_by_cause: Mapping[str, float], width: int, *, has_steps: bool = True
) -> RenderableType:
    """Return the step from left to right: queue depth, device activity, and the causes of idle time."""
    columns = width - _LABEL_WIDTH - 4
    keys = _keys({gap.cause: 0.0 for gap in picture.gaps} | dict(idle_by_cause))
    idle = idle_columns(picture.gaps, picture.step_ns, columns)
    rows: list[RenderableType] = []
    if picture.depth:
        line = sparkline(depth_columns(picture.depth, picture.step_ns, columns))
        rows.append(Text.assemble((padded("  " + tr("depth"), _LABEL_WIDTH + 2), "dim"), (line, "blue")))
    busy = [1 - sum(column.values()) for column in idle]
    rows.append(Text.assemble((padded("  " + tr("device"), _LABEL_WIDTH + 2), "dim"), (shades(busy), "green")))
    if any(idle):
        rows.append(_cause_row(idle, keys))
    if queue is not None:
        rows.append(Padding(Text(_depth_text(queue, has_steps=has_steps), style="dim"), (0, 0, 0, 2)))
    return Group(*rows)


def host(picture: Picture, shares: Mapping[str, float], width: int) -> RenderableType:
    """Return the step of a trace without a device: what the host spent it on, from left to right."""
    return _cause_row(idle_columns(picture.gaps, picture.step_ns, width - _LABEL_WIDTH - 4), _keys(shares))


def _cause_row(idle: list[dict[str, float]], keys: dict[str, tuple[str, str]]) -> Text:
    row = Text(padded("  " + tr("cause"), _LABEL_WIDTH + 2), style="dim")
    for column in idle:
        cause = max(column, key=lambda name: column[name], default="")
        letter, style = keys.get(cause, ("?", "dim"))
        row.append(*((letter, style) if sum(column.values()) >= _NAMED_SHARE else (" ", "")))
    return row


def _keys(idle_by_cause: Mapping[str, float]) -> dict[str, tuple[str, str]]:
    """Return a letter and a style for each cause, the largest first."""
    ranked = sorted(idle_by_cause, key=lambda cause: (-idle_by_cause[cause], cause))
    return {
        cause: (_LETTERS[i] if i < len(_LETTERS) else "?", _STYLES[i] if i < len(_STYLES) else "dim")
        for i, cause in enumerate(ranked)
    }


def _depth_text(queue: Queue, *, has_steps: bool) -> str:
    words = (
        "depth {median} at the median, {high} at the 90th percentile; empty {empty}; {launches} a step, {late} of "
        "tasks launched onto an empty device"
    )
    return tr(
        words if has_steps else words.replace(" a step", ""),
        median=f"{queue.depth_p50:,.0f}",
        high=f"{queue.depth_p90:,.0f}",
        empty=percent(queue.empty_share),
        launches=plural(queue.launches_per_step, "launch"),
        late=percent(queue.late_share),
    )


def partition(partition: Partition, width: int) -> RenderableType:
    """Return the step as one bar with a legend."""
    names = [field.name for field in fields(partition)]
    shares = [getattr(partition, name) for name in names]
    line, legend = Text(), Text()
    for name, share, count in zip(names, shares, cells(shares, width - 4), strict=True):
        mark, style, label = _PARTS[name]
        line.append(mark * count, style)
        if share > 0:
            legend.append(mark, style)
            legend.append(f" {translated(label)} {percent(share)}".replace(" ", NO_BREAK))
            legend.append("   ")
    return Padding(Group(line, legend), (0, 0, 0, 2))


def phases(shares: Mapping[str, float]) -> RenderableType:
    """Return one row a phase of the run: its share, a bar, and what it is, which wraps where there is no room."""
    top = max(shares.values())
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column()  # the only one that wraps: the others are never cut for it
    for name, share in shares.items():
        picture = Text(bar(share / top, _TEXT_PICTURE_BAR_CELLS), style="cyan")
        label = Text(translated(PHASES.get(name, Legend()).label), style="dim")
        grid.add_row(f"  {translated(one_line(name))}", percent(share), picture, label)
    return grid


def causes(shares: Mapping[str, float], legends: Mapping[str, Legend], step_ns: float) -> RenderableType:
    """Return one line a cause: its letter in the picture, its share of the step, a bar, and what it is in words."""
    keys = _keys(shares)
    rows = summed(dict(shares), _MAX_CAUSES)
    top = max((share for _, share in rows), default=0.0)
    grid = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "right", "left"):
        grid.add_column(justify=justify, no_wrap=True)
    grid.add_column(overflow="fold")
    for cause, share in rows:
        letter, style = keys.get(cause, (" ", "dim"))
        label = legends.get(cause, Legend()).label or translated(one_line(cause))
        picture = Text(bar(share / top, _TEXT_PICTURE_BAR_CELLS).ljust(_TEXT_PICTURE_BAR_CELLS), style=style)
        grid.add_row(Text(f"  {letter}", style), percent(share), duration(share * step_ns), picture, label)
    return grid


# The device's kernels for a terminal: two lines each, the numbers and the name with its place.

_NUMBERS_WIDTH = 52  # of the columns before the name


def kernels(listed: Sequence[KernelTime], width: int) -> RenderableType:
    """Return one entry a kernel: share, time, calls, family, type, share of the peak, name and place."""
    room = max(width - _NUMBERS_WIDTH, 20)
    grid = Table.grid(padding=(0, 2))
    for justify in ("right", "right", "right", "left", "left", "left"):
        grid.add_column(justify=justify, no_wrap=True)
    for row in listed:
        name = Text(middle(one_line(shorten(row.name)), room))
        at = place(replace(row.where, op=None) if row.where.file else row.where, limit=room - 10)
        lines = [name, *([Text(middle(one_line(at), room), style="dim")] if at else [])]
        kind = " ".join(part for part in (row.family, row.dtype) if part)
        peak = tr("{share} of peak", share=percent(row.peak_share)) if row.peak_share is not None else ""
        of_peak = [Text(peak, style="dim")] if peak else []
        time = Text(f"{duration(row.time_ns)}")
        grid.add_row(f"  {percent(row.share)}", time, calls(row), Group(Text(kind), *of_peak), Group(*lines))
    return grid


def calls(row: KernelTime) -> str:
    """Return "24 ×", and for less than one call a step "0.2 ×"."""
    return f"{row.calls_per_step:,.0f} ×" if row.calls_per_step >= 1 else f"{row.calls_per_step:.1f} ×"


# The predicted step time after each change, and the critical path, for a terminal.

_BAR_CELLS, _MIN_BAR_CELLS = 30, 4  # of fewer cells a bar shows little
_GAP_CELLS = 2
MIN_PATH_SHARE = 0.005  # of the path: less is not listed


def waterfall(waterfall: Waterfall, width: int) -> Iterator[RenderableType]:
    """Yield one line for each change, the step after it, and at the end what then bounds it.

    Where there is little room the bars are shorter, then left out, and names take several lines; numbers stay whole.
    """
    baseline = waterfall.forecasts[0].step_ns
    rows = [
        (f"  {duration(f.step_ns) if f.is_narrow else '–'}", one_line(_name(f)), _range(f, baseline))
        for f in waterfall.forecasts
    ]
    taken = sum(max(map(cell_len, column)) for column in zip(*rows, strict=True)) + 3 * _GAP_CELLS
    cells = min(_BAR_CELLS, width - taken)
    has_bars = cells >= _MIN_BAR_CELLS
    grid = Table.grid(padding=(0, _GAP_CELLS))
    grid.add_column(justify="right", no_wrap=True)
    if has_bars:
        grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_column(justify="right", no_wrap=True)
    for forecast, (step, name, span) in zip(waterfall.forecasts, rows, strict=True):
        share = forecast.step_ns / baseline if baseline else 0
        picture = Text(
            (bar(share, cells) if forecast.is_narrow else "").ljust(cells), style="cyan" if forecast.ids else "red"
        )
        grid.add_row(Text(step), *([picture] if has_bars else []), name, Text(span, style="dim"))
    yield grid
    yield Padding(Text(tr("then it is bound by {what}", what=one_line(waterfall.bound_by)), style="dim"), (0, 0, 0, 2))


def _range(forecast: Forecast, baseline: float) -> str:
    """Return between what the prediction lies, "" where that is narrow."""
    if forecast.high_ns - forecast.low_ns <= MIN_PATH_SHARE * baseline:
        return ""
    return tr("{low} to {high}", low=duration(forecast.low_ns), high=duration(forecast.high_ns))


def _name(forecast: Forecast) -> str:
    if not forecast.ids:
        return tr("now")
    change = forecast.ids[-1]
    return tr("with {change}", change=change) if len(forecast.ids) == 1 else tr("and {change}", change=change)


def path(shares: Mapping[str, float]) -> RenderableType:
    """Return the critical path in one line."""
    ranked = sorted(((name, share) for name, share in shares.items() if share >= MIN_PATH_SHARE), key=lambda s: -s[1])
    listed = ", ".join(f"{translated(one_line(name))} {percent(share)}" for name, share in ranked)
    return Padding(Text(listed), (0, 0, 0, 2))


# Findings with their line and their fix, and the host's operators.

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


WIDTH = MAX_WIDTH  # columns that the report is laid out for
_AHEAD = 0.5  # of the mean step: a shorter one in the picture is the host's, which runs ahead of the device
_MAX_NOTES = 8
MIN_REPLAY_ERROR = 0.01  # of the step: less says nothing about how far a prediction may be off
_MAX_RANKS = 16  # more only where more are late


def render(
    d: Diagnosis,
    *,
    width: int = WIDTH,
    colour: bool = False,
    verbose: bool = False,
    written: Sequence[Path] | None = None,
) -> str:
    """Return the report as lines of at most ``width`` columns (at least 60), but for commands, which are never broken.

    Args:
        d: the diagnosis.
        width: columns.
        colour: whether ANSI colours, and links of places to their files, may be written.
        verbose: list every finding, kernel and operator, with evidence and examples.
        written: the HTML and JSON files that a command has written of it; None outside of a command.
    """
    width = max(width, MIN_WIDTH)
    return _printed(_parts(localized(d), width, verbose=verbose, written=written), width, colour=colour)


def render_answer(
    d: Diagnosis, *, width: int = WIDTH, colour: bool = False, written: Sequence[Path] | None = None
) -> str:
    """Return the answer only: the first screen, the code of its first change, and where the rest is."""
    width = max(width, MIN_WIDTH)
    return _printed(_answer(localized(d), width, written), width, colour=colour)


def _printed(parts: Iterable[RenderableType], width: int, *, colour: bool) -> str:
    out = StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=not colour,
        legacy_windows=False,
        force_interactive=False,
        force_jupyter=False,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
    )
    for part in parts:
        console.print(part, overflow="fold", crop=False)  # a command may be longer
    return "\n".join(line.rstrip().replace(NO_BREAK, " ") for line in out.getvalue().splitlines()) + "\n"


def terminal_text(d: Diagnosis, *, verbose: bool = False, written: Sequence[Path] | None = None) -> str:
    """Return the answer for standard output, with ``verbose`` the whole report.

    It has the terminal's width and encoding, and colours only on a terminal.
    """
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    colour = is_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    text = render_answer(d, width=columns(), colour=colour, written=written)
    if verbose:
        text = render(d, width=columns(), colour=colour, verbose=True, written=written)
    return in_encoding(text, getattr(sys.stdout, "encoding", None)).rstrip("\n")


def _answer(d: Diagnosis, width: int, written: Sequence[Path] | None) -> Iterator[RenderableType]:
    a = answer(d)
    yield from first_screen(a, width, lambda card: text_findings.first_code(card.prescription, width, written))
    yield Text(" · ".join(_context(d)), style="dim")
    for rank in job_sentences(d.job) if d.job is not None else ():
        yield _bullet(rank)
    if d.trials:
        yield _title(tr("Trials"))
        yield from text_trials.trials(d)
    yield from _cross_check(d)
    page = next((path for path in written or () if path.suffix.lower() in {".html", ".htm"}), None)
    rest = tr("Queue, all findings and their code: --verbose")
    if written is None:
        rest = tr("Queue, all findings and their code: to_html(path)")
    elif page is not None:
        rest = tr("Queue, all findings and their code: {page}, or --verbose", page=one_line(str(page)))
    yield Text(rest, "dim")


def _parts(d: Diagnosis, width: int, *, verbose: bool, written: Sequence[Path] | None) -> Iterator[RenderableType]:
    first = answer(d)
    yield from first_screen(first, width)
    yield Text(" · ".join(_context(d)), style="dim")
    yield from _device(d, width) if d.partition is not None else _host(d, width)
    if phases := shown_phases(d.phases):
        yield _title(
            tr("Where the run's time goes"), tr("{steps}, recorded or not", steps=plural(d.watched_steps, "step"))
        )
        yield text_picture.phases(phases)
    yield from text_findings.findings(d, width, verbose=verbose, written=written)
    yield from _kernels(d, width, verbose=verbose)
    yield from text_code.tables(d.code, width) if d.code is not None else ()
    yield from _cross_check(d)
    if d.waterfall is not None and first.shows_savings:
        yield _title(tr("Predicted step time after each change"), tr("replayed one after the other"))
        yield from text_forecast.waterfall(d.waterfall, width)
    if d.critical_path is not None and d.partition is not None:
        yield _title(tr("Critical path"), tr("what the step's length depends on"))
        yield text_forecast.path(d.critical_path.shares)
    if d.trials:
        yield _title(tr("Trials"))
        yield from text_trials.trials(d)
        if d.after is not None:
            yield _title(tr("With the gains applied"))
            yield from text_trials.after(d)
    if len(d.ranks) > 1:
        yield _title(tr("Ranks"))
        yield from (_bullet(sentence) for sentence in (job_sentences(d.job) if d.job is not None else ()))
        yield from _ranks(d)
    if d.trust:
        yield _title(tr("Limitations of this recording"))
        yield from _notes(d)


def _device(d: Diagnosis, width: int) -> Iterator[RenderableType]:
    """Yield the device's queue, and what its step and its idle time consist of."""
    if d.picture is not None and d.picture.step_ns > 0:
        ahead = tr(", as the host issued it") if d.picture.step_ns < _AHEAD * d.step_ns else ""
        yield _title(tr("Queue"), tr("step {num}", num=d.picture.step) + ahead)
        has_steps = d.source.found_steps_by != "none"
        yield text_picture.queue(d.picture, d.queue, d.idle_by_cause, width, has_steps=has_steps)
    if d.partition is not None:
        yield _title(tr("Where the step goes"))
        yield text_picture.partition(d.partition, width)
        if d.flops is not None:
            yield Text(f"  {flops(d.flops)}", style="dim")
    if d.idle_by_cause:
        yield _title(tr("Idle by cause"))
        yield text_picture.causes(d.idle_by_cause, d.legends, d.step_ns)


def _cross_check(d: Diagnosis) -> Iterator[RenderableType]:
    if d.cross_check:
        yield _title("Cross-check against Holistic Trace Analysis")
        yield cross_check(d.cross_check)


def cross_check(rows: Sequence[CrossCheck]) -> RenderableType:
    """Return each figure as ours, by the other's definition and as theirs, and under it what explains a difference."""
    grid = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "right", "right"):
        grid.add_column(justify=justify, no_wrap=True)
    grid.add_row("  ", "ours", "by HTA's definition", "HTA", style="dim")
    explanations: dict[str, list[str]] = {}
    for row in rows:
        values = (row.ours, row.by_their_definition, row.theirs)
        shown = ["–" if v is None else f"{v:.2f}" if row.measure == "queue" else percent(v) for v in values]
        grid.add_row(f"  {row.measure}", *shown)
        explanations.setdefault(row.explanation, []).append(row.measure)
    notes = [Text(f"  {', '.join(names)}: {one_line(text)}", style="dim") for text, names in explanations.items()]
    return Group(grid, *notes)


def _kernels(d: Diagnosis, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    """Yield what a full device does; elsewhere the step does not wait for its kernels, but for one of half of it."""
    longest = max((row.time_ns for row in d.kernels if row.calls_per_step), default=0.0)
    is_wanted = verbose or d.verdict == "kernel-bound" or d.dominant is None or longest >= d.step_ns / 2
    if d.kernels and is_wanted:
        yield _title(tr("Kernels"), tr("where the device's time goes; shares of the time of all its tasks"))
        yield text_kernels.kernels(d.kernels, width)


def _host(d: Diagnosis, width: int) -> Iterator[RenderableType]:
    """Yield what takes the place of queue and partition where the trace has no device."""
    if d.picture is not None and d.picture.gaps and d.picture.step_ns > 0:
        shares = d.host_by_cause or cause_shares(d.picture)
        over = tr("{steps}; the row is step {num}", steps=plural(d.steps, "step"), num=d.picture.step)
        yield _title(tr("Where the host's time goes"), over)
        yield text_picture.host(d.picture, shares, width)
        yield text_picture.causes(shares, d.legends, d.step_ns)
    if d.operators:
        yield _title(tr("Host operators by self time"))
        yield text_findings.operators(d.operators, d.step_ns, width)


def _title(title: str, aside: str = "") -> RenderableType:
    return Padding(Text.assemble((title, "bold"), (f"  {aside}" if aside else "", "dim")), (1, 0, 0, 0))


def _context(d: Diagnosis) -> Iterator[str]:
    mean = tr(", mean of {steps}", steps=plural(d.steps, "step")) if d.steps > 1 else ""
    if any(f.rule == d.dominant and f.share is not None for f in d.findings):
        mean = tr(", mean of the run")
    elif d.profiler_overhead is not None:
        mean = tr(", measured without the profiler")
    yield tr("step {time}", time=duration(d.step_ns)) + mean + _passes(d.passes_per_update or 1)
    if (d.replay_error or 0.0) >= MIN_REPLAY_ERROR:
        yield tr("the simulated step is {error} off the recorded one", error=percent(d.replay_error))
    names = [one_line(name) for name in d.source.devices]
    if names:
        yield f"{len(names)} × {names[0]}" if len(names) > 1 and len(set(names)) == 1 else ", ".join(names)
    if d.source.world_size > 1:
        yield ranks(d.source.world_size, len(d.ranks))
    if d.source.torch:
        yield f"torch {one_line(d.source.torch)}"
    yield one_line(path_tail(d.source.command or d.source.path, 60))


def _passes(num: int) -> str:
    """Return how many backward passes a step has, where an optimizer's call adds several up; "" elsewhere."""
    return tr(", {num} backward passes before each optimizer call", num=num) if num > 1 else ""


def _ranks(d: Diagnosis) -> Iterator[RenderableType]:
    """Yield one line a rank, the worst first, and below which of them these are where there are more."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right")
    grid.add_column(justify="right", no_wrap=True)
    shown = worst_first(d, _MAX_RANKS)
    for rank in shown:
        shares = _rank_shares(rank)
        grid.add_row(
            f"  {rank.rank}", duration(rank.step_ns), translated(rank.verdict), one_line(rank.dominant or "–"), *shares
        )
    yield grid
    if rest := left_out(d, shown):
        yield Padding(Text(rest, style="dim"), (0, 0, 0, 2))


def _rank_shares(rank: RankSummary) -> tuple[str, str]:
    waits = tr("waits {time}", time=duration(rank.waits_ns)) if rank.waits_ns is not None else ""
    if rank.partition is None:
        return "", waits
    others = tr("communication {share}", share=percent(rank.partition.exposed_communication))
    return tr("idle {share}", share=percent(rank.partition.idle)), f"{others}, {waits}" if waits else others


def _notes(d: Diagnosis) -> Iterator[RenderableType]:
    for note in d.trust[:_MAX_NOTES]:
        yield _bullet((f"{note.rule}: " if note.rule else "") + one_line(note.text))
    if len(d.trust) > _MAX_NOTES:
        left = plural(len(d.trust) - _MAX_NOTES, "more note")
        yield _bullet(tr("and {notes} in the JSON and HTML reports", notes=left))


def _bullet(text: str) -> Table:
    grid = Table.grid()
    grid.add_column(width=4)
    grid.add_column(overflow="fold")
    grid.add_row("  -", Text(text))
    return grid
