"""The first screen for a terminal: the answer, the step now and then, and the changes that lead there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePosixPath
from typing import TypeAlias

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from diagnose.answer.cards import MAX_CARDS, Card
from diagnose.answer.screen import Answer
from diagnose.model.diagnosis import Where
from diagnose.reports.factors import factor_words
from diagnose.reports.format import duration, line_of, percent, said
from diagnose.reports.language import tr, translated
from diagnose.reports.measured import measured_words
from diagnose.reports.saving_words import behind, saving, unpredicted
from diagnose.reports.text_charts import bar
from diagnose.text.plain_text import one_line, whole_line

__all__ = ["NO_BREAK", "first_screen", "padded", "place_style"]

CodeOf: TypeAlias = Callable[[Card], Iterable[RenderableType]]
_TONES = {"bad": "bold red", "warn": "bold yellow", "good": "bold green", "info": "bold cyan"}
_NUMBERS_WIDTH = 22  # of a bar's line before the bar: its name and the step
_MAX_PARTS = 4
_NOTE_WIDTH = 28  # beside the bar: the factor and its range
NO_BREAK = "\ufdd0"  # becomes a space once lines are broken: rich breaks them at U+00A0 too
_UNBROKEN = (
    r"(?<=\bafter) (?=change)|"
    r"(?<=change) (?=\d)|(?<=changes) (?=\d)|(?<=\d) (?=and \d)|(?<=\d and) (?=\d)"
)


def first_screen(a: Answer, width: int, code: CodeOf | None = None) -> Iterator[RenderableType]:
    """Yield the headline, the bars, the actions or the command to record again, and what limits them.

    ``code`` returns the lines of a change, which are printed of the first one.
    """
    yield Text.assemble((said(a.pill), _TONES[a.tone]), "  ", (one_line(said(a.headline)), "bold"))
    if a.record_again:
        yield Padding(
            Text(tr("No recommendations: the trace may not be representative. Record again with:"), "yellow"),
            (1, 0, 0, 2),
        )
        yield _command("  $ ", a.command)
    else:
        yield from _bars(a, width)
        if a.view is not None:
            yield Text(f"  {said(a.view)}", "dim")
        if a.no_change is not None:
            other = f" {tr('Changes for smaller findings:')}" if a.cards else ""
            yield Padding(Text(said(a.no_change) + ("" if a.next_command else other), "yellow"), (1, 0, 0, 2))
            if a.next_command:
                yield _command("  $ ", a.next_command)
                yield from [Text(f"  {other.strip()}", "yellow")] if other else []
        for number, card in enumerate(a.cards, 1):
            yield _card(number, card, a, tuple(code(card)) if code is not None and number == 1 else ())
    if a.checked is not None:
        yield Padding(Text(one_line(said(a.checked)), "green"), (1, 0, 0, 2))
    if a.to_try is not None:
        yield Padding(Text(one_line(said(a.to_try))), (0 if a.checked is not None else 1, 0, 0, 2))
        yield _command("  >>> " if a.try_command.startswith("diagnose.") else "  $ ", a.try_command)
    for caution in a.cautions:
        yield Padding(Text(f"! {one_line(said(caution))}", "yellow"), (0, 0, 0, 2))
    yield Text("")


def _command(prompt: str, command: str) -> RenderableType:
    """Return a command on one line of any length, since a line break would make two commands of it."""
    return Group(Text.assemble((prompt, "dim"), (whole_line(command), "bold"), no_wrap=True, overflow="ignore"))


def _bars(a: Answer, width: int) -> Iterator[RenderableType]:
    """Yield what the run loses, the step now with what it consists of, and the step possible, in proportion."""
    if a.now_ns <= 0:
        return
    room = max(width - _NUMBERS_WIDTH - _NOTE_WIDTH, 10)
    yield Text("")
    yield _bar(tr("step now"), duration(a.now_ns), (bar(1.0, room), "red"))
    yield from _consists(a)
    if a.after is None:
        return
    name = tr("step proven") if a.is_measured else tr("step possible")
    span = duration(a.after.low_ns), duration(a.after.high_ns)
    picture = bar(a.after.after_ns / a.now_ns, room), "green" if a.factor else "dim"
    yield _bar(name, duration(a.after.after_ns), picture, f"  {factor_words(a.factor)}" if a.factor else "")
    words = "{low} to {high}, measured by running the script"
    if not a.is_measured:
        words = "{low} to {high}, simulated from this recording"
    note = tr(words, low=span[0], high=span[1]) if span[0] != span[1] else ""
    if a.num_changes > len(a.cards) == MAX_CARDS and not a.is_measured:
        more = tr("with the top {num} of {all} changes", num=len(a.cards), all=a.num_changes)
        note = f"{note}, {more}" if note else more
    if note:
        yield Padding(Text(note, "dim"), (0, 0, 0, 17))


def _bar(name: str, number: str, picture: tuple[str, str], note: str = "") -> Text:
    return Text.assemble(f"  {padded(name, 13)}  ", (f"{number:>8}  ", "bold"), picture, (note, "bold green"))


def _consists(a: Answer) -> Iterator[RenderableType]:
    """Yield the largest parts of the step."""
    listed: list[str] = []
    for name, share in a.parts[:_MAX_PARTS]:
        listed.append(f"{translated(one_line(name))} {percent(share)}".replace(" %", f"{NO_BREAK}%"))
    if listed:
        yield Padding(Text(", ".join(listed), "dim"), (0, 0, 0, 17))


def _card(number: int, card: Card, a: Answer, code: tuple[RenderableType, ...] = ()) -> RenderableType:
    p, found = card.prescription, card.prediction
    parts: list[RenderableType] = [Text(one_line(p.title), "bold")]
    at = line_of(card.where) if card.where is not None else ""
    saves = Text(f"{tr('rank {num}', num=card.rank)}  " if card.rank is not None else "")
    if at and card.where is not None:
        saves.append("" if card.where.file else tr("in "))
        saves.append(one_line(at), Style.parse("cyan") + place_style(card.where))
        saves.append("  ")
    if found is not None and a.now_ns > 0:
        saves.append(tr("predicted: ") if card.trial is not None else "", "dim")
        saves.append(f"{saving(found, answers=number == 1)} ", "green")
        after = behind(found, a.cards).lstrip(",， ")
        saves.append(f"  {re.sub(_UNBROKEN, NO_BREAK, after)}" if after else "", "dim")
    else:
        saves.append(unpredicted(p), "dim")
    parts.append(saves)
    if card.trial is not None:
        measured = one_line(measured_words(card.trial, alone=bool(found and found.behind)))
        parts.append(Text(measured, "bold green" if card.trial.interval[0] > 1 else "bold"))
    parts.append(Text(one_line(p.safety), "dim" if p.promise == "identical" else "yellow"))
    if p.apply_with:
        parts.append(_command("$ ", p.apply_with))
    parts.extend(code)
    grid = Table.grid()
    grid.add_column(width=5)
    grid.add_column(overflow="fold")
    grid.add_row(Text(f"  {number}", "bold"), Group(*parts))
    return Padding(grid, (1 if number == 1 else 0, 0, 0, 0))


def padded(text: str, width: int) -> str:
    """Return a text filled up to ``width`` columns; a Chinese character takes two."""
    return text + " " * max(width - cell_len(text), 0)


def place_style(where: Where) -> Style:
    """Return the style of a place: a link to the file, where its path is known in full; terminals show it as OSC 8."""
    file = where.file or ""
    return Style(link=PurePosixPath(file).as_uri()) if file.startswith("/") and "\0" not in file else Style()
