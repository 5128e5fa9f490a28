"""The first screen as Markdown, for an issue or a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.answer.cards import Card
from diagnose.answer.screen import Answer
from diagnose.model.diagnosis import Diagnosis
from diagnose.reports.format import duration, place, said
from diagnose.reports.language import tr
from diagnose.reports.saving_words import behind, factor_words, measured_words, saving
from diagnose.text.plain_text import one_line, whole_line


def as_markdown(d: Diagnosis, a: Answer) -> str:
    """Return headline, steps and actions, and what it was recorded on."""
    lines = [f"**{said(a.pill)}: {one_line(said(a.headline))}**", ""]
    lines += [outcome(a), ""] if outcome(a) else []
    if a.record_again is not None:
        lines += [
            tr("Record again first: {why}", why=one_line(said(a.record_again))),
            "",
            f"    {whole_line(a.command)}",
            "",
        ]
    lines += [said(a.view), ""] if a.view is not None else []
    if a.no_change is not None:
        lines += [said(a.no_change), ""]
        lines += [f"    {whole_line(a.next_command)}", ""] if a.next_command else []
        lines += [tr("Changes for smaller findings:"), ""] if a.cards else []
    for number, card in enumerate(a.cards, 1):
        lines += [f"{number}. {_line(card, a.cards)}"]
        code = card.prescription.diff or card.prescription.after
        if code:
            fence = "```"
            while fence in code:
                fence += "`"
            lines += ["", f"   {fence}", *(f"   {line}" for line in code.splitlines()), f"   {fence}", ""]
    lines += [said(a.checked), ""] if a.checked is not None else []
    lines += [one_line(said(a.to_try)), "", f"    {whole_line(a.try_command)}", ""] if a.to_try is not None else []
    lines += [f"- {one_line(said(caution))}" for caution in a.cautions]
    device = ", ".join(map(one_line, d.source.devices[:1])) or "CPU"
    lines.append(f"\n{_code_span(d.source.command or d.source.path)} · {device}")
    return "\n".join(lines)


def _code_span(text: str) -> str:
    """Return a text as code, between more backticks than it has in a row."""
    fence = "`"
    while fence in text:
        fence += "`"
    pad = " " if len(fence) > 1 else ""
    return f"{fence}{pad}{one_line(text)}{pad}{fence}"


def outcome(a: Answer) -> str:
    """Return "178 ms → 77.0 ms, 2.3 × (1.9 to 2.6 ×)", "" where nothing is predicted."""
    if a.after is None:
        return ""
    times = f"{duration(a.now_ns)} → {duration(a.after.after_ns)}"
    return f"{times}, {factor_words(a.factor)}" if a.factor is not None else times


def _line(card: Card, cards: Sequence[Card]) -> str:
    p, found = card.prescription, card.prediction
    at = " " + tr("on rank {num}", num=card.rank) if card.rank is not None else ""
    at += " " + tr("at {place}", place=_code_span(place(card.where, 60))) if card.where is not None else ""
    saves = f": {saving(found)}{behind(found, cards)}" if found is not None else ""
    measured = ""
    if card.trial is not None:
        measured = f"; {measured_words(card.trial, alone=bool(found and found.behind))}"
        saves = saves and f": {tr('predicted: ')}{saves.removeprefix(': ')}"
    safety = one_line(p.safety)
    return f"**{one_line(p.title)}**{at}{saves}{measured}. {safety[:1].upper()}{safety[1:]}."
