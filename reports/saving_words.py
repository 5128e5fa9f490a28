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
        return tr("no saving predicted") if gains_nothing(p) else ""
    found = each[p.id]
    least, most = map(duration, found.range_ns)
    has_range = found.is_promise and least != most
    words = saving(found, is_alone=not has_range)
    if has_range:
        words += tr(" ({words})", words=tr("{low} to {high}", low=least, high=most))
    return f"{words}{behind(found)}"


def saving(p: Prediction, *, is_alone: bool = True) -> str:
    """Return what a change saves, and of which finding's time; of a wide range its ends, or the most.

    Args:
        p: the prediction.
        is_alone: whether no range follows, which may reach beyond the finding's time.
    """
    if not p.is_promise:
        words = "saves up to {time} per step" if p.has_steps else "saves up to {time}"
        if p.of_ns is not None and duration(p.of_ns) != duration(p.most_ns):
            words = "saves up to {time} of the {part}"
        return tr(words, time=duration(p.most_ns), part=duration(p.of_ns))
    words = "saves {time} per step" if p.has_steps else "saves {time}"
    if p.saves_elsewhere:
        words = "saves {time} ({part} of this finding, {rest} elsewhere)"
        words = "saves {time} per step ({part} of this finding, {rest} elsewhere)" if p.has_steps else words
    elif p.part_ns is not None and is_alone:
        words = "saves {time} of the {part}"
    part = p.part_ns or p.saves_ns
    return tr(words, time=duration(p.saves_ns), part=duration(part), rest=duration(abs(p.saves_ns - part)))


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
