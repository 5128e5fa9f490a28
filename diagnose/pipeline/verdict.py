"""The first answer: is the queue shallow, full, or deep with gaps; and the sentence that states it.

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

__all__ = ["dominant", "headline", "is_shallow", "matches_verdict", "verdict"]

NAMES = frozenset({"Python", "Adam", "Adagrad", "Adadelta", "Adamax", "Muon", "Rprop", "Adafactor"})


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

    Where the device has gaps, it is the one without whose cause the step would be shortest; where no replay shows that,
    the one that takes most of it. On a full device it is the kernels' largest waste, as long as its going would save
    anything where another's would save 10 %; without one, waiting that costs the step something, or takes 10 % of it
    where no replay shows what it costs. Time without a known cause is no answer beside a cause of 10 % of the step.
    Recording makes some causes longer than they are: where another one is nearly as large and recurs in most steps, it
    is preferred to one of those.
    """
    costly = sorted((f for f in findings if _cost_ns(f) >= at.answering_share * step_ns), key=lambda f: -_cost_ns(f))
    large = [f for f in findings if f.lost_ns >= at.answering_share * step_ns]
    answers = _in_scope(found, costly) or _in_scope(found, large)
    if found == "kernel-bound":
        answers = _in_scope(found, large)
        if any(_cost_ns(f) >= at.known_share * step_ns for f in answers):
            answers = [f for f in answers if f in costly]
        least = at.known_share * step_ns
        waiting = (f for f in costly if _is_waiting(f) and (f.relief_ns is not None or f.lost_ns >= least))
        answers = answers or list(waiting)
    known = [f for f in answers if META[f.rule].explains]
    if any(max(f.lost_ns, _cost_ns(f)) >= at.known_share * step_ns for f in known):
        answers = known
    if not answers or not META[answers[0].rule].inflated:
        return answers[0] if answers else None
    near = (
        f
        for f in answers
        if not (META[f.rule].inflated or META[f.rule].kind == "trust")
        and _cost_ns(f) >= at.near_share * _cost_ns(answers[0])
        and f.count >= at.recurs_in * num_steps
    )
    return next(near, answers[0])


def _in_scope(found: Verdict, findings: Sequence[Finding]) -> list[Finding]:
    return [f for f in findings if matches_verdict(found, META[f.rule])]


def _cost_ns(finding: Finding) -> float:
    """Return what a step without the cause saves, where that was replayed, else what the cause takes of it.

    Other work may take the time that a cause leaves; and a host that need not wait gets ahead, which saves more than
    the pause itself.
    """
    return finding.lost_ns if finding.relief_ns is None else finding.relief_ns


def _is_waiting(finding: Finding) -> bool:
    rule = META[finding.rule]
    return rule.kind == "idle" and rule.explains


def headline(found: Verdict, queue: Queue | None, step_ns: float, largest: Finding | None) -> str:
    """Return the verdict in one sentence; the verdict's own word stands before it in every report."""
    step = f"{step_ns / 1e6:.1f} ms step"
    if queue is None:
        state = f"CPU-only recording: {step_ns / 1e6:.1f} ms per step"
    elif found == "kernel-bound":
        state = f"The GPU is busy {queue.busy_share:.0%} of each {step}"
    elif found == "cpu-bound":
        state = f"The GPU is idle {queue.idle_share:.0%} of each {step} because the host does not keep its queue filled"
    elif is_shallow(queue) or queue.busy_depth_p50 is None:
        state = f"The GPU is idle {queue.idle_share:.0%} of each {step}"
    else:
        state = (
            f"The GPU is idle {queue.idle_share:.0%} of each {step}, in gaps of a queue otherwise "
            f"{queue.busy_depth_p50:,.0f} launches deep"
        )
    if largest is None:
        return f"{state}, and nothing stands out as waste."
    return f"{state}; the largest cost: {_lower(largest.title)} ({largest.lost_ns / step_ns:.0%} of the step)."


def _lower(title: str) -> str:
    """Return a title as it goes on within a sentence; names keep their capital."""
    first = title.split(" ", 1)[0].removesuffix("'s")
    return title if first in NAMES or first != first.capitalize() else title[0].lower() + title[1:]
