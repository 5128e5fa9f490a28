"""What a change saves and what trials measured of it, in words, and which changes a prediction counts with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from diagnose.answer.cards import Card, Prediction, certainty, gains_nothing
from diagnose.model.diagnosis import Prescription, Trial
from diagnose.reports.format import duration, enumeration
from diagnose.reports.language import tr

CERTAINTY = {
    "no difference": "no difference",
    "probably faster": "probably faster, not certain",
    "probably slower": "probably slower, not certain",
    "open": "not certain",
}
LOSSES = {"identical": "losses identical", "within": "losses within noise", "drifted": "losses drifted"}


def gain(p: Prescription, each: Mapping[str, Prediction]) -> str:
    """Return what a change saves in words, "" where nothing is predicted."""
    if p.id not in each:
        return tr("no saving predicted") if gains_nothing(p) else ""
    found = each[p.id]
    least, most = map(duration, found.range_ns)
    has_range = found.is_promise and least != most
    words = saving(found)
    if has_range:
        words += tr(" ({words})", words=tr("{low} to {high}", low=least, high=most))
    return f"{words}{behind(found)}"


def saving(p: Prediction) -> str:
    """Return what a change saves; of a wide range the most."""
    if not p.is_promise:
        return tr("saves up to {time} per step" if p.has_steps else "saves up to {time}", time=duration(p.most_ns))
    return tr("saves {time} per step" if p.has_steps else "saves {time}", time=duration(p.saves_ns))


def unpredicted(p: Prescription) -> str:
    """Return that nothing is predicted of a change, and what shows it."""
    why = tr(": no replay of these steps shows it")
    if p.trial_method not in ("", "by hand"):
        why = tr(": diagnose prove --apply {change} measures it", change=p.id)
    return tr("saving not predicted") + why


def behind(p: Prediction, cards: Sequence[Card] = ()) -> str:
    """Return after which changes a prediction counts, in words that follow the saving.

    Changes that are among the ``cards`` are named by their numbers, the others by their ids.
    """
    if not p.behind or not (p.is_promise or p.is_enabled):  # of all that a change saves at most, none comes before
        return ""
    numbers = {card.prescription.id: str(i) for i, card in enumerate(cards, 1)}
    listed = [numbers[name] for name in p.behind if name in numbers]
    others = [name for name in p.behind if name not in numbers]
    numbered = tr("change {num}") if len(listed) == 1 else tr("changes {num}")
    named = [numbered.replace("{num}", enumeration(listed))] if listed else []
    changes = enumeration([*named, *others])
    if p.is_enabled:
        return tr(", only after {changes}", changes=changes)
    if p.is_uncovered:
        return tr(", after {changes} (without: up to {part})", changes=changes, part=duration(p.of_ns))
    return tr(", after {changes}", changes=changes)


def certainty_words(trial: Trial) -> str:
    """Return that no difference is certain and in which direction the middle lies, "" where one is certain."""
    if trial.doubt == "interrupted":
        return tr("not certain yet")
    return tr(CERTAINTY.get(certainty(trial), ""))


def measured_words(trial: Trial, *, alone: bool = False) -> str:
    """Return the measurement of a trial in words: step, speed-up and interval, and what became of the losses.

    ``alone`` names it as that of the change alone, where its prediction is for the step after other changes.
    """
    low, high = trial.interval
    steps = " → ".join(duration(ms * 1e6) for ms in trial.steps_ms or ())
    losses = tr(LOSSES.get(trial.numerics, "losses unknown"))
    span = tr("{low} to {high}", low=f"{low:.2f}", high=f"{high:.2f}")
    facts = ", ".join(filter(None, (steps, f"{trial.speed_up:.2f} × ({span})", certainty_words(trial), losses)))
    return tr("measured alone {times}", times=facts) if alone else tr("measured {times}", times=facts)


def factor_words(factor: tuple[float, float, float]) -> str:
    """Return "2.3 × (1.9 to 2.6 ×)", "8.7 × (4.4 × or more)" where nothing limits it, "1.1 ×" without a range."""
    low, middle, high = factor
    span = "" if f"{low:.1f}" == f"{high:.1f}" else f" ({factor_range(factor)})"
    return f"{middle:.1f} ×{span}"


def factor_range(factor: tuple[float, float, float]) -> str:
    """Return "1.9 to 2.6 ×", "4.4 × or more" where nothing limits it."""
    low, _, high = factor
    if math.isinf(high):
        return tr("{low} × or more", low=f"{low:.1f}")
    return tr("{low} to {high} ×", low=f"{low:.1f}", high=f"{high:.1f}")
