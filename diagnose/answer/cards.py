"""The cards of the first screen, and the step predicted after exactly these."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, TypeAlias

from diagnose.model.diagnosis import MAX_RANGE, Diagnosis, Forecast, Prescription, Trial, Where
from diagnose.model.limits import MIN_GAIN_SHARE
from diagnose.model.rules import LATE_RANKS
from diagnose.model.statistics import leaning, shows_no_difference

MAX_CARDS = 3
MIN_FACTOR = 1.1  # a step that becomes less than a tenth faster is not shown as a gain
SAME = 0.1  # of what a step without a finding saves: a change that saves more by this is said to be hidden before

# What trials decide: which changes made the step faster or slower, and what is still offered after them.

TrialVerdict: TypeAlias = Literal["gain", "drifted", "even", "loss"]
Certainty: TypeAlias = Literal["certain", "no difference", "probably faster", "probably slower", "open"]


def trial_of(d: Diagnosis, name: str) -> Trial | None:
    """Return the trial that measured a change alone, None without one."""
    return next((t for t in _measured_alone(d) if t.id == name), None)


def took_longer(d: Diagnosis) -> frozenset[str]:
    """Return the ids of changes that alone made the step longer, for certain or probably."""
    return frozenset(t.id for t in _measured_alone(d) if verdict(t) == "loss" or certainty(t) == "probably slower")


def _measured_alone(d: Diagnosis) -> list[Trial]:
    return [t for t in d.trials if t.kind == "single" and not t.failure]


def offered_chain(d: Diagnosis) -> tuple[Forecast, ...]:
    """Return the waterfall without the changes that made the step longer, as far as it was replayed without them."""
    chain, known, longer = d.waterfall.forecasts if d.waterfall is not None else (), _replays(d), took_longer(d)
    left = [name for forecast in chain[-1:] for name in forecast.ids if name not in longer]
    subsets = [tuple(left[:count]) for count in range(len(left) + 1)]
    if chain and all(ids in known for ids in subsets):
        return tuple(known[ids] for ids in subsets)
    return tuple(f for f in chain if not longer.intersection(f.ids))


def _replays(d: Diagnosis) -> dict[tuple[str, ...], Forecast]:
    """Return the replays of several changes, by their ids."""
    return {f.ids: f for f in (*d.waterfall.combinations, *d.waterfall.forecasts)} if d.waterfall is not None else {}


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
    return _LEANS.get(leaning(trial.speed_up, trial.interval), "open")


_LEANS: Mapping[str, Certainty] = {"faster": "probably faster", "slower": "probably slower"}


@dataclass(frozen=True, slots=True)
class Prediction:
    """What changes do to the step: the same numbers wherever a report names them."""

    before_ns: float  # the step as it is, or with the changes before this one
    after_ns: float
    low_ns: float
    high_ns: float
    behind: tuple[str, ...] = ()  # ids of the changes that are made before it
    is_enabled: bool = False  # alone it gains nothing: it pays only behind those
    is_replayed: bool = False
    before_range_ns: tuple[float, float] | None = None  # of the step before, where earlier changes leave it open
    has_steps: bool = True  # else the whole recording stands for one
    of_ns: float | None = None  # what a step without its finding saves, None where nothing is known of that

    @property
    def saves_ns(self) -> float:
        """Return what the step becomes shorter by."""
        return self.before_ns - self.after_ns

    @property
    def range_ns(self) -> tuple[float, float]:
        """Return the least and the most that it saves: what the changes before it leave open is not its own."""
        low_ns, high_ns = self.before_range_ns or (self.before_ns, self.before_ns)
        least, most = sorted((high_ns - self.high_ns, low_ns - self.low_ns))
        return max(min(least, self.saves_ns), 0.0), max(most, self.saves_ns)

    @property
    def is_promise(self) -> bool:
        """Return whether the range is narrow enough to state what is saved, and not only at most how much."""
        least, most = self.range_ns
        return self.is_replayed and most <= MAX_RANGE * least

    @property
    def most_ns(self) -> float:
        """Return the most that it saves where no narrower range is known: not more than a step without its finding."""
        most = self.range_ns[1]
        return most if self.of_ns is None else min(most, self.of_ns)

    @property
    def is_narrow(self) -> bool:
        """Return whether the step afterwards can be stated."""
        return self.is_promise and self.high_ns <= MAX_RANGE * self.low_ns

    @property
    def is_uncovered(self) -> bool:
        """Return whether after the changes before it there is clearly more to save than now."""
        return bool(self.behind) and self.of_ns is not None and self.saves_ns > (1 + SAME) * self.of_ns


@dataclass(frozen=True, slots=True)
class Card:
    """One change of the first screen."""

    prescription: Prescription
    prediction: Prediction | None  # None where the recorded steps do not show what it saves
    finding: int | None  # number of its finding in the report, from 1
    where: Where | None  # None if no line is known or the title names it
    trial: Trial | None  # of it alone
    rank: int | None = None  # the one that it is for: the others wait for it


def predictions(d: Diagnosis, *, is_sure: bool = True) -> dict[str, Prediction]:
    """Return what each change is predicted to do, by its id.

    A change of the waterfall counts behind those before it, so that the savings of one report add up to its step then;
    any other counts alone. What is below a hundredth of the step is no prediction. Unless ``is_sure`` the
    recording shows at most what a change saves.
    """
    changes = {p.id: p for p in reversed(d.prescriptions)}
    worth = {f.rule: f.worth_ns for f in reversed(d.findings) if math.isfinite(f.worth_ns)}
    of_ns = {name: worth.get(p.rule) or None for name, p in changes.items()}
    has_steps, least = d.source.found_steps_by != "none", MIN_GAIN_SHARE * d.step_ns
    found: dict[str, Prediction] = {}
    for before, after in pairwise(offered_chain(d)):
        name = after.ids[-1]
        found[name] = Prediction(
            before.step_ns,
            *after[2:],
            behind=before.ids,
            is_enabled=name in changes and bool(before.ids) and changes[name].saves_ns[1] < least,
            is_replayed=is_sure,
            before_range_ns=(before.low_ns, before.high_ns),
            has_steps=has_steps,
            of_ns=of_ns.get(name),
        )
    for name, p in changes.items():
        is_worth = worth.get(p.rule, 1.0) > 0  # a change for what is no saving has none
        if name not in found and is_worth and p.predicted_step_ns is not None and all(map(math.isfinite, p.saves_ns)):
            low, high = d.step_ns - p.saves_ns[1], d.step_ns - p.saves_ns[0]
            found[name] = Prediction(
                d.step_ns,
                min(max(p.predicted_step_ns, low), high),
                low,
                high,
                is_replayed=p.basis == "replay" and is_sure,
                has_steps=has_steps,
                of_ns=of_ns[name],
            )
    found = {name: p for name, p in found.items() if p.saves_ns >= least or p.range_ns[1] >= max(least, 1.0)}
    first = next((found[p.id] for p in offered(d, found) if p.id in found), None)
    if first is not None and not first.is_promise:  # nor is what others save after it
        return {name: replace(p, is_replayed=False) for name, p in found.items() if p.most_ns >= least}
    return found | _one_after_the_other(d, found)


def _one_after_the_other(d: Diagnosis, found: Mapping[str, Prediction]) -> dict[str, Prediction]:
    """Return the predictions of the cards' changes, each after those of the cards before it and after no others.

    Nothing is returned where these were not replayed.
    """
    known = _replays(d)
    ids = tuple(p.id for p in _on_screen(d, found) if p.id in found)
    prefixes = [ids[:num] for num in range(len(ids) + 1)]
    if all({*found[name].behind} <= {*ids} for name in ids) or not known.keys() >= {*prefixes}:
        return {}
    return {
        after.ids[-1]: replace(
            found[after.ids[-1]],
            before_ns=before.step_ns,
            after_ns=after.step_ns,
            low_ns=after.low_ns,
            high_ns=after.high_ns,
            behind=before.ids,
            before_range_ns=(before.low_ns, before.high_ns),
        )
        for before, after in pairwise(known[prefix] for prefix in prefixes)
    }


def cards(d: Diagnosis, each: Mapping[str, Prediction]) -> tuple[Card, ...]:
    """Return the changes of the first findings, at most three: one for each finding, in the order of the findings.

    A change of the answering finding stands there even if no replay shows what it saves.
    """
    if d.dominant is None:
        return ()
    return tuple(_card(d, p, each.get(p.id)) for p in _on_screen(d, each))


def _on_screen(d: Diagnosis, each: Mapping[str, Prediction]) -> list[Prescription]:
    """Return the changes of the cards: where the first one's saving can be stated, those of which it cannot stay out.

    Of all that are left the step afterwards is known then.
    """
    found = offered(d, each)
    if found and found[0].id in each and each[found[0].id].is_promise:
        found = [p for p in found if p.id in each and each[p.id].is_promise]
    else:  # the others by what each saves at most by itself
        found[1:] = sorted(found[1:], key=lambda p: -each[p.id].most_ns if p.id in each else 0.0)
    return found[:MAX_CARDS]


def offered(d: Diagnosis, each: Mapping[str, Prediction]) -> list[Prescription]:
    """Return one change for each finding that has one, in the order of the findings.

    For the finding that answers it may be one of which nothing is predicted, rather than that it saves nothing.
    """
    refuted = took_longer(d)
    left = {p.id: p for p in reversed(d.prescriptions) if p.id not in refuted}
    predicted = [left[name] for f in offered_chain(d)[-1:] for name in f.ids if name in left]
    predicted = predicted or sorted((p for p in left.values() if p.id in each), key=lambda p: -each[p.id].saves_ns)
    found: list[Prescription] = []
    for finding in d.findings:
        mine = [p for p in predicted if p.rule == finding.rule and p.id in each]
        if finding.rule == d.dominant:
            open_ones = (p for p in d.prescriptions if p.rule == finding.rule and p.id in left)
            mine += [p for p in open_ones if p.id in each or p.predicted_step_ns is None or late_rank(d) is not None]
        found += [p for p in mine[:1] if p not in found]
    return found


def gains_nothing(p: Prescription) -> bool:
    """Return whether a replay of the change shows that it saves less than a hundredth of the step."""
    step_ns = p.predicted_step_ns if p.basis == "replay" else None
    return step_ns is not None and p.saves_ns[1] < MIN_GAIN_SHARE * step_ns


def possible_step(d: Diagnosis, shown: tuple[Card, ...]) -> tuple[Prediction | None, int]:
    """Return the step after exactly these cards, None without a prediction; and how many changes are offered in all."""
    num = max(len(shown), *(len(f.ids) for f in offered_chain(d)), 0)
    known = {card.prescription.id: card.prediction for card in shown if card.prediction is not None}
    last = _replays(d).get(tuple(known)) if known and all(p.is_promise for p in known.values()) else None
    if last is None:
        return None, num
    after = Prediction(d.step_ns, last.step_ns, last.low_ns, last.high_ns, is_replayed=True)
    return after if after.is_narrow else None, num


def late_rank(d: Diagnosis) -> int | None:
    """Return the rank that the others wait for, None where there is none or they take turns."""
    return (*d.job.late_ranks, d.job.begins_late)[0] if d.job is not None else None


def _card(d: Diagnosis, p: Prescription, prediction: Prediction | None) -> Card:
    numbered = [(i, f) for i, f in enumerate(d.findings, 1) if f.rule == p.rule][:1]
    places = [*p.edits, *(w for _, f in numbered for w in f.where)]
    where = next((w for w in places if w.file), None)
    if where is not None and f"{(where.file or '').rpartition('/')[2]}:{where.line}" in p.title:
        where = None
    of_late = p.rule == d.dominant and (p.rule == LATE_RANKS or (d.job is not None and d.job.late_ranks))
    rank = late_rank(d) if of_late else None
    return Card(p, prediction, next((i for i, _ in numbered), None), where, trial_of(d, p.id), rank)
