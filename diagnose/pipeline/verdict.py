"""The first answer: is the queue sparse, full, or dense with gaps; and the sentence that says so.

Its thresholds were calibrated on 37 real GPU traces (V100 to B200, MI250, MI300X):
traces that are limited by launching show 83 to 100 % late tasks, all others at most 21 % unless the recording is cold.
"""

from __future__ import annotations

from collections.abc import Mapping

from diagnose.analyzers import META
from diagnose.model.diagnosis import Finding, Queue, Verdict
from diagnose.model.rules import RuleMeta
from diagnose.tables.queue import SIGNIFICANT_IDLE

__all__ = ["headline", "matches_verdict", "verdict"]

# The queue is sparse where the device idles most of the time and most tasks start as soon as they are launched.
SPARSE_IDLE = 0.5
SPARSE_LATE = 0.5
NAMES = frozenset({"Python", "Adam", "Adagrad", "Adadelta", "Adamax", "Muon", "Rprop", "Adafactor"})


def verdict(queue: Queue | None, idle_by_cause: Mapping[str, float]) -> Verdict:
    """Apply the procedure: sparse queue, full device, or a dense queue with gaps."""
    if queue is None:
        return "no-gpu"
    if queue.idle_share <= SIGNIFICANT_IDLE:
        return "kernel-bound"
    if queue.idle_share <= SPARSE_IDLE:
        return "gaps"
    # While code is loaded and memory taken for the first time the host is the limit, however deep the queue was before.
    cold = sum(share for rule, share in idle_by_cause.items() if rule in META and META[rule].one_off)
    if queue.late_share >= SPARSE_LATE or cold >= queue.idle_share / 2:
        return "cpu-bound"
    return "gaps"


def matches_verdict(found: Verdict, rule: RuleMeta) -> bool:
    """Return whether a rule looks where the verdict points: at kernels on a full device, at idle time elsewhere."""
    if rule.kind == "state":
        return False
    if found == "no-gpu" or not rule.computes:
        return True
    return (rule.kind in ("trust", "idle")) != (found == "kernel-bound")


def headline(found: Verdict, queue: Queue | None, step_ns: float, largest: Finding | None) -> str:
    """Return the verdict in one sentence; the verdict's own word stands before it in every report."""
    step = f"{step_ns / 1e6:.1f} ms step"
    if queue is None:
        state = f"Without a GPU in this recording the host takes all of each {step}"
    elif found == "kernel-bound":
        state = f"The GPU is busy {queue.busy_share:.0%} of each {step}"
    elif found == "cpu-bound":
        state = f"The GPU is idle {queue.idle_share:.0%} of each {step} because the host does not keep its queue filled"
    else:
        state = f"The GPU is idle {queue.idle_share:.0%} of each {step} although its queue is dense"
    if largest is None:
        return f"{state}, and nothing stands out as waste."
    return f"{state}; the largest cause: {_lower(largest.title)} ({largest.lost_ns / step_ns:.0%} of the step)."


def _lower(title: str) -> str:
    """Return a title as it goes on within a sentence; names keep their capital."""
    first = title.split(" ", 1)[0].removesuffix("'s")
    return title if first in NAMES or first != first.capitalize() else title[0].lower() + title[1:]
