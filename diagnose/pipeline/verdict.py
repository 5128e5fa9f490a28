"""The first answer: is the queue shallow, full, or deep with gaps; and which finding answers for it.

What decides is the depth of the queue while the device works (its median over time), never a count of tasks and never
the idle share alone. On 94 real timelines of V100 to B200, MI250 and MI300X with more than half idle it was 1 to 8
where launching was the limit, and 45 or more where a full queue had holes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diagnose.analyzers import META
from diagnose.model.diagnosis import Finding, Partition, Prescription, Queue, Verdict
from diagnose.model.forecast import middle_ns
from diagnose.model.rules import RuleMeta
from diagnose.tables.thresholds import THRESHOLDS, Thresholds

__all__ = ["dominant", "dominant_with_savings", "is_shallow", "matches_verdict", "savings_by_rule", "verdict"]


def verdict(
    queue: Queue | None, partition: Partition | None, idle_by_cause: Mapping[str, float], at: Thresholds = THRESHOLDS
) -> Verdict:
    """Apply the procedure: a full device, a shallow queue, or a deep queue with gaps."""
    if queue is None or partition is None:
        return "no-gpu"
    if queue.idle_share <= at.significant_idle:
        return "kernel-bound"
    if partition.exposed_communication > queue.idle_share:
        return "gaps"  # the device waits for other ranks longer than for its host
    # While code is loaded and memory taken for the first time the host is the limit, however deep the queue was before.
    cold = sum(share for rule, share in idle_by_cause.items() if rule in META and META[rule].one_off)
    if is_shallow(queue, at) or (queue.idle_share > at.sparse_idle and cold >= at.cold_share * queue.idle_share):
        return "cpu-bound"
    return "gaps"


def is_shallow(queue: Queue, at: Thresholds = THRESHOLDS) -> bool:
    """Return whether the host has hardly a lead while the device works."""
    if queue.busy_depth_p50 is None:
        return queue.idle_share > at.sparse_idle and queue.late_share >= at.sparse_late
    return queue.busy_depth_p50 <= at.shallow_depth


def matches_verdict(found: Verdict, rule: RuleMeta) -> bool:
    """Return whether a rule looks where the verdict points: at kernels on a full device, at idle time elsewhere."""
    if rule.kind == "state":
        return False
    if rule.kind == "run":
        return True
    if found == "no-gpu" or not rule.computes:
        return True
    return (rule.kind in ("trust", "idle")) != (found == "kernel-bound")


def savings_by_rule(prescriptions: Sequence[Prescription]) -> dict[str, float]:
    """Return what the best change for each finding is predicted to save a step, ns."""
    saved: dict[str, float] = {}
    for p in prescriptions:
        if p.predicted_step_ns is not None:
            saved[p.rule] = max(saved.get(p.rule, 0.0), middle_ns(*p.saves_ns))
    return saved


def dominant_with_savings(
    found: Verdict, findings: Sequence[Finding], step_ns: float, num_steps: int, saved: Mapping[str, float]
) -> Finding | None:
    """Return the finding that answers, where it is known what the best change for each saves (``saved``, by rule).

    A host without a device has to call its operators: most of what calling them takes stays whatever is changed.
    Where recording makes the dominant finding longer than it is, another one answers that recurs, takes 10 % of the
    step, and whose change saves more or nearly as much.
    """
    answer = dominant(found, findings, step_ns, num_steps)
    if found != "no-gpu" or answer is None or not META[answer.rule].inflated:
        return answer
    at = THRESHOLDS
    least_ns = max(at.near_share * saved.get(answer.rule, 0.0), at.dominant_share * step_ns)
    others = [
        f
        for f in findings
        if META[f.rule].explains
        and not (META[f.rule].inflated or META[f.rule].kind in ("trust", "state", "run"))
        and f.count >= at.recurs_in * num_steps
        and _cost_ns(f) >= at.known_share * step_ns
        and saved.get(f.rule, 0.0) >= least_ns
    ]
    return max(others, key=lambda f: saved[f.rule], default=answer)


def dominant(
    found: Verdict, findings: Sequence[Finding], step_ns: float, num_steps: int, at: Thresholds = THRESHOLDS
) -> Finding | None:
    """Return the finding that answers: what the whole run shows, where that costs most, else one of the step."""
    watched = [f for f in findings if META[f.rule].kind == "run"]
    of_step = _of_step(found, [f for f in findings if f not in watched], step_ns, num_steps, at)
    of_all = [f for f in watched if f.confidence != "low"]  # low: it came once
    of_run = max(of_all, key=lambda f: f.share_of(step_ns), default=None)
    if of_run is None or of_run.share_of(step_ns) < at.known_share:
        return of_step
    if of_step is None:
        return of_run
    near = at.near_share * (at.recurs_in if META[of_step.rule].inflated else 1.0)
    return of_run if of_run.share_of(step_ns) >= near * of_step.share_of(step_ns) else of_step


def _of_step(
    found: Verdict, findings: Sequence[Finding], step_ns: float, num_steps: int, at: Thresholds
) -> Finding | None:
    """Return the finding that answers, None where none looks where the verdict points; findings come largest first.

    It is the largest one, unless a step without its cause would hardly be shorter, or a step without another's cause
    would be much shorter. On a full device waiting answers that makes the step longer, where no kernel is wasteful, or
    none of which a step without it would be shorter, or where a step without the waiting would be shorter still. Time
    without a known cause is no answer beside a cause of 10 % of the step. Recording makes some causes longer than they
    are: where another one is nearly as large and recurs in most steps, it is preferred to one of those. Below 10 % of a
    step without a device one of those is no answer: a host that computes has to call operators, its optimizer's too.
    Of several such causes nearly as large the one that claims its time first is the more exact: an optimizer that calls
    operators one by one, before all calls that are left.
    """
    costly = [f for f in findings if _cost_ns(f) >= at.dominant_share * step_ns]
    large = [f for f in findings if f.lost_ns >= at.dominant_share * step_ns]
    answers = [f for f in large if _is_in_verdict(found, f)]
    if found != "kernel-bound":
        answers = [f for f in costly if _is_in_verdict(found, f)] or answers
    elif any(_cost_ns(f) >= at.known_share * step_ns for f in answers):
        answers = [f for f in answers if f in costly]
    elif not any(f in costly for f in answers):
        waits = [f for f in costly if _is_waste(f) or (_is_waiting(f) and f.lost_ns >= at.known_share * step_ns)]
        clear = [f for f in waits if _is_waste(f)]
        answers = [f for f in clear if _cost_ns(f) >= at.known_share * step_ns] or answers or waits
    known = [f for f in answers if META[f.rule].explains]
    if any(_size_ns(f) >= at.known_share * step_ns for f in known):
        answers = known
    if found == "kernel-bound":
        wastes = [f for f in costly if _is_waste(f) and f not in answers]
        answer = _top_finding([*answers[:1], *wastes], at)
    else:
        answer = _top_finding(answers, at)
    if answer is None or not META[answer.rule].inflated or len(answer.tasks):
        return answer
    near = [
        f
        for f in [*answers, *(f for f in costly if len(f.tasks) and META[f.rule].computes and f not in answers)]
        if not (META[f.rule].inflated or META[f.rule].kind == "trust")
        and _cost_ns(f) >= at.near_share * _cost_ns(answer)
        and f.count >= at.recurs_in * num_steps
    ]
    preferred = max(near, key=_cost_ns, default=answer)
    if found == "no-gpu" and preferred is answer:
        preferred = _most_specific(answers, answer, at)
    is_minor = preferred is answer and _size_ns(answer) < at.known_share * step_ns
    return None if found == "no-gpu" and is_minor else preferred


def _is_in_verdict(found: Verdict, finding: Finding) -> bool:
    """Return whether a finding lies where the verdict points; on a full device, also where it names kernels."""
    return matches_verdict(found, META[finding.rule]) or (found == "kernel-bound" and len(finding.tasks) > 0)


def _top_finding(findings: Sequence[Finding], at: Thresholds) -> Finding | None:
    """Return the first finding, or one that costs more by a replay of all: much more, where recording inflates it."""
    if not findings or any(f.relief_ns is None for f in findings):
        return next(iter(findings), None)
    most = max(findings, key=_cost_ns)
    factor = at.clear_factor if META[most.rule].inflated else at.distinct_factor
    return most if _cost_ns(most) >= factor * _cost_ns(findings[0]) else findings[0]


def _cost_ns(finding: Finding) -> float:
    """Return what a step without the cause saves, where that was replayed, else what the cause takes of it.

    Other work may take the time that a cause leaves; and a host that need not wait gets ahead, which saves more than
    the pause itself.
    """
    return finding.lost_ns if finding.relief_ns is None else finding.relief_ns


def _size_ns(finding: Finding) -> float:
    """Return the larger of what a cause takes and what a step without it saves."""
    return max(finding.lost_ns, _cost_ns(finding))


def _is_waiting(finding: Finding) -> bool:
    rule = META[finding.rule]
    return rule.kind == "idle" and rule.explains


def _is_waste(finding: Finding) -> bool:
    """Return whether it is waiting that a full device need not have, and that recording does not make longer."""
    rule = META[finding.rule]
    return _is_waiting(finding) and finding.relief_ns is not None and not rule.inflated and rule.cause != "pause"


def _most_specific(answers: Sequence[Finding], answer: Finding, at: Thresholds) -> Finding:
    """Return, of the causes that are nearly as large and that recording inflates too, the one that claims first."""
    alike = [f for f in answers if META[f.rule].inflated and _cost_ns(f) >= at.near_share * _cost_ns(answer)]
    return min(alike, key=lambda f: META[f.rule].host_order or 0, default=answer)
