"""What the first screen of every report holds: the answer, the step now and then, and the changes that lead there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from itertools import pairwise
from typing import Literal, TypeAlias

from diagnose.model.diagnosis import Diagnosis, Prescription, Trial, Where
from diagnose.model.frozen import dataclass
from diagnose.model.job import LATE_RANKS
from diagnose.model.limits import MIN_GAIN_SHARE
from diagnose.reports import headline as words
from diagnose.reports.beside_recording import is_off_mean
from diagnose.reports.language import tr
from diagnose.reports.measured import offered_chain, took_longer, trial_of

__all__ = [
    "Action",
    "Answer",
    "Prediction",
    "Tone",
    "answer",
    "keeps_numbers",
    "of_busy",
    "predictions",
]

MAX_ACTIONS = 3
MIN_PART_SHARE = 0.02  # of the step: less has no name beside its bar
MIN_COMMUNICATION = 0.25  # of the step, exposed, and more than is idle: the step is bound by communication

Tone: TypeAlias = Literal["bad", "warn", "good", "info"]

_PILLS: Mapping[str, tuple[str, str, Tone]] = {
    "cpu-bound": ("CPU-bound", "the host does not keep the GPU's queue filled", "bad"),
    "gaps": ("GPU stalls", "the queue is filled, and still the GPU has idle intervals", "bad"),
    "kernel-bound": ("GPU-bound", "the queue is full: the time is in the GPU's own work", "warn"),
    "no-gpu": ("CPU only", "no device in this recording: everything is about the host", "info"),
}


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one change does to the step: the same numbers wherever a report names the change."""

    before_ns: float  # the step as it is, or with the changes before this one
    after_ns: float
    low_ns: float
    high_ns: float
    behind: tuple[str, ...] = ()  # ids of the changes that are made before it
    is_enabled: bool = False  # alone it gains nothing: it pays only behind those
    is_replayed: bool = False
    before_range_ns: tuple[float, float] | None = None  # of the step before, where earlier changes leave it open
    has_steps: bool = True  # else the whole recording stands for one

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


@dataclass(frozen=True, slots=True)
class Action:
    """One change of the first screen."""

    prescription: Prescription
    prediction: Prediction | None  # None where the recorded steps do not show what it saves
    finding: int | None  # number of its finding in the report, from 1
    where: Where | None
    trial: Trial | None  # where it was measured alone
    rank: int | None = None  # the one that it is for: the others wait for it


@dataclass(frozen=True, slots=True)
class Answer:
    """The first screen."""

    pill: str
    meaning: str  # of the pill, a few words
    tone: Tone
    headline: str  # at most MAX_WORDS words
    now_ns: float
    after: Prediction | None  # all predicted changes together; None where none gains
    num_changes: int  # that lead there
    actions: tuple[Action, ...]
    record_again: str  # why, "" for a recording that can be relied on
    command: str  # that records again
    checked: str  # what was looked for, where little or nothing was found
    to_try: tuple[str, str]  # what no recording judges and a trial may, and its command
    cautions: tuple[str, ...]  # about the numbers above
    is_measured: bool = False  # ``after`` was proven by running the script, not predicted
    parts: tuple[tuple[str, float], ...] = ()  # of the bar of the step now: names and shares of the step
    run_steps: int = 0  # that the share of the run is of
    view: str = ""  # whose step and changes these are, where there are several ranks
    run_share: float | None = None  # of the run that the finding which answers takes outside the usual step
    mean_ns: float | None = None  # the run's mean step, where the recorded ones are clearly longer or shorter

    @property
    def factor(self) -> tuple[float, float, float] | None:
        """Return how many times faster the step can become: least, predicted, most (infinity where all can go)."""
        if self.after is None or self.after.after_ns <= 0:
            return None
        a = self.after
        return self.now_ns / a.high_ns, self.now_ns / a.after_ns, self.now_ns / a.low_ns if a.low_ns > 0 else math.inf


def answer(d: Diagnosis) -> Answer:
    """Return the first screen of a diagnosis."""
    why = words.record_again(d)
    each = {} if why else predictions(d)
    actions = () if why else _actions(d, each)
    proven = None if why else _proven(d)
    after, num = proven or _together(d, actions)
    pill, meaning, tone = _pill(d, why)
    return Answer(
        pill=tr(pill),
        meaning=tr(meaning),
        tone=tone,
        headline=words.headline(d, why),
        now_ns=d.step_ns,
        after=after,
        num_changes=num,
        actions=actions,
        record_again=why,
        command=words.command(d) if why else "",
        checked=words.checked(d) if d.dominant is None and not why else "",
        to_try=("", "") if why else words.to_try(d),
        cautions=tuple(words.cautions(d, why)),
        is_measured=proven is not None,
        parts=() if why else _parts(d),
        run_steps=d.watched_steps,
        view="" if why else words.view(d),
        run_share=None if why else _run_share(d),
        mean_ns=d.plain_steps.mean_ns if not why and d.plain_steps is not None and is_off_mean(d) else None,
    )


def predictions(d: Diagnosis) -> dict[str, Prediction]:
    """Return what each change is predicted to do, by its id.

    A change of the best combination counts behind those before it, so that the savings of one report add up to its
    step then; any other counts alone. What is below a hundredth of the step is no prediction.
    """
    alone = {p.id: p for p in reversed(d.prescriptions)}
    found: dict[str, Prediction] = {}
    has_steps = d.source.found_steps_by != "none"
    for before, after in pairwise(offered_chain(d)):
        p = alone.get(after.ids[-1])
        enabled = p is not None and bool(before.ids) and p.saves_ns[1] < MIN_GAIN_SHARE * d.step_ns
        ends, span = (before.step_ns, after.step_ns, after.low_ns, after.high_ns), (before.low_ns, before.high_ns)
        found[after.ids[-1]] = Prediction(
            *ends, before.ids, enabled, is_replayed=True, before_range_ns=span, has_steps=has_steps
        )
    for name, p in alone.items():
        if name in found or p.mean_step_ns is not None or p.predicted_step_ns is None:
            continue
        if all(map(math.isfinite, p.saves_ns)):
            low, high = d.step_ns - p.saves_ns[1], d.step_ns - p.saves_ns[0]
            middle = min(max(p.predicted_step_ns, low), high)
            is_replayed = p.basis == "replay"
            found[name] = Prediction(d.step_ns, middle, low, high, is_replayed=is_replayed, has_steps=has_steps)
    least = MIN_GAIN_SHARE * d.step_ns
    return {name: p for name, p in found.items() if p.saves_ns >= least or p.range_ns[1] >= max(least, 1.0)}


def keeps_numbers(p: Prescription) -> bool:
    """Return whether a change is known to leave the numbers as they are."""
    return p.safety.startswith(("same numbers", tr("same numbers")))


def _actions(d: Diagnosis, each: Mapping[str, Prediction]) -> tuple[Action, ...]:
    """Return at most three changes, those that save most; of the best combination in its order, as they build on it.

    A change for what comes in some steps only stands where its share of the run's mean step has it stand.
    """
    known = {p.id: p for p in reversed(d.prescriptions)}
    chain = [name for f in offered_chain(d)[-1:] for name in f.ids if name in known and name in each]
    least = MIN_GAIN_SHARE * d.step_ns
    if not chain:
        of_rule: dict[str, str] = {}  # a rule's changes are ways of doing one thing
        for name in sorted((n for n in each if n in known), key=lambda n: -each[n].saves_ns):
            of_rule.setdefault(known[name].rule, name)
        chain = list(of_rule.values())
    refuted = took_longer(d)
    first = [name for name in _of_late_rank(d) if name not in refuted]
    worth = [name for name in chain if each[name].saves_ns >= least and name not in (*refuted, *first)]
    first += _without_prediction(d, [known[name].rule for name in (*first, *worth)])
    share = {name: each[name].saves_ns / d.step_ns for name in worth} if d.step_ns else {}
    for name, of_run in _of_some_steps(d, {known[name].rule for name in (*first, *worth)}).items():
        share[name] = of_run
        worth.insert(next((i for i, other in enumerate(worth) if share[other] < of_run), len(worth)), name)
    best = sorted(worth, key=lambda n: -share[n])[: MAX_ACTIONS - len(first)]
    return tuple(_action(d, known[name], each.get(name)) for name in [*first, *(n for n in worth if n in best)])


def _of_some_steps(d: Diagnosis, listed: Set[str]) -> dict[str, float]:
    """Return for each rule but these the first change for what comes in some steps only, with its share of the run."""
    found: dict[str, tuple[str, float]] = {}
    for p in d.prescriptions:
        if p.mean_step_ns and p.rule not in listed and p.id not in took_longer(d):
            found.setdefault(p.rule, (p.id, sum(p.saves_ns) / 2 / p.mean_step_ns))
    return {name: of_run for name, of_run in found.values() if of_run >= MIN_GAIN_SHARE}


def _of_late_rank(d: Diagnosis) -> list[str]:
    """Return the change that lets the rank come in time which the others wait for, where that is the answer."""
    if d.job is None or not (d.dominant == LATE_RANKS or d.job.late_ranks):
        return []
    return [p.id for p in d.prescriptions if p.rule == d.dominant][:1]


def _without_prediction(d: Diagnosis, rules: Sequence[str]) -> list[str]:
    """Return the change of the finding that answers, where no replay shows what it saves and no other is listed."""
    finding = next((f for f in d.findings if f.rule == d.dominant), None)
    if finding is None or finding.rule in rules or finding.share_of(d.step_ns or 1.0) < MIN_GAIN_SHARE:
        return []
    fitting = (p for p in d.prescriptions if p.rule == finding.rule and p.id not in took_longer(d))
    return [p.id for p in fitting if p.predicted_step_ns is None or p.mean_step_ns is not None][:1]


def _action(d: Diagnosis, p: Prescription, prediction: Prediction | None) -> Action:
    at = next((i for i, f in enumerate(d.findings) if f.rule == p.rule), None)
    places = [*p.edits, *(d.findings[at].where if at is not None else ())]
    where = next((w for w in places if w.file), places[0] if places else None)
    is_late = p.id in _of_late_rank(d)
    return Action(
        p, prediction, None if at is None else at + 1, where, trial_of(d, p.id), words.late_rank(d) if is_late else None
    )


def _together(d: Diagnosis, actions: tuple[Action, ...]) -> tuple[Prediction | None, int]:
    """Return the step after all changes of the best combination; without one after the best single change."""
    predicted = [a.prediction for a in actions if a.prediction is not None]
    if not predicted:
        return None, 0
    chain = offered_chain(d)
    if len(chain) > 1:
        last = chain[-1]
        return Prediction(d.step_ns, last.step_ns, last.low_ns, last.high_ns, is_replayed=True), len(last.ids)
    return max(predicted, key=lambda p: p.saves_ns), 1


def _proven(d: Diagnosis) -> tuple[Prediction, int] | None:
    """Return the step as the best trial measured it, faster for certain and with the same losses; None without one."""
    gains = [t for t in d.trials if t.kind != "without" and not t.failure and t.interval[0] > 1]
    best = max((t for t in gains if t.numerics != "drifted"), key=lambda t: t.speed_up, default=None)
    if best is None:
        return None
    ends = (d.step_ns / best.speed_up, d.step_ns / best.interval[1], d.step_ns / best.interval[0])
    return Prediction(d.step_ns, *ends), max(len(best.ids), 1)


def _pill(d: Diagnosis, why: str) -> tuple[str, str, Tone]:
    pill, meaning, tone = _PILLS[d.verdict]
    p = d.partition
    if p is not None and p.exposed_communication >= MIN_COMMUNICATION and p.exposed_communication > p.idle:
        pill, meaning, tone = "Communication-bound", "collectives that no computation hides dominate the step", "bad"
    if why:
        return pill, meaning, "warn"
    if _run_share(d) is not None:
        return "Run stalls", "the usual step is not what takes the run's time", "bad"
    if d.dominant is None:
        return pill, meaning, "good" if d.verdict == "kernel-bound" or not d.findings else "info"
    legend = d.legends.get(d.dominant)
    return (legend.heading, legend.meaning, "bad") if legend and legend.heading else (pill, meaning, tone)


def _parts(d: Diagnosis) -> tuple[tuple[str, float], ...]:
    """Return what the step consists of, as far as it has a name: the device's work, then the causes of idle time."""
    p, busy = d.partition, of_busy(d)
    work = {} if p is None else {"compute": p.compute, "communication alone": p.exposed_communication}
    work |= {} if p is None else {"copies alone": p.exposed_copy}
    causes = d.idle_by_cause if p is not None else d.host_by_cause
    found = [] if busy is None else [busy]
    found += [*work.items(), *sorted(causes.items(), key=lambda item: -item[1])]
    return tuple((name, share) for name, share in found if share >= MIN_PART_SHARE)


def of_busy(d: Diagnosis) -> tuple[str, float] | None:
    """Return what the finding that answers takes of the device's own work: its rule and its share of the step."""
    found = next((f for f in d.findings if f.rule == d.dominant), None)
    if found is None or d.partition is None or not len(found.tasks) or found.rule in d.idle_by_cause:
        return None
    share = found.share_of(d.step_ns) if d.step_ns > 0 else 0.0
    return (found.rule, share) if 0 < share <= d.partition.compute else None


def _run_share(d: Diagnosis) -> float | None:
    """Return the share of the run that the finding which answers takes, where it rests on all steps of the run."""
    finding = next((f for f in d.findings if f.rule == d.dominant), None)
    return finding.share if finding is not None else None
