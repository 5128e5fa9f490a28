"""The first screen for a terminal: the answer, the step now and then, and the changes that lead there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from diagnose.answer.cards import MAX_CARDS, Card
from diagnose.answer.screen import Answer
from diagnose.reports.format import duration, line_of, percent, plural, said
from diagnose.reports.language import tr, translated
from diagnose.reports.saving_words import behind, factor_words, measured_words, saving, unpredicted
from diagnose.reports.text_charts import (
    NO_BREAK,
    bar,
    command,
    listed,
    note,
    padded,
    place_style,
    unbroken,
)
from diagnose.reports.text_findings import Layout, code_block, code_lines
from diagnose.text.plain_text import one_line

TONES = {"bad": "bold red", "warn": "bold yellow", "good": "bold green", "info": "bold cyan"}
BAR_INDENT = 17  # columns before what a bar consists of
UNBROKEN = (
    r"(?<=\bafter) (?=change)|"
    r"(?<=change) (?=\d)|(?<=changes) (?=\d)|(?<=\d) (?=and \d)|(?<=\d and) (?=\d)"
)


class Form(NamedTuple):
    """How much of its parts the answer has."""

    num_code_lines: int = 0  # of the first change
    is_brief: bool = False  # whether only the first change is there in full
    num_trials: int = 4  # in brief only
    has_gap: bool = True  # an empty line before what it is from
    num_cautions: int | None = None  # then the other changes have a line each


def first_screen(a: Answer, layout: Layout, form: Form) -> Iterator[RenderableType]:
    """Yield the headline, the bars, the actions or the command to record again, and what limits them."""
    yield Text.assemble((said(a.pill), TONES[a.tone]), "  ", (unbroken(one_line(said(a.headline))), "bold"))
    if a.record_again:
        words = tr("This recording cannot show what limits usual steps. Record again with:")
        yield Padding(Text(words, "yellow"), (1, 0, 0, 2))
        yield command("  $ ", a.command)
    else:
        yield from _bars(a, layout.width)
        if a.view is not None:
            yield note(said(a.view))
        if a.no_change is not None:
            others = tr("Changes for smaller findings:") if a.cards else ""
            after = f" {others}" if others and not a.next_command else ""
            yield Padding(Text(said(a.no_change) + after, "yellow"), (1, 0, 0, 2))
            yield from [command("  $ ", a.next_command)] if a.next_command else []
            yield from [note(others, "yellow")] if others and a.next_command else []
        yield from _cautions(a, form) if a.warns_first else ()
        yield from _cards(a, layout, form)
    if a.checked is not None:
        yield Padding(Text(one_line(said(a.checked)), "green"), (1, 0, 0, 2))
    if a.to_try is not None and not (form.is_brief and a.cards):
        yield Padding(Text(one_line(said(a.to_try))), (a.checked is None, 0, 0, 2))
        yield command("  >>> " if a.try_command.startswith("diagnose.") else "  $ ", a.try_command)
    yield from () if a.warns_first else _cautions(a, form)
    if form.has_gap:
        yield Text("")


def _cards(a: Answer, layout: Layout, form: Form) -> Iterator[RenderableType]:
    for number, card in enumerate(a.cards, 1):
        is_small = number > 1 or a.no_change is not None
        parts = list(_card(card, a, number, is_brief=form.is_brief and is_small))
        if number > 1 and form.num_cautions is not None:
            parts = [_in_a_line(card, layout.width - 5)]
        if form.num_code_lines and number == 1:
            lines = code_lines(card.prescription, neighbours=0)
            inside = layout._replace(width=layout.width - 5)
            parts += code_block(card.prescription, lines, form.num_code_lines, inside)
        yield Padding(listed(str(number), *parts, width=5), (number == 1 and (form.has_gap or not is_small), 0, 0, 0))
    if a.measure_own and form.has_gap and not form.is_brief:
        yield note(tr("To measure your own edit of the script:"))
        yield command("  $ ", a.measure_own)


def _cautions(a: Answer, form: Form) -> Iterator[RenderableType]:
    shown = a.cautions[: form.num_cautions]
    yield from (note(f"! {unbroken(one_line(said(caution)))}", "yellow") for caution in shown)
    if left := len(a.cautions) - len(shown):
        yield note(tr("and {warnings}", warnings=plural(left, "more warning")), "yellow")


def _in_a_line(card: Card, width: int) -> Text:
    """Return the title of a change and, if there is room, what it saves."""
    words = one_line(card.prescription.title)
    saves = f"  {saving(replace(card.prediction, has_steps=False))}" if card.prediction is not None else ""
    text = Text.assemble((words, "bold"), (saves if cell_len(words + saves) <= width else "", "green"))
    text.truncate(width, overflow="ellipsis")
    return text


def _bars(a: Answer, width: int) -> Iterator[RenderableType]:
    """Yield what the run loses, the step now with what it consists of, and the step possible, in proportion."""
    if a.now_ns <= 0:
        return
    room = max(width - 50, 10)  # columns: its name and the step before it, the factor and its range after it
    yield Text("")
    yield _bar(tr("step now"), duration(a.now_ns), (bar(1.0, room), "red" if a.cards else "blue"))
    if a.parts:
        yield note(_bar_parts(a.parts, width - BAR_INDENT), indent=BAR_INDENT)
    if a.after is None:
        return
    name, words = tr("step possible"), "{low} to {high}, simulated from this recording"
    if a.is_measured:
        name, words = tr("step proven"), "{low} to {high}, measured by running the script"
    low, high = duration(a.after.low_ns), duration(a.after.high_ns)
    picture = bar(a.after.after_ns / a.now_ns, room), "green" if a.factor else "dim"
    yield _bar(name, duration(a.after.after_ns), picture, f"  {factor_words(a.factor)}" if a.factor else "")
    notes = [tr(words, low=low, high=high)] if low != high else []
    if a.num_changes > len(a.cards) == MAX_CARDS and not a.is_measured:
        notes.append(tr("with the top {num} of {all} changes", num=len(a.cards), all=a.num_changes))
    if notes:
        yield note(", ".join(notes), indent=BAR_INDENT)


def _bar_parts(parts: Sequence[tuple[str, float]], room: int) -> str:
    """Return the largest parts of a bar with their shares, at most four and as many as fit in one line."""
    words = ", ".join(f"{translated(one_line(name))} {percent(share)}" for name, share in parts)
    if len(parts) <= 2 or (len(parts) <= 4 and cell_len(words) <= room):
        return unbroken(words)
    smallest = min(parts, key=lambda part: part[1])
    return _bar_parts([part for part in parts if part != smallest], room)


def _bar(name: str, number: str, picture: tuple[str, str], after: str = "") -> Text:
    return Text.assemble(f"  {padded(name, 13)}  ", (f"{number:>8}  ", "bold"), picture, (after, "bold green"))


def _card(card: Card, a: Answer, number: int, *, is_brief: bool) -> Iterator[RenderableType]:
    p, found, trial = card.prescription, card.prediction, card.trial
    yield Text(one_line(p.title), "bold")
    saves = Text(f"{tr('rank {num}', num=card.rank)}  " if card.rank is not None else "")
    if card.where is not None and (at := line_of(card.where)):
        saves.append(one_line(at), place_style(card.where)).append("  ")
    if found is not None and a.now_ns > 0:
        saves.append(tr("predicted: ") if trial is not None else "", "dim")
        shown = replace(found, has_steps=False) if is_brief else found  # without "per step"
        saves.append(unbroken(saving(shown)), "green")
        after = behind(found, a.cards).lstrip(",， ")
        saves.append(after and f"  {re.sub(UNBROKEN, NO_BREAK, unbroken(after))}", "dim")
    else:
        saves.append(unpredicted(p), "dim")
    style = "dim" if p.promise == "identical" else "yellow"
    if number > 1 and not is_brief:  # in a word; how to check it is in the report
        same = tr("same numbers") if p.safety == tr("same numbers") else tr("same numbers, on a condition")
        saves.rstrip()
        saves.append(" · ", "dim").append(same if p.promise == "identical" else tr("may change the numbers"), style)
    yield saves
    if trial is not None:
        measured = one_line(measured_words(trial, alone=bool(found and found.behind)))
        yield Text(unbroken(measured), "bold green" if trial.interval[0] > 1 else "bold")
    if number == 1 and not is_brief:
        yield Text(one_line(p.safety), style)
    if p.apply_with:
        yield command("$ ", p.apply_with)
