"""The diagnosis for a terminal: the answer first, then the picture, then findings with their line and fix."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from diagnose.answer.screen import answer
from diagnose.model.cross_check import CrossCheck
from diagnose.model.diagnosis import Diagnosis, RankSummary
from diagnose.reports import text_code, text_findings, text_forecast, text_kernels, text_picture, text_trials
from diagnose.reports.format import duration, flops, path_tail, percent, plural, ranks
from diagnose.reports.job_words import job_sentences, left_out, worst_first
from diagnose.reports.language import tr, translated
from diagnose.reports.localized import localized
from diagnose.reports.rule_labels import shown_phases
from diagnose.reports.text_answer import NO_BREAK, first_screen
from diagnose.reports.text_charts import cause_shares
from diagnose.text.plain_text import MAX_WIDTH, MIN_WIDTH, columns, in_encoding, one_line

__all__ = ["WIDTH", "render", "render_answer", "terminal_text"]

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
