"""The trials of the prescriptions, and the diagnosis after them, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from diagnose.answer.screen import answer
from diagnose.answer.tried import verdict
from diagnose.model.diagnosis import Diagnosis, Trial
from diagnose.reports.format import duration, percent, said
from diagnose.reports.language import tr, translated
from diagnose.reports.measured import certainty_words
from diagnose.text.plain_text import one_line

__all__ = ["after", "trials"]


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


def _name(trial: Trial) -> str:
    name = one_line(trial.id)
    if trial.kind == "single":
        return name
    return (
        tr("together: {name}", name=name) if trial.kind == "combination" else tr("together, without {name}", name=name)
    )


def _failed(trial: Trial) -> Text:
    return Text.assemble((tr("failed") + " ", "red"), _name(trial), (f"  {one_line(trial.failure)}", "dim"))


def _line(trial: Trial) -> Text:
    low, high = trial.interval
    style = {"gain": "green", "loss": "red"}.get(verdict(trial), "yellow")
    parts = ["  " + tr("numbers: {numbers}", numbers=_numbers(trial)), *_times(trial)]
    return Text.assemble(
        (f"{trial.speed_up:.2f} × ", style),
        (f"({tr('{low} to {high}', low=f'{low:.2f}', high=f'{high:.2f}')})  ", "dim"),
        _name(trial),
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
