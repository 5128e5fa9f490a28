"""What trials measured of a change, and what is still offered after them."""

from __future__ import annotations

from typing import Literal, TypeAlias

from diagnose.model.diagnosis import Diagnosis, Trial
from diagnose.model.forecast import Forecast
from diagnose.model.statistics import leaning
from diagnose.model.trial_methods import shows_no_difference
from diagnose.reports.format import duration
from diagnose.reports.language import tr

__all__ = ["TrialVerdict", "certainty", "measured_words", "offered_chain", "took_longer", "trial_of", "verdict"]

TrialVerdict: TypeAlias = Literal["gain", "drifted", "even", "loss"]


def trial_of(d: Diagnosis, name: str) -> Trial | None:
    """Return the trial that measured a change alone, None without one."""
    return next((t for t in d.trials if t.kind == "single" and t.id == name and not t.failure), None)


def took_longer(d: Diagnosis) -> frozenset[str]:
    """Return the ids of changes that alone made the step longer, for certain or probably."""
    single = (t for t in d.trials if t.kind == "single" and not t.failure)
    return frozenset(t.id for t in single if verdict(t) == "loss" or leaning(t.speed_up, t.interval) == "slower")


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


def certainty(trial: Trial) -> str:
    """Return that no difference is certain and in which direction the middle lies, "" where one is certain."""
    if verdict(trial) != "even":
        return ""
    if shows_no_difference(trial):
        return tr("no difference")
    match leaning(trial.speed_up, trial.interval):
        case "faster":
            return tr("no certain difference, probably faster")
        case "slower":
            return tr("no certain difference, probably slower")
        case _:
            return tr("no certain difference")


def measured_words(trial: Trial, *, alone: bool = False) -> str:
    """Return the measurement of a trial in words: step, speed-up and interval, and what became of the losses.

    ``alone`` names it as that of the change alone, where its prediction is for the step after other changes.
    """
    low, high = trial.interval
    steps = trial.steps_ms
    times = f"{duration(steps[0] * 1e6)} → {duration(steps[1] * 1e6)}, " if steps is not None else ""
    known = {
        "identical": tr("losses identical"), "within": tr("losses within noise"), "drifted": tr("losses drifted"),
    }  # fmt: skip
    losses = known.get(trial.numerics, tr("losses unknown"))
    span = tr("{low} to {high}", low=f"{low:.2f}", high=f"{high:.2f}")
    facts = ", ".join(filter(None, (f"{times}{trial.speed_up:.2f} × ({span})", certainty(trial), losses)))
    return tr("measured alone {times}", times=facts) if alone else tr("measured {times}", times=facts)
