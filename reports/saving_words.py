"""What a change saves, in words, and which changes the predictions of a first screen count with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diagnose.model.diagnosis import Prescription
from diagnose.reports.answer import Action, Answer, Prediction
from diagnose.reports.format import duration, enumeration
from diagnose.reports.language import tr

__all__ = ["behind", "gain", "on_top", "saving", "unpredicted"]


def gain(p: Prescription, each: Mapping[str, Prediction]) -> str:
    """Return what a change saves in words, "" where nothing is predicted."""
    if p.mean_step_ns is not None and p.saves_ns[1] > 0:
        saved, mean = _range(*p.saves_ns), duration(p.mean_step_ns)
        return tr("saves {saved} of the run's mean step of {mean}", saved=saved, mean=mean)
    if p.id not in each:
        is_hidden = p.basis == "replay" and p.predicted_step_ns is not None
        return tr("no gain on its own: other work is the bottleneck") if is_hidden else ""
    found = each[p.id]
    least, most = map(duration, found.range_ns)
    words = saving(found)
    if found.is_replayed and least != most:
        span = tr("{low} to {high}", low=least, high=most) if found.range_ns[0] > 0 else tr("up to {most}", most=most)
        words += tr(" ({words})", words=span)
    return f"{words}{behind(found)}"


def saving(p: Prediction) -> str:
    """Return what a change saves, in words; without a replay of it what it saves at most."""
    if not p.is_replayed and p.range_ns[0] <= 0:
        words = "saves up to {time} a step" if p.has_steps else "saves up to {time}"
        return tr(words, time=duration(p.range_ns[1]))
    return tr("saves {time} a step" if p.has_steps else "saves {time}", time=duration(p.saves_ns))


def unpredicted(p: Prescription) -> str:
    """Return that nothing is predicted of a change, and what shows it."""
    why = tr(": no replay of these steps shows it")
    if p.trial_method not in ("", "by hand"):
        why = tr(": diagnose prove --apply {change} measures it", change=p.id)
    return tr("saving not predicted") + why


def _range(least: float, most: float) -> str:
    low, high = duration(least), duration(most)
    if least <= 0:
        return tr("up to {most}", most=high)
    return high if low == high else tr("{low} to {high}", low=low, high=high)


def behind(p: Prediction, actions: Sequence[Action] = ()) -> str:
    """Return after which changes a prediction counts, in words that follow the saving.

    Changes that are among the ``actions`` are named by their numbers, the others by their ids.
    """
    if not p.behind:
        return ""
    numbers = {action.prescription.id: str(i) for i, action in enumerate(actions, 1)}
    listed = [numbers[name] for name in p.behind if name in numbers]
    others = [name for name in p.behind if name not in numbers]
    numbered = tr("change {num}") if len(listed) == 1 else tr("changes {num}")
    named = [numbered.replace("{num}", enumeration(listed))] if listed else []
    changes = enumeration([*named, *others])
    return tr(", only after {changes}", changes=changes) if p.is_enabled else tr(", after {changes}", changes=changes)


def on_top(a: Answer) -> str:
    """Return which changes shorten the run beyond the step possible, in words that follow that; "" where none does."""
    numbers = [str(i) for i, action in enumerate(a.actions, 1) if action.prediction is None]
    if a.after is None or a.is_measured or a.run_share is None or not numbers:
        return ""
    one, several = tr("; change {num} comes on top"), tr("; changes {num} come on top")
    return (one if len(numbers) == 1 else several).replace("{num}", enumeration(numbers))
