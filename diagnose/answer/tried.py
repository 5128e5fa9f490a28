"""What trials decide: which changes made the step faster or slower, and what is still offered after them."""

from __future__ import annotations

from typing import Literal, TypeAlias

from diagnose.model.diagnosis import Diagnosis, Forecast, Trial
from diagnose.model.statistics import leaning, shows_no_difference

__all__ = ["Certainty", "TrialVerdict", "certainty", "offered_chain", "took_longer", "trial_of", "verdict"]

TrialVerdict: TypeAlias = Literal["gain", "drifted", "even", "loss"]
Certainty: TypeAlias = Literal["certain", "no difference", "probably faster", "probably slower", "open"]


def trial_of(d: Diagnosis, name: str) -> Trial | None:
    """Return the trial that measured a change alone, None without one."""
    return next((t for t in d.trials if t.kind == "single" and t.id == name and not t.failure), None)


def took_longer(d: Diagnosis) -> frozenset[str]:
    """Return the ids of changes that alone made the step longer, for certain or probably."""
    single = (t for t in d.trials if t.kind == "single" and not t.failure)
    return frozenset(t.id for t in single if verdict(t) == "loss" or certainty(t) == "probably slower")


def offered_chain(d: Diagnosis) -> tuple[Forecast, ...]:
    """Return the waterfall without the changes that made the step longer, as far as it was replayed without them."""
    chain = d.waterfall.forecasts if d.waterfall is not None else ()
    longer = took_longer(d)
    if d.waterfall is None or not chain or not longer.intersection(chain[-1].ids):
        return chain
    known = {f.ids: f for f in (*d.waterfall.combinations, *chain)}
    left = tuple(name for name in chain[-1].ids if name not in longer)
    subsets = [left[:count] for count in range(len(left) + 1)]
    if all(ids in known for ids in subsets):
        return tuple(known[ids] for ids in subsets)
    return tuple(f for f in chain if not longer.intersection(f.ids))


def verdict(trial: Trial) -> TrialVerdict:
    """Return what the interval and the losses show together."""
    low, high = trial.interval
    if low > 1:
        return "drifted" if trial.numerics == "drifted" else "gain"
    return "loss" if high < 1 else "even"


def certainty(trial: Trial) -> Certainty:
    """Return whether a difference is certain, and if not in which direction the middle lies."""
    if verdict(trial) != "even":
        return "certain"
    if shows_no_difference(trial):
        return "no difference"
    direction = leaning(trial.speed_up, trial.interval)
    return "probably faster" if direction == "faster" else "probably slower" if direction == "slower" else "open"
