"""The first screen as Markdown, for an issue or a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.model.diagnosis import Diagnosis
from diagnose.reports.answer import Action, Answer
from diagnose.reports.factors import factor_words
from diagnose.reports.format import duration, place
from diagnose.reports.language import tr
from diagnose.reports.measured import measured_words
from diagnose.reports.saving_words import behind, gain, saving
from diagnose.text.plain_text import one_line, whole_line

__all__ = ["as_markdown", "outcome"]


def as_markdown(d: Diagnosis, a: Answer) -> str:
    """Return headline, steps and actions, and what it was recorded on."""
    lines = [f"**{a.pill}: {one_line(a.headline)}**", ""]
    lines += [outcome(a), ""] if outcome(a) else []
    if a.record_again:
        lines += [tr("Record again first: {why}", why=one_line(a.record_again)), "", f"    {whole_line(a.command)}", ""]
    lines += [a.view, ""] if a.view else []
    for number, action in enumerate(a.actions, 1):
        lines += [f"{number}. {_line(action, a.actions)}"]
        code = action.prescription.diff or action.prescription.after
        if code:
            fence = "```"
            while fence in code:
                fence += "`"
            lines += ["", f"   {fence}", *(f"   {line}" for line in code.splitlines()), f"   {fence}", ""]
    lines += [a.checked, ""] if a.checked else []
    lines += [one_line(a.to_try[0]), "", f"    {whole_line(a.to_try[1])}", ""] if a.to_try[0] else []
    lines += [f"- {one_line(caution)}" for caution in a.cautions]
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


def _line(action: Action, actions: Sequence[Action]) -> str:
    p, found = action.prescription, action.prediction
    at = " " + tr("on rank {num}", num=action.rank) if action.rank is not None else ""
    at += " " + tr("at {place}", place=_code_span(place(action.where, 60))) if action.where is not None else ""
    saves = f": {saving(found)}{behind(found, actions)}" if found is not None else ""
    if found is None and gain(p, {}):
        saves = f": {gain(p, {})}"
    measured = ""
    if action.trial is not None:
        measured = f"; {measured_words(action.trial, alone=bool(found and found.behind))}"
        saves = saves and f": {tr('predicted: ')}{saves.removeprefix(': ')}"
    return f"**{one_line(p.title)}**{at}{saves}{measured}. {one_line(p.safety).capitalize()}."
