"""The first answer: is the queue shallow, full, or deep with gaps; and which finding answers for it.

What decides is the depth of the queue while the device works (its median over time), never a count of tasks and never
the idle share alone. On 94 real timelines of V100 to B200, MI250 and MI300X with more than half idle it was 1 to 8
where launching was the limit, and 45 or more where a full queue had holes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diagnose.analyzers import META
from diagnose.model.diagnosis import Finding, Partition, Queue, Verdict
from diagnose.model.rules import RuleMeta
from diagnose.tables.thresholds import THRESHOLDS, Thresholds

__all__ = ["dominant", "is_shallow", "matches_verdict", "verdict"]


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
    if found == "no-gpu" or not rule.computes:
        return True
    return (rule.kind in ("trust", "idle")) != (found == "kernel-bound")


def dominant(
    found: Verdict, findings: Sequence[Finding], step_ns: float, num_steps: int, at: Thresholds = THRESHOLDS
) -> Finding | None:
    """Return the finding that answers, None where none looks where the verdict points; findings come largest first.

    On a full device where no kernel is a waste, waiting of 10 % of the step answers. Time without a known cause is no
    answer beside a cause of 10 % of the step. Recording makes some causes longer than they are: where another one is
    nearly as large and recurs in most steps, it is preferred to one of those. A finding whose cause costs next to
    nothing, since other work would take its time, gives way to one that costs 10 %.
    """
    large = [f for f in findings if f.lost_ns >= at.answering_share * step_ns]
    answers = [f for f in large if matches_verdict(found, META[f.rule])]
    if not answers and found == "kernel-bound":
        answers = [f for f in large if _is_waiting(f) and f.lost_ns >= at.known_share * step_ns]
    costly = [f for f in answers if _relief_share(f, step_ns) >= at.known_share and META[f.rule].explains]
    if costly:
        answers = [f for f in answers if _relief_share(f, step_ns) >= at.answering_share]
    known = [f for f in answers if META[f.rule].explains]
    if known and known[0].lost_ns >= at.known_share * step_ns:
        answers = known
    if not answers or not META[answers[0].rule].inflated:
        return answers[0] if answers else None
    near = (
        f
        for f in answers
        if not (META[f.rule].inflated or META[f.rule].kind == "trust")
        and f.lost_ns >= at.near_share * answers[0].lost_ns
        and f.count >= at.recurs_in * num_steps
    )
    return next(near, answers[0])


def _relief_share(finding: Finding, step_ns: float) -> float:
    """Return what a step without the cause saves, where that was replayed, else what it loses."""
    return (finding.lost_ns if finding.relief_ns is None else finding.relief_ns) / step_ns


def _is_waiting(finding: Finding) -> bool:
    rule = META[finding.rule]
    return rule.kind == "idle" and rule.explains
