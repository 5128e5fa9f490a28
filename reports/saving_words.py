"""What a change saves, in words, and which changes the predictions of a first screen count with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diagnose.answer.cards import Card, Prediction
from diagnose.model.diagnosis import Prescription
from diagnose.reports.format import duration, enumeration
from diagnose.reports.language import tr

__all__ = ["behind", "gain", "saving", "unpredicted"]


def gain(p: Prescription, each: Mapping[str, Prediction]) -> str:
    """Return what a change saves in words, "" where nothing is predicted."""
    if p.id not in each:
        is_hidden = p.basis == "replay" and p.predicted_step_ns is not None
        return tr("no gain on its own: other work is the bottleneck") if is_hidden else ""
    found = each[p.id]
    least, most = map(duration, found.range_ns)
    words = saving(found)
    if found.is_promise and least != most:
        words += tr(" ({words})", words=tr("{low} to {high}", low=least, high=most))
    return f"{words}{behind(found)}"


def saving(p: Prediction) -> str:
    """Return what a change saves, in words; of a wide range and without a replay what it saves at most."""
    if not p.is_promise:
        words = "saves up to {time} a step" if p.has_steps else "saves up to {time}"
        return tr(words, time=duration(p.range_ns[1]))
    return tr("saves {time} a step" if p.has_steps else "saves {time}", time=duration(p.saves_ns))


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
    if not p.behind:
        return ""
    numbers = {card.prescription.id: str(i) for i, card in enumerate(cards, 1)}
    listed = [numbers[name] for name in p.behind if name in numbers]
    others = [name for name in p.behind if name not in numbers]
    numbered = tr("change {num}") if len(listed) == 1 else tr("changes {num}")
    named = [numbered.replace("{num}", enumeration(listed))] if listed else []
    changes = enumeration([*named, *others])
    return tr(", only after {changes}", changes=changes) if p.is_enabled else tr(", after {changes}", changes=changes)
