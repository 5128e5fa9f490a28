"""What holds for every run: conservation of time, order, the bound of the queue."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from simulation.timeline import RankLog, Run

__all__ = ["faults"]

SLACK_NS = 0.5  # sums of floating-point numbers


def faults(run: Run) -> list[str]:
    """Return what is wrong with a run, nothing for a good one."""
    found: list[str] = []
    for rank, log in enumerate(run.ranks):
        found += [
            f"rank {rank}: {fault}" for fault in (*_device(log), *_host(log), *_queue(log, run.machine.queue_depth))
        ]
    return [*found, *_collectives(run)]


def _device(log: RankLog) -> Iterator[str]:
    """Find tasks before their launch or their stream's former task, and waits that return before the drain."""
    calls = {call.correlation: call for call in log.calls}
    last: dict[int, float] = {}
    for task in log.tasks:
        call = calls.get(task.correlation)
        if call and task.start < call.start - SLACK_NS:
            yield f"{task.name} starts before its launch"
        if task.start < task.ready - SLACK_NS:
            yield f"{task.name} starts before the device has it"
        if task.start < last.get(task.stream, 0.0) - SLACK_NS:
            yield f"{task.name} starts before its stream's former task ends"
        if task.end < task.start:
            yield f"{task.name} ends before it starts"
        last[task.stream] = task.end
    for call in log.calls:
        if call.end < call.drained - SLACK_NS:
            yield f"{call.api} returns before what it waits for"


def _host(log: RankLog) -> Iterator[str]:
    """Find calls that overlap, and events that do not nest."""
    for one, other in pairwise(log.calls):
        if other.start < one.end - SLACK_NS:
            yield f"{other.api} begins inside {one.api}"
    open_ends: list[float] = []
    for event in sorted(log.events, key=lambda e: (e.start, -e.end, e.number)):
        while open_ends and open_ends[-1] <= event.start + SLACK_NS:
            open_ends.pop()
        if open_ends and event.end > open_ends[-1] + SLACK_NS:
            yield f"{event.name} outlasts what it stands in"
        open_ends.append(event.end)


def _queue(log: RankLog, depth: int) -> Iterator[str]:
    """No launch returns while its stream holds as many launches as the queue has places."""
    calls = {call.correlation: call for call in log.calls}
    ends: dict[int, list[float]] = {}
    for task in log.tasks:
        before = ends.setdefault(task.stream, [])
        call = calls.get(task.correlation)
        if call and call.api != "graph" and len(before) >= depth and call.end < before[-depth] - SLACK_NS:
            yield f"{call.api} returns although {depth} tasks wait"
        before.append(task.end)


def _collectives(run: Run) -> Iterator[str]:
    """Every rank leaves a collective at the same time, after the last one came."""
    ranks = [[task for task in log.tasks if task.kind == "collective"] for log in run.ranks]
    counts = min(len(tasks) for tasks in ranks)
    for at in range(1, counts + 1):
        met = [tasks[-at] for tasks in ranks]
        if max(task.end for task in met) - min(task.end for task in met) > SLACK_NS:
            yield f"{met[0].name} ends at different times"
        if min(task.end for task in met) < max(task.start for task in met):
            yield f"{met[0].name} ends before the last rank came"
