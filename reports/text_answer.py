"""The first screen for a terminal: the answer, the step now and then, and the changes that lead there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from diagnose.model.diagnosis import Where
from diagnose.reports.answer import Action, Answer, behind, gain, saving
from diagnose.reports.format import duration, line_of, percent
from diagnose.reports.text_charts import bar
from diagnose.reports.trial_charts import measured_words
from diagnose.text.plain_text import one_line

__all__ = ["first_screen", "place_style"]

_TONES = {"bad": "bold red", "warn": "bold yellow", "good": "bold green", "info": "bold cyan"}
_NUMBERS_WIDTH = 22  # of a bar's line before the bar: its name and the step
_NOTE_WIDTH = 28  # beside the bar: the factor and its range
_SAVING_CELLS = 20


def first_screen(a: Answer, width: int) -> Iterator[RenderableType]:
    """Yield the headline, the bars, the actions or the command to record again, and what limits them."""
    yield Text.assemble((a.pill, _TONES[a.tone]), "  ", (one_line(a.headline), "bold"))
    if a.record_again:
        yield Padding(
            Text("No change is named: what it shows may not be what holds the step back.", "yellow"), (1, 0, 0, 2)
        )
        yield Text.assemble("  ", ("$ ", "dim"), (one_line(a.command), "bold"))
    else:
        yield from _bars(a, width)
        if a.view:
            yield Text(f"  {a.view}", "dim")
        for number, action in enumerate(a.actions, 1):
            yield _action(number, action, a)
    if a.checked:
        yield Padding(Text(one_line(a.checked), "green"), (1, 0, 0, 2))
    for caution in a.cautions:
        yield Padding(Text(f"! {one_line(caution)}", "yellow"), (0, 0, 0, 2))
    yield Text("")


def _bars(a: Answer, width: int) -> Iterator[RenderableType]:
    """Yield the step now and the step possible, in proportion."""
    if a.after is None or a.now_ns <= 0:
        return
    room = max(width - _NUMBERS_WIDTH - _NOTE_WIDTH, 10)
    factor = a.factor
    span = duration(a.after.low_ns), duration(a.after.high_ns)
    yield Text("")
    yield Text.assemble("  step now       ", (f"{duration(a.now_ns):>8}  ", "bold"), (bar(1.0, room), "red"))
    low, middle, high = factor or (1.0, 1.0, 1.0)
    note = f"  {middle:.1f} ×" + (f" ({low:.1f} to {high:.1f} ×)" if f"{low:.1f}" != f"{high:.1f}" else "")
    yield Text.assemble(
        "  step proven    " if a.is_measured else "  step possible  ",
        (f"{duration(a.after.after_ns):>8}  ", "bold"),
        (bar(a.after.after_ns / a.now_ns, room), "green"),
        (note if factor else "", "bold green"),
    )
    if span[0] != span[1]:
        how = "measured by running the script" if a.is_measured else "as a replay of the recorded steps predicts"
        yield Text(f"                 {span[0]} to {span[1]}, {how}", "dim")


def _action(number: int, action: Action, a: Answer) -> RenderableType:
    p, found = action.prescription, action.prediction
    head = Text(one_line(p.title), "bold")
    parts: list[RenderableType] = [head]
    at = line_of(action.where) if action.where is not None else ""
    saves = Text(f"rank {action.rank}  " if action.rank is not None else "")
    if at and action.where is not None:
        saves.append(one_line(at), Style.parse("cyan") + place_style(action.where))
        saves.append("  ")
    if found is not None and a.now_ns > 0:
        saves.append(f"{saving(found)} ", "green")
        saves.append(bar(found.saves_ns / a.now_ns, _SAVING_CELLS), "green")
        saves.append(behind(found).replace(", ", "  ", 1), "dim")
    else:
        words = "saving not predicted: no replay of these steps shows it"
        if p.mean_step_ns is not None and p.saves_ns[1] > 0:
            words = gain(p, {})
        elif a.run_share is not None:
            words = f"up to {percent(a.run_share)} of the run: outside the recorded steps, so not predicted"
        saves.append(words, "dim")
    parts.append(saves)
    if action.trial is not None:
        parts.append(
            Text(one_line(measured_words(action.trial)), "bold green" if action.trial.interval[0] > 1 else "bold")
        )
    parts.append(Text(one_line(p.safety), "yellow" if p.safety.startswith("may") else "dim"))
    grid = Table.grid()
    grid.add_column(width=5)
    grid.add_column(overflow="fold")
    grid.add_row(Text(f"  {number}", "bold"), Group(*parts))
    return Padding(grid, (1 if number == 1 else 0, 0, 0, 0))


def place_style(where: Where) -> Style:
    """Return the style of a place: a link to the file, where its path is known in full; terminals show it as OSC 8."""
    file = where.file or ""
    return Style(link=PurePosixPath(file).as_uri()) if file.startswith("/") and "\0" not in file else Style()
