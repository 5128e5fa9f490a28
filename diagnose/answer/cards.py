"""The cards of the first screen, and the step predicted after exactly these."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from diagnose.answer.tried import offered_chain, took_longer, trial_of
from diagnose.model.diagnosis import Diagnosis, Prescription, Trial, Where
from diagnose.model.forecast import MAX_RANGE, Forecast
from diagnose.model.frozen import dataclass
from diagnose.model.limits import MIN_GAIN_SHARE
from diagnose.model.rules import LATE_RANKS
from diagnose.model.words import Words
from diagnose.text.numbers import duration

__all__ = ["Card", "Prediction", "cards", "gains_nothing", "late_rank", "possible_step", "predictions"]

MAX_CARDS = 3
MIN_LEAST = 0.05  # of the most that a change saves: below it only the most is stated
MIN_FACTOR = 1.1  # a step that becomes less than a tenth faster is not shown as a gain
SAME = 0.1  # of what a step without a finding saves: a change that saves less or more by this is explained


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
    of_ns: float | None = None  # what a step without its finding saves, where the change clearly saves less or more
    is_uncovered: bool = False  # after the changes before it there is more to save than now

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
    def has_least(self) -> bool:
        """Return whether what it saves at least is worth a number."""
        least, most = self.range_ns
        return self.is_replayed and least >= MIN_LEAST * most

    @property
    def saves_elsewhere(self) -> bool:
        """Return whether it saves clearly more than a step without its finding does."""
        return self.of_ns is not None and self.saves_ns > self.of_ns

    @property
    def is_narrow(self) -> bool:
        """Return whether the step afterwards can be stated, and not only between which ends it lies."""
        return self.is_promise and self.high_ns <= MAX_RANGE * self.low_ns

    @property
    def bound(self) -> Words:
        """Return what is known of the step afterwards where it cannot be stated: an end that says something."""
        low, high = duration(self.low_ns), duration(self.high_ns)
        if self.high_ns <= MAX_RANGE * self.low_ns and self.high_ns <= (1 - MIN_GAIN_SHARE) * self.before_ns:
            return Words("{low} to {high}", {"low": low, "high": high})
        if self.before_ns >= MIN_FACTOR * self.high_ns:
            return Words(
                "{high} or less: at least {factor} × faster",
                {"high": high, "factor": f"{self.before_ns / self.high_ns:.1f}"},
            )
        return Words("{low} at best; this recording does not show it closer", {"low": low})


@dataclass(frozen=True, slots=True)
class Card:
    """One change of the first screen."""

    prescription: Prescription
    prediction: Prediction | None  # None where the recorded steps do not show what it saves
    finding: int | None  # number of its finding in the report, from 1
    where: Where | None
    trial: Trial | None  # where it was measured alone
    rank: int | None = None  # the one that it is for: the others wait for it


def predictions(d: Diagnosis, *, is_sure: bool = True) -> dict[str, Prediction]:
    """Return what each change is predicted to do, by its id.

    A change of the waterfall counts behind those before it, so that the savings of one report add up to its step then;
    any other counts alone. What is below a hundredth of the step is no prediction. Unless ``is_sure`` the
    recording shows at most what a change saves.
    """
    alone = {p.id: p for p in reversed(d.prescriptions)}
    worth = {f.rule: f.worth_ns for f in reversed(d.findings)}
    has_steps, least = d.source.found_steps_by != "none", MIN_GAIN_SHARE * d.step_ns
    found: dict[str, Prediction] = {}
    for before, after in pairwise(offered_chain(d)):
        p = alone.get(after.ids[-1])
        enabled = p is not None and bool(before.ids) and p.saves_ns[1] < least
        ends, span = (before.step_ns, after.step_ns, after.low_ns, after.high_ns), (before.low_ns, before.high_ns)
        found[after.ids[-1]] = Prediction(
            *ends, before.ids, enabled, is_replayed=is_sure, before_range_ns=span, has_steps=has_steps
        )
    for name, p in alone.items():
        is_worth = worth.get(p.rule, 1.0) > 0  # a change for what is no saving has none
        if is_worth and name not in found and p.predicted_step_ns is not None and all(map(math.isfinite, p.saves_ns)):
            low, high = d.step_ns - p.saves_ns[1], d.step_ns - p.saves_ns[0]
            middle = min(max(p.predicted_step_ns, low), high)
            replayed = p.basis == "replay" and is_sure
            found[name] = Prediction(d.step_ns, middle, low, high, is_replayed=replayed, has_steps=has_steps)
    return {
        name: _explained(p, worth.get(alone[name].rule, 0.0)) if name in alone else p
        for name, p in found.items()
        if p.saves_ns >= least or p.range_ns[1] >= max(least, 1.0)
    }


def _explained(p: Prediction, worth_ns: float) -> Prediction:
    """Return a prediction with what explains that it differs from what the step saves without the finding."""
    if not p.is_promise or not 0 < worth_ns < math.inf or abs(p.saves_ns - worth_ns) < SAME * worth_ns:
        return p
    return replace(p, is_uncovered=p.saves_ns > worth_ns) if p.behind else replace(p, of_ns=worth_ns)


def cards(d: Diagnosis, each: Mapping[str, Prediction]) -> tuple[Card, ...]:
    """Return the changes of the first findings, at most three: one for each finding, in the order of the findings.

    A change of the answering finding stands there even if no replay shows what it saves.
    """
    if d.dominant is None:
        return ()
    return tuple(_card(d, p, each.get(p.id)) for p in offered(d, each)[:MAX_CARDS])


def offered(d: Diagnosis, each: Mapping[str, Prediction]) -> list[Prescription]:
    """Return one change for each finding that has one, in the order of the findings."""
    known = {p.id: p for p in reversed(d.prescriptions)}
    refuted = took_longer(d)
    chain = offered_chain(d)
    of_chain = [known[name] for f in chain[-1:] for name in f.ids if name in known]
    if not of_chain:
        of_chain = sorted((p for p in known.values() if p.id in each), key=lambda p: -each[p.id].saves_ns)
    found: list[Prescription] = []
    for finding in d.findings:
        mine = [p for p in of_chain if p.rule == finding.rule and p.id in each and p.id not in refuted]
        if not mine and finding.rule == d.dominant:
            mine = [p for p in d.prescriptions if p.rule == finding.rule and _is_shown_unpredicted(d, p, each)]
            mine = [p for p in mine if p.id not in refuted]
        found += [p for p in mine[:1] if p not in found]
    return found


def _is_shown_unpredicted(d: Diagnosis, p: Prescription, each: Mapping[str, Prediction]) -> bool:
    """Return whether nothing is predicted of a change, rather than that it saves nothing."""
    return p.id in each or p.predicted_step_ns is None or late_rank(d) is not None


def gains_nothing(p: Prescription) -> bool:
    """Return whether a replay of the change shows that it saves less than a hundredth of the step."""
    return (
        p.basis == "replay" and p.predicted_step_ns is not None and p.saves_ns[1] < MIN_GAIN_SHARE * p.predicted_step_ns
    )


def possible_step(d: Diagnosis, shown: tuple[Card, ...]) -> tuple[Prediction | None, int]:
    """Return the step after exactly these cards, None without a prediction; and how many changes are offered in all."""
    chain = offered_chain(d)
    in_all = len(chain[-1].ids) if chain else 0
    ids = tuple(card.prescription.id for card in shown if card.prediction is not None)
    known: dict[tuple[str, ...], Forecast] = {f.ids: f for f in chain}
    if d.waterfall is not None:
        known |= {f.ids: f for f in d.waterfall.combinations}
    last = known.get(ids)
    if ids and last is not None:
        return Prediction(d.step_ns, last.step_ns, last.low_ns, last.high_ns, is_replayed=True), max(in_all, len(shown))
    return None, max(in_all, len(shown))


def late_rank(d: Diagnosis) -> int | None:
    """Return the rank that the others wait for, None where there is none or they take turns."""
    if d.job is None:
        return None
    return d.job.late_ranks[0] if d.job.late_ranks else d.job.begins_late


def _card(d: Diagnosis, p: Prescription, prediction: Prediction | None) -> Card:
    at = next((i for i, f in enumerate(d.findings) if f.rule == p.rule), None)
    places = [*p.edits, *(d.findings[at].where if at is not None else ())]
    where = next((w for w in places if w.file), places[0] if places else None)
    of_late = p.rule == d.dominant and (d.dominant == LATE_RANKS or (d.job is not None and bool(d.job.late_ranks)))
    rank = late_rank(d) if of_late else None
    return Card(p, prediction, None if at is None else at + 1, where, trial_of(d, p.id), rank)
