"""The diagnosis for a terminal: the answer first, then the picture, then findings with their line and fix."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from diagnose.answer.cards import verdict
from diagnose.answer.screen import answer
from diagnose.model.charts import KernelTime, Picture
from diagnose.model.diagnosis import (
    CrossCheck,
    Diagnosis,
    Forecast,
    Queue,
    RankSummary,
    Trial,
    Waterfall,
)
from diagnose.model.rules import Legend
from diagnose.reports import code_tables
from diagnose.reports.format import calls, duration, flops, path_tail, percent, place, plural, ranks, said, summed
from diagnose.reports.job_words import NO_JOB, job_sentences, left_out, worst_first
from diagnose.reports.language import localized, tr, translated
from diagnose.reports.rule_labels import PARTS, PHASES, TABULAR, coloured, shown_phases
from diagnose.reports.saving_words import certainty_words
from diagnose.reports.text_answer import Form, first_screen
from diagnose.reports.text_charts import (
    NO_BREAK,
    bar,
    cause_shares,
    cells,
    depth_columns,
    idle_columns,
    listed,
    note,
    padded,
    shades,
    sparkline,
    table,
    title,
)
from diagnose.reports.text_findings import Layout, findings
from diagnose.text.kernel_names import shorten
from diagnose.text.plain_text import MAX_WIDTH, MIN_WIDTH, columns, in_encoding, middle, one_line

WIDTH = MAX_WIDTH  # columns that the report is laid out for
LABEL_WIDTH = 11  # of the names at the left of the queue's rows
LEAST = (
    *(Form(0, is_brief=True, num_trials=num, has_gap=False) for num in range(4, -1, -1)),
    *(Form(0, is_brief=True, num_trials=0, has_gap=False, num_cautions=num) for num in (3, 2, 1)),
)
FULL = tuple(Form(num) for num in range(8, 2, -1))
BRIEF = (
    *(Form(num, is_brief=True) for num in range(8, 2, -1)),
    *(Form(num, is_brief=True, has_gap=False) for num in range(4, 0, -1)),
    Form(0, is_brief=True),
    *LEAST,
)
BAR_CELLS, MIN_BAR_CELLS = 10, 4  # of fewer cells a bar shows little
MAX_NOTES = 8
MIN_PATH_SHARE = 0.005  # of the path: less is not listed
LETTERS = "abcdefghijklmnopqrstuvwxyz"
MARKS = "█▓▒░"  # of the partition's fields


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
    layout = Layout(max(width, MIN_WIDTH), verbose, written)
    return _printed(_parts(coloured(localized(d)), layout), layout.width, colour=colour)


def render_answer(
    d: Diagnosis, *, width: int = WIDTH, colour: bool = False, written: Sequence[Path] | None = None
) -> str:
    """Return the answer only: the first screen, the code of its first change, and where the rest is.

    It is short enough to be seen at once: code gives way first, then what is not needed to act on the first change.
    """
    layout, here = Layout(max(width, MIN_WIDTH), written=written), coloured(localized(d))
    text = ""
    for form in (*FULL, *([Form()] if d.trials else []), *BRIEF):  # what was measured comes before code
        text = _printed(_answer(here, layout, form), layout.width, colour=colour)
        if text.count("\n") <= 20:
            break
    return text


def _printed(parts: Iterable[RenderableType], width: int, *, colour: bool) -> str:
    out = StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=colour,
        color_system="256" if colour else None,
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
    if verbose:
        text = render(d, width=columns(), colour=colour, verbose=True, written=written)
    else:
        text = render_answer(d, width=columns(), colour=colour, written=written)
    return in_encoding(text, getattr(sys.stdout, "encoding", None)).rstrip("\n")


def _answer(d: Diagnosis, layout: Layout, form: Form) -> Iterator[RenderableType]:
    yield from first_screen(answer(d), layout, form)
    line, *others = _context(d)
    for fact in others:  # those that fit
        longer = f"{line} · {fact}"
        line = longer if cell_len(longer) <= layout.width else line
    yield Text(line, style="dim")
    yield from _brief_trials(d, form.num_trials) if form.is_brief else (*_job(d), *_trials(d))
    yield from _cross_check(d.cross_check)
    page = next((path for path in layout.written or () if path.suffix.lower() in {".html", ".htm"}), None)
    rest = tr("Queue, all findings, code: --verbose")
    if layout.written is None:
        rest = tr("Queue, all findings, code: to_html(path)")
    elif page is not None:
        rest = tr("Queue, all findings, code: {page}, or --verbose", page=one_line(str(page)))
    yield Text(rest, "dim")


def _parts(d: Diagnosis, layout: Layout) -> Iterator[RenderableType]:
    first = answer(d)
    yield from first_screen(first, layout, Form())
    yield Text(" · ".join(_context(d)), style="dim")
    yield from _device(d, layout.width) if d.partition is not None else _host(d, layout.width)
    if phases := shown_phases(d.phases):
        steps = plural(d.watched_steps, "step")
        yield title(tr("What takes the run's time"), tr("{steps}, recorded or not", steps=steps))
        yield _phases(phases)
    yield from findings(d, layout)
    # What a full device does; elsewhere the step does not wait for its kernels, but for one of half of it.
    longest = max((row.time_ns for row in d.kernels if row.calls_per_step), default=0.0)
    is_full = d.verdict == "kernel-bound" or d.dominant is None or longest >= d.step_ns / 2
    if d.kernels and (layout.verbose or is_full):
        yield title(tr("Kernels"), tr("what takes the device's time; shares of the time of all its tasks"))
        yield _kernels(d.kernels, max(layout.width - 52, 20))  # the columns before a kernel's name
    yield from code_tables.tables(d.code, layout.width) if d.code is not None else ()
    yield from _cross_check(d.cross_check)
    if d.waterfall is not None and first.shows_savings:
        yield title(tr("Predicted step time after each change"), tr("replayed one after the other"))
        yield from _waterfall(d.waterfall, layout.width)
    if d.critical_path is not None and d.partition is not None:
        yield title(tr("Critical path"), tr("what the step's length depends on"))
        # The critical path in one line.
        shares = d.critical_path.shares
        ranked = sorted(
            ((name, share) for name, share in shares.items() if share >= MIN_PATH_SHARE), key=lambda s: -s[1]
        )
        path = note(", ".join(f"{translated(one_line(name))} {percent(share)}" for name, share in ranked), "")
        yield path
    yield from _trials(d)
    if d.after is not None:
        yield title(tr("With the gains applied"))
        yield note(one_line(said(answer(d.after).headline)), "")
    if len(d.ranks) > 1:
        yield title(tr("Ranks"))
        yield from _job(d)
        yield from _ranks(d)
    if d.trust:
        yield title(tr("Limitations of this recording"))
    for limitation in d.trust[:MAX_NOTES]:
        rule = limitation.rule and f"{limitation.rule}: "
        yield _bullet(f"{rule or ''}{one_line(limitation.text)}")
    if len(d.trust) > MAX_NOTES:
        left = plural(len(d.trust) - MAX_NOTES, "more note")
        yield _bullet(tr("and {notes} in the JSON and HTML reports", notes=left))


def _bullet(text: str) -> Table:
    return listed("-", Text(text))


def _job(d: Diagnosis) -> Iterator[RenderableType]:
    yield from map(_bullet, job_sentences(d.job or NO_JOB))


def _context(d: Diagnosis) -> Iterator[str]:
    mean = tr(", mean of {steps}", steps=plural(d.steps, "step")) if d.steps > 1 else ""
    if any(f.rule == d.dominant and f.share is not None for f in d.findings):
        mean = tr(", mean of the run")
    elif d.profiler_overhead is not None:
        mean = tr(", measured without the profiler")
    passes = d.passes_per_update or 1
    if passes > 1:
        mean += tr(", {num} backward passes before each optimizer call", num=passes)
    yield tr("step {time}", time=duration(d.step_ns)) + mean
    if (
        answer(d).after is not None and (d.replay_error or 0.0) >= 0.01
    ):  # less says nothing about how far a prediction may be off
        yield tr("the simulated step is {error} off the recorded one", error=percent(d.replay_error))
    names = [one_line(name) for name in d.source.devices]
    if names:
        yield f"{len(names)} × {names[0]}" if len(names) > len(set(names)) == 1 else ", ".join(names)
    if d.source.world_size > 1:
        yield ranks(d.source.world_size, len(d.ranks))
    if d.source.torch:
        yield f"torch {one_line(d.source.torch)}"
    yield one_line(path_tail(d.source.command or d.source.path, 60))


# The step of a device, or of the host where there is none: what it consists of, as rows and bars.


def _device(d: Diagnosis, width: int) -> Iterator[RenderableType]:
    """Yield the device's queue, and what its step and its idle time consist of."""
    if d.picture is not None and d.picture.step_ns > 0:
        # A picture of half the mean step is the host's, which runs ahead of the device.
        ahead = tr(", as the host issued it") if d.picture.step_ns < d.step_ns / 2 else ""
        yield title(tr("Queue"), tr("step {num}", num=d.picture.step) + ahead)
        yield from _queue(d, d.picture, width - LABEL_WIDTH - 2)
        if d.queue is not None:
            yield note(_depth_text(d.queue, has_steps=d.source.found_steps_by != "none"))
    if d.partition is not None:
        yield title(tr("Where the step goes"))
        shares = asdict(d.partition)
        line, legend = Text(), Text()
        counts = cells(list(shares.values()), width - 4)
        for (name, share), mark, count in zip(shares.items(), MARKS, counts, strict=True):
            style = PARTS[name].colour
            line.append(mark * count, style)
            if share > 0:
                words = f"{translated(TABULAR.get(name, name))} {percent(share)}".replace(" ", NO_BREAK)
                legend.append(mark, style).append(f"{NO_BREAK}{words}   ")
        yield listed("", line, legend, width=2)
        if d.flops is not None:
            yield Text(f"  {flops(d.flops)}", style="dim")
    if d.idle_by_cause:
        yield title(tr("Idle by cause"))
        yield _causes(d.idle_by_cause, d.legends, d.step_ns)


def _host(d: Diagnosis, width: int) -> Iterator[RenderableType]:
    """Yield what takes the place of queue and partition where the trace has no device."""
    if d.picture is not None and d.picture.gaps and d.picture.step_ns > 0:
        shares = d.host_by_cause or cause_shares(d.picture)
        over = tr("{steps}; the row is step {num}", steps=plural(d.steps, "step"), num=d.picture.step)
        yield title(tr("What takes the host's time"), over)
        columns = idle_columns(d.picture.gaps, d.picture.step_ns, width - LABEL_WIDTH - 2)
        yield _cause_row(columns, _keys(shares, d.legends))
        yield _causes(shares, d.legends, d.step_ns)
    if d.operators:
        yield title(tr("Host operators by self time"))
        operators = d.operators[:8]
        top, grid = max(op.self_ns for op in operators) or 1.0, table("lrrrl")
        for op in operators:
            name = "  " + middle(one_line(op.name), max(14, min(46, width - 50)))
            share = percent(op.self_ns / d.step_ns) if d.step_ns > 0 else "–"
            picture = Text(bar(op.self_ns / top, BAR_CELLS), style="cyan")
            grid.add_row(Text(name), f"{op.calls_per_step:,.0f} ×", duration(op.self_ns), share, picture)
        yield grid


def _queue(d: Diagnosis, picture: Picture, columns: int) -> Iterator[RenderableType]:
    """Yield the step from left to right: queue depth, device activity, and the causes of idle time."""
    idle = idle_columns(picture.gaps, picture.step_ns, columns)
    if picture.depth:
        line = sparkline(depth_columns(picture.depth, picture.step_ns, columns))
        yield Text.assemble((padded("  " + tr("depth"), LABEL_WIDTH), "dim"), (line, "blue"))
    busy = shades([1 - sum(column.values()) for column in idle])
    yield Text.assemble((padded("  " + tr("device"), LABEL_WIDTH), "dim"), (busy, "green"))
    if any(idle):
        shares = {gap.cause: 0.0 for gap in picture.gaps} | dict(d.idle_by_cause)
        yield _cause_row(idle, _keys(shares, d.legends))


def _cause_row(idle: list[dict[str, float]], keys: Mapping[str, tuple[str, str]]) -> Text:
    row = Text(padded("  " + tr("cause"), LABEL_WIDTH), style="dim")
    for column in idle:
        cause = max(column, key=lambda name: column[name], default="")
        # Less idle time than a quarter of a column is shown by its shade only.
        row.append(*(keys.get(cause, ("?", "dim")) if sum(column.values()) >= 0.25 else (" ", "")))
    return row


def _keys(shares: Mapping[str, float], legends: Mapping[str, Legend]) -> dict[str, tuple[str, str]]:
    """Return a letter and a style for each cause, the largest first; those of the last letters share a "?"."""
    ranked = sorted(shares, key=lambda cause: (-shares[cause], cause))
    styles = [legends.get(cause, Legend()).colour for cause in ranked]
    return dict(zip(ranked, zip(LETTERS + "?" * len(ranked), styles, strict=False), strict=True))


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


def _phases(shares: Mapping[str, float]) -> Table:
    """Return one row a phase of the run: its share, a bar, and what it is, which wraps where there is no room."""
    top, grid = max(shares.values()), table("lrl*")
    for name, share in shares.items():
        picture = Text(bar(share / top, BAR_CELLS), style="cyan")
        label = Text(translated(PHASES.get(name, Legend()).label), style="dim")
        grid.add_row(f"  {translated(one_line(name))}", percent(share), picture, label)
    return grid


def _causes(shares: Mapping[str, float], legends: Mapping[str, Legend], step_ns: float) -> Table:
    """Return one line a cause: its letter in the picture, its share of the step, a bar, and what it is in words."""
    keys, rows, grid = _keys(shares, legends), summed(dict(shares), 6), table("lrrl*")
    top = max((share for _, share in rows), default=0.0)
    for cause, share in rows:
        letter, style = keys.get(cause, (" ", "dim"))
        label = legends.get(cause, Legend()).label or translated(one_line(cause))
        picture = Text(bar(share / top, BAR_CELLS).ljust(BAR_CELLS), style=style)
        grid.add_row(Text(f"  {letter}", style), percent(share), duration(share * step_ns), picture, label)
    return grid


def _kernels(kernels: Sequence[KernelTime], room: int) -> Table:
    """Return one entry a kernel: share, time, calls, family, type, share of the peak, name and place."""
    grid = table("rrrlll")
    for row in kernels:
        at = one_line(place(replace(row.where, op=None) if row.where.file else row.where, limit=room - 10))
        peak = tr("{share} of peak", share=percent(row.peak_share)) if row.peak_share is not None else ""
        kind = Text(" ".join(filter(None, (row.family, row.dtype))))
        about = Group(kind, *[Text(text, style="dim") for text in (peak,) if text])
        name = Text(middle(one_line(shorten(row.name)), room))
        lines = Group(name, *[Text(middle(text, room), style="dim") for text in (at,) if text])
        grid.add_row(f"  {percent(row.share)}", duration(row.time_ns), calls(row), about, lines)
    return grid


# What is predicted and what was measured.


def _waterfall(waterfall: Waterfall, width: int) -> Iterator[RenderableType]:
    """Yield one line for each change, the step after it, and at the end what then bounds it.

    Where there is little room the bars are shorter, then left out, and names take several lines; numbers stay whole.
    """
    baseline = waterfall.forecasts[0].step_ns
    rows = [
        (f"  {duration(f.step_ns) if f.is_narrow else '–'}", one_line(_forecast_name(f)), _forecast_range(f, baseline))
        for f in waterfall.forecasts
    ]
    taken = sum(max(map(cell_len, column)) for column in zip(*rows, strict=True)) + 6
    room = min(30, width - taken)
    grid = table("rl*r" if room >= MIN_BAR_CELLS else "r*r")
    for forecast, (step, name, span) in zip(waterfall.forecasts, rows, strict=True):
        share = forecast.step_ns / baseline if baseline and forecast.is_narrow else 0.0
        picture = Text(bar(share, room).ljust(room), style="cyan" if forecast.ids else "red")
        grid.add_row(Text(step), *[picture][: room >= MIN_BAR_CELLS], name, Text(span, style="dim"))
    yield grid
    yield note(tr("then it is bound by {what}", what=one_line(waterfall.bound_by)))


def _forecast_range(forecast: Forecast, baseline: float) -> str:
    """Return between what the prediction lies, "" where that is narrow."""
    if forecast.high_ns - forecast.low_ns <= MIN_PATH_SHARE * baseline:
        return ""
    return tr("{low} to {high}", low=duration(forecast.low_ns), high=duration(forecast.high_ns))


def _forecast_name(forecast: Forecast) -> str:
    words = ("now", "with {change}", "and {change}")[min(len(forecast.ids), 2)]
    return tr(words, change=(*forecast.ids, "")[len(forecast.ids) - 1])


def _trials(d: Diagnosis) -> Iterator[RenderableType]:
    """Yield a line for each trial, with its prediction and how its losses compare."""
    if d.trials:
        yield title(tr("Trials"))
    for trial in d.trials:
        numbers = tr("numbers: {numbers}", numbers=_numbers(trial)) + "".join(_times(trial))
        yield listed("", _trial(d, trial, numbers), width=2)
        if trial.note:
            yield note(one_line(trial.note), indent=4)


def _brief_trials(d: Diagnosis, limit: int) -> Iterator[RenderableType]:
    """Yield a line for each of the first trials, and how many are left."""
    if d.trials:
        yield Text(tr("Trials"), "bold")
    for trial in d.trials[:limit]:
        yield listed("", _trial(d, trial, tr("numbers: {numbers}", numbers=translated(trial.numerics))), width=2)
    if len(d.trials) > limit:
        yield note(tr("and {trials}", trials=plural(len(d.trials) - limit, "more trial")))


def _trial(d: Diagnosis, trial: Trial, numbers: str) -> Text:
    words = {"single": "{name}", "combination": "together: {name}"}.get(trial.kind, "together, without {name}")
    name = tr(words, name=one_line(trial.id))
    if trial.kind == "single" and trial.title and trial.id not in {p.id for p in d.prescriptions}:  # no card has it
        name += f": {one_line(translated(trial.title))}"
    if trial.failure:
        return Text.assemble((tr("not tested") + "  ", "yellow"), name, (f"  {one_line(trial.failure)}", "dim"))
    low, high = trial.interval
    style = {"gain": "green", "loss": "red"}.get(verdict(trial), "yellow")
    sure = certainty_words(trial)
    return Text.assemble(
        (f"{trial.speed_up:.2f} × ", style),
        (f"({tr('{low} to {high}', low=f'{low:.2f}', high=f'{high:.2f}')})  ", "dim"),
        name,
        (sure and f"  {sure}", style),
        (f"  {numbers}", "dim"),
    )


def _numbers(trial: Trial) -> str:
    if trial.numerics == "identical" or trial.drift is None or trial.worst_drift is None:
        return translated(trial.numerics)
    apart = tr("losses {drift} apart, the worst {worst}", drift=f"{trial.drift:.1e}", worst=f"{trial.worst_drift:.1e}")
    return f"{translated(trial.numerics)} ({apart})"


def _times(trial: Trial) -> Iterator[str]:
    if trial.steps_ms is None:
        return
    baseline, changed = (duration(ms * 1e6) for ms in trial.steps_ms)
    guess = "" if trial.predicted_ms is None else tr(" (predicted {time})", time=duration(trial.predicted_ms * 1e6))
    yield "  " + tr("step {low} to {high}", low=baseline, high=changed) + guess
    before, after = trial.peak_bytes or (0, 0)
    change = after / before - 1 if before > 0 else 0.0
    if abs(change) >= 0.02:  # less is the allocator's own rounding
        yield f"  {tr('memory')} {'+' if change > 0 else '−'}{percent(abs(change))}"


def _cross_check(rows: Sequence[CrossCheck]) -> Iterator[RenderableType]:
    """Yield each figure as ours, by the other's definition and as theirs, and under it what explains a difference."""
    if not rows:
        return
    yield title("Cross-check against Holistic Trace Analysis")
    grid = table("lrrr")
    grid.add_row("  ", "ours", "by HTA's definition", "HTA", style="dim")
    explanations: dict[str, list[str]] = {}
    for row in rows:
        values = (row.ours, row.by_their_definition, row.theirs)
        shown = ["–" if v is None else f"{v:.2f}" if row.measure == "queue" else percent(v) for v in values]
        grid.add_row(f"  {row.measure}", *shown)
        explanations.setdefault(row.explanation, []).append(row.measure)
    yield grid
    yield from (Text(f"  {', '.join(names)}: {one_line(text)}", style="dim") for text, names in explanations.items())


def _ranks(d: Diagnosis) -> Iterator[RenderableType]:
    """Yield one line a rank, the worst first, and below which of them these are where there are more."""
    grid, shown = table("rr****"), worst_first(d, 16)
    for rank in shown:
        dominant = one_line(rank.dominant or "–")
        numbers = f"  {rank.rank}", duration(rank.step_ns)
        grid.add_row(*numbers, translated(rank.verdict), dominant, *_rank_shares(rank))
    yield grid
    if rest := left_out(d, shown):
        yield note(rest)


def _rank_shares(rank: RankSummary) -> tuple[str, str]:
    waits = tr("waits {time}", time=duration(rank.waits_ns)) if rank.waits_ns is not None else ""
    if rank.partition is None:
        return "", waits
    others = tr("communication {share}", share=percent(rank.partition.exposed_communication))
    return tr("idle {share}", share=percent(rank.partition.idle)), ", ".join(filter(None, (others, waits)))
