"""What each prescription saves, and all of them one after the other: replayed on a few steps, never added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from diagnose.analyzers import META
from diagnose.changes import CHANGES, group_of
from diagnose.changes.common.prescribe import effect_of, is_moved
from diagnose.model.diagnosis import CriticalPath, Finding, Forecast, Prescription, Waterfall
from diagnose.model.limits import MIN_GAIN_SHARE
from diagnose.model.rules import TAKES_LEAD
from diagnose.replay.build import replay_base
from diagnose.replay.effects import Effect, cost_error
from diagnose.replay.predict import (
    Predicted,
    least_step_ns,
    path_shares,
    plain_ns,
    predict,
    predict_bound,
    replayed_ns,
    unchanged,
)
from diagnose.replay.simulate import critical_path, on_path, path_report, shares
from diagnose.replay.transforms import remove_cause
from diagnose.tables import Tables
from diagnose.tables.gaps import launches_unlinked
from diagnose.tables.host_gaps import is_paced_by_workers

MAX_UNKNOWN_SHARE = 0.1  # of the step, of idle time without a known cause: beyond it a replay shows too little
PACED = "The step waits for its batch as long as the workers load as they do, so nothing else makes it shorter."
_BOUND_BY = {
    "host": "the host: Python and operators between launches",
    "host alone": "the host: Python and operators",
    "compute": "the device's own kernels",
    "communication": "communication",
    "copy": "copies between host and device",
    "latency": "launch latency and pauses between tasks",
}


@dataclass(frozen=True, slots=True)
class Replayed:
    """Prescriptions with replayed savings, and what the replay rests on."""

    prescriptions: tuple[Prescription, ...]
    effects: Mapping[str, Effect] = field(default_factory=dict)  # by id: what was replayed
    error: float | None = None  # share by which the unchanged replay misses the step with usual delays
    path: Mapping[str, float] | None = None  # shares of the critical path by category
    on_path: Mapping[str, float] = field(default_factory=dict)  # by rule: share of the path that its cause lies on
    why_not: str = ""  # why savings stayed bounds
    relief_ns: Mapping[str, float] = field(default_factory=dict)  # by rule: what a step without its cause saves


def effect_in(t: Tables, finding: Finding | None, prescription: Prescription) -> Effect | None:
    """Return what a replay of the recorded steps does for a prescription, None where its savings stay bounds."""
    base = replay_base(t)
    if finding is None or base.period_ns <= 0 or base.refuses(META[finding.rule].cause):
        return None
    if finding.share is not None and META[finding.rule].kind != "run":  # the recorded steps have nothing of it
        return None
    effect = effect_of(t, finding, prescription)
    if effect is None:
        return None
    cause, change, limits = META[finding.rule].cause, CHANGES.get(prescription.id), [effect.limit_ns]
    if _hides_causes(t):
        limits.append(finding.lost_ns)
    if t.device_id < 0 and change is not None and change.is_within_share:
        limits.append(max(prescription.saves_ns))
    error = cost_error(t, finding, cause, t.steps.step_ns, is_moved=is_moved(prescription))
    return effect._replace(limit_ns=min(limits), error=error)


def after_prescription(
    t: Tables, before: Predicted, prescription: Prescription, effect: Effect | None, step_ns: float | None = None
) -> Predicted:
    """Return the step after one more prescription, whose savings are bounds as the rules gave them.

    The bounds are of ``step_ns``, without it of the replayed step.
    """
    if effect is None:
        return predict_bound(before, prescription.saves_ns, step_ns or prescription.mean_step_ns or t.steps.step_ns)
    return predict(t, before, effect)


def with_rare(replayed: Predicted, rare_ns: float) -> Predicted:
    """Return a replayed step with the part that the replayed steps do not hold."""
    return replace(replayed, low_ns=replayed.low_ns + rare_ns, high_ns=replayed.high_ns + rare_ns)


def replay_savings(
    t: Tables, found: Sequence[Finding], prescribed: Sequence[Prescription], rare_ns: float = 0.0
) -> Replayed:
    """Return the prescriptions with (least, most) from replays in which the stated part of the cause is taken away.

    ``rare_ns`` is the part of the step that the replayed steps do not hold.
    """
    prescribed = tuple(prescribed)
    if not found:
        return Replayed(prescribed)
    base = replay_base(t)
    if base.period_ns <= 0:
        return Replayed(prescribed, why_not="The steps have no length to replay.")
    if base.why_not and not base.is_hostless:
        return Replayed(prescribed, why_not=base.why_not)  # nor is its path the step's, nor its error one
    chain = critical_path(base.graph, base.times)
    by_rule = {f.rule: f for f in found}
    effects = {p.id: effect for p in prescribed if (effect := effect_in(t, by_rule.get(p.rule), p)) is not None}
    replayed = [_with_savings(t, p, effects[p.id], rare_ns) if p.id in effects else p for p in prescribed]
    return Replayed(
        tuple(sorted(replayed, key=by_value)),
        effects,
        base.error,
        path=shares(base.t, base.graph, chain),
        on_path={f.rule: on_path(t, base.graph, chain, f, META[f.rule].cause) for f in found},
        why_not=base.why_not,
        relief_ns=_relief_of(t, found),
    )


def _with_savings(t: Tables, p: Prescription, effect: Effect, rare_ns: float) -> Prescription:
    now = with_rare(unchanged(t), rare_ns)
    after = after_prescription(t, now, p, effect)
    if is_paced_by_workers(t, p.rule):
        after, effect = now, effect._replace(assumption=PACED)
    return replace(
        p,
        saves_ns=(now.step_ns - after.high_ns, now.step_ns - after.low_ns),
        predicted_step_ns=after.step_ns,
        basis="replay",
        assumes=effect.assumption,
    )


def by_value(p: Prescription) -> tuple[bool, float]:
    """Return the key that prescriptions are sorted by: what saves most first, and last what trains differently."""
    return p.promise == "other", -sum(p.saves_ns)


def _relief_of(t: Tables, found: Sequence[Finding]) -> dict[str, float]:
    """Return what the step saves without the cause of each of the largest findings, ns, as far as a graph shows it.

    Time that other work hides, or that another wait would take over, is lost but not saved. Without a device the step
    is one thread's time, of which no more is saved than lost. Where launches are not linked to tasks, or much of the
    idle time has no cause, the graph does not show what holds the device, and nothing is returned.
    """
    if launches_unlinked(t.tasks) or _hides_causes(t):
        return {}
    base, step_ns = replay_base(t), t.steps.step_ns
    # A device needs its pauses between tasks: what a change of theirs saves is all that can go.
    relief = {f.rule: 0.0 for f in found if META[f.rule].cause == "pause"}
    replayed = [f for f in found if f.rule not in relief and META[f.rule].kind not in ("state", "run")]
    replayed = [f for f in replayed if f.share is None and (f.lost_ns > 0 or META[f.rule].cause in TAKES_LEAD)]
    # Each of the largest findings costs a replay.
    for finding in replayed[:10]:
        rule = META[finding.rule]
        whole = replace(finding, facts={**finding.facts, "awaits_ranks": None})  # a step without it waits for no rank
        transform = remove_cause(t, whole, rule.cause, 1.0)
        if transform is None:
            continue
        step = replayed_ns if rule.inflated else plain_ns  # what recording adds to it is taken off the time itself
        graph = transform(base.graph)
        less_ns = (step(t, base.graph, ()) - step(t, graph, (transform,))) / base.period_ns * step_ns
        most_ns = step_ns - least_step_ns(t, graph) if t.device_id >= 0 else finding.lost_ns
        relief[finding.rule] = max(min(less_ns, most_ns), 0.0)
    return relief


def _hides_causes(t: Tables) -> bool:
    """Return whether much of the idle time has no cause: a change then saves no more than what its finding costs.

    What a replay shows beyond that may be the time of something else which the trace does not show.
    """
    if t.device_id < 0:
        return False
    unknown_ns = sum(ns for rule, ns in t.causes.totals().items() if rule in META and not META[rule].explains)
    return unknown_ns >= MAX_UNKNOWN_SHARE * t.steps.num * t.steps.step_ns


def waterfall(
    t: Tables, found: Sequence[Finding], replayed: Replayed, rare_ns: float = 0.0, *, combine: bool = False
) -> Waterfall | None:
    """Return the step after one prescription, two, …, each for another finding, replayed together; None without any.

    The findings come in their order. ``rare_ns`` is the part of the step that the replayed steps do not hold.
    ``combine`` replays every subset of them as well, which a page offers.
    """
    step_ns, state = t.steps.step_ns + rare_ns, with_rare(unchanged(t), rare_ns)
    chain = [Forecast((), "now", step_ns, step_ns, step_ns)]
    for p in _one_for_each(found, replayed):
        after = after_prescription(t, state, p, replayed.effects.get(p.id), step_ns)
        if state.step_ns - after.step_ns < MIN_GAIN_SHARE * step_ns:
            continue
        state = after
        chain.append(Forecast((*chain[-1].ids, p.id), p.title, state.step_ns, state.low_ns, state.high_ns))
    if len(chain) == 1:
        return None
    after_all = path_shares(t, state)
    largest = max(after_all, key=lambda name: after_all[name], default="")
    bound_by = _BOUND_BY.get("host alone" if largest == "host" and t.device_id < 0 else largest, "")
    return Waterfall(tuple(chain), bound_by, after_all, _combinations(t, replayed, chain, rare_ns) if combine else ())


def _combinations(t: Tables, replayed: Replayed, chain: Sequence[Forecast], rare_ns: float) -> tuple[Forecast, ...]:
    """Return the step with every subset of the waterfall's changes, made in its order; () where there are too many.

    Bit i of an index stands for change i, so that the entries of the waterfall itself are among them.
    """
    known = {p.id: p for p in replayed.prescriptions}
    listed = [known[name] for name in chain[-1].ids]
    # Changes of the waterfall whose 32 combinations a page offers; each costs a replay.
    if not 1 < len(listed) <= 5:
        return ()
    states = [with_rare(unchanged(t), rare_ns)]
    for index in range(1, 1 << len(listed)):
        last = index.bit_length() - 1
        p, before = listed[last], states[index & ~(1 << last)]
        states.append(after_prescription(t, before, p, replayed.effects.get(p.id), states[0].step_ns))
    ids = (tuple(p.id for i, p in enumerate(listed) if index >> i & 1) for index in range(1, len(states)))
    return chain[0], *(Forecast(of, "", s.step_ns, s.low_ns, s.high_ns) for of, s in zip(ids, states[1:], strict=True))


def path_of(t: Tables, replayed: Replayed, *, draw: bool = True) -> CriticalPath | None:
    """Return the critical path, with its segments where it is to be drawn; None where nothing was replayed."""
    if replayed.path is None or not draw:
        return None if replayed.path is None else CriticalPath(replayed.path)
    base = replay_base(t)
    i = t.steps.median_step
    end = int(t.steps.end[i]) if i + 1 < t.steps.num else t.steps.window_end
    return path_report(base.t, base.graph, base.times, (int(t.steps.start[i]), end), replayed.path)


def _one_for_each(found: Sequence[Finding], replayed: Replayed) -> list[Prescription]:
    """Return for each finding, in their order, the prescription that saves most of it.

    Of those that compile the model, which take the same launches and kernels, only the first is listed. One that keeps
    a compiled model from compiling again takes other time.
    """
    chosen: dict[str, Prescription] = {}
    for p in replayed.prescriptions:
        if p.id in replayed.effects or (p.mean_step_ns is not None and p.predicted_step_ns is not None):
            chosen.setdefault(p.rule, p)
    first: dict[str, Prescription] = {}
    for p in (chosen[f.rule] for f in found if f.rule in chosen and f.worth_ns > 0):
        group = group_of(p.id) if META[p.rule].cause != "compilation" else ""
        first.setdefault(group or p.id, p)
    return list(first.values())
