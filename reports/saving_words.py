"""What a change saves, in words, and which changes the predictions of a first screen count with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diagnose.answer.cards import Card, Prediction, gains_nothing
from diagnose.model.diagnosis import Prescription
from diagnose.reports.format import duration, enumeration
from diagnose.reports.language import tr

__all__ = ["behind", "gain", "saving", "unpredicted"]


def gain(p: Prescription, each: Mapping[str, Prediction]) -> str:
    """Return what a change saves in words, "" where nothing is predicted."""
    if p.id not in each:
        return tr("no gain on its own: other work is the bottleneck") if gains_nothing(p) else ""
    found = each[p.id]
    least, most = map(duration, found.range_ns)
    words = saving(found)
    if found.is_promise and least != most:
        words += tr(" ({words})", words=tr("{low} to {high}", low=least, high=most))
    return f"{words}{behind(found)}"


def saving(p: Prediction) -> str:
    """Return what a change saves, and of which finding's time; of a wide range and without a replay the most."""
    saved_ns = p.saves_ns if p.is_promise else p.range_ns[1]
    if p.of_ns is None and p.has_steps:
        words, most = "saves {time} per step", "saves up to {time} per step"
    elif p.of_ns is None:
        words, most = "saves {time}", "saves up to {time}"
    elif saved_ns < p.of_ns:
        words, most = "saves {time} of the {part}", "saves up to {time} of the {part}"
    else:
        words = "saves {time}: {part} here, {rest} in other work"
        most = "saves up to {time}: {part} here, {rest} in other work"
    part, rest = duration(p.of_ns), duration(saved_ns - (p.of_ns or 0.0))
    return tr(words if p.is_promise else most, time=duration(saved_ns), part=part, rest=rest)


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
    if p.is_enabled:
        return tr(", only after {changes}", changes=changes)
    if p.is_uncovered and len(p.behind) > 1:
        return tr(", after {changes}, which uncover more of it", changes=changes)
    if p.is_uncovered:
        return tr(", after {changes}, which uncovers more of it", changes=changes)
    return tr(", after {changes}", changes=changes)
