"""The first answer: is the queue shallow, full, or deep with gaps.

The median depth of the queue while the device works decides. On 94 real timelines with more than half idle it was 1 to
8 if launching was the limit, and 45 or more if a full queue had holes.
"""

from __future__ import annotations

from collections.abc import Mapping

from diagnose.analyzers import META
from diagnose.model.diagnosis import Partition, Queue, Verdict
from diagnose.tables.thresholds import THRESHOLDS, Thresholds

__all__ = ["is_shallow", "verdict"]


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
