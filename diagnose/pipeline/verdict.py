"""The first answer: is the queue sparse, full, or dense with gaps; and the sentence that says so.

All thresholds of the verdict stand here. They were calibrated on 37 real GPU traces (V100 to B200, MI250, MI300X):
traces that are limited by launching show 83 to 100 % late tasks, all others at most 21 % unless the recording is cold.
"""

from __future__ import annotations

from collections.abc import Mapping

from diagnose.model.diagnosis import Finding, Queue, Verdict

__all__ = ["COLD_RULES", "headline", "in_scope", "verdict"]

# Up to this share of the step idle is not what holds it back: traces read as full by people had 11 to 13 % at most,
# those read as having gaps 23 % at least.
SIGNIFICANT_IDLE = 0.17
# The queue is sparse where the device idles most of the time and most tasks start as soon as they are launched.
SPARSE_IDLE = 0.5
SPARSE_LATE = 0.5
COLD_RULES = ("warm-up", "recompilation", "allocator-stall")
NAMES = frozenset({"Python", "Adam", "Adagrad", "Adadelta", "Adamax", "Muon", "Rprop", "Adafactor"})
# Findings of a busy device that are time without computing; every other finding of a busy rule is about kernels.
# What the machine and its memory are like explains, but is not what the step waits for.
STATES = frozenset({"throttled", "shared-device", "memory-pressure", "memory-fragmentation", "memory-headroom"})
NOT_COMPUTING = frozenset({"exposed-communication", "exposed-copy", "buffer-broadcast", "small-collectives"})


def verdict(queue: Queue | None, idle_by_cause: Mapping[str, float]) -> Verdict:
    """Apply the procedure: sparse queue, full device, or a dense queue with gaps."""
    if queue is None:
        return "no-gpu"
    if queue.idle_share <= SIGNIFICANT_IDLE:
        return "kernel-bound"
    if queue.idle_share <= SPARSE_IDLE:
        return "gaps"
    # While code is loaded and memory taken for the first time the host is the limit, however deep the queue was before.
    cold = sum(idle_by_cause.get(rule, 0.0) for rule in COLD_RULES)
    if queue.late_share >= SPARSE_LATE or cold >= queue.idle_share / 2:
        return "cpu-bound"
    return "gaps"


def in_scope(found: Verdict, finding: Finding, *, is_idle_rule: bool) -> bool:
    """Tell whether a finding lies where the verdict points: kernels on a full device, idle time elsewhere."""
    if finding.rule in STATES:
        return False
    if found == "no-gpu" or finding.rule in NOT_COMPUTING:
        return True
    return is_idle_rule != (found == "kernel-bound")


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
