"""A few steps of the window, enough to replay: what a change saves in one steady step it saves in the others."""

from __future__ import annotations

import numpy as np

from diagnose.tables import Tables
from diagnose.tables.device import Tasks

__all__ = ["MOST_TASKS", "excerpt"]

MOST_TASKS = 8_000  # a replay of these takes 5 ms; one long step may have more
MOST_STEPS = 5  # more say the same
_OF_THE_WHOLE = ("device_id", "driving", "main", "threads", "work_layers")


def excerpt(t: Tables, most_tasks: int = MOST_TASKS) -> Tables:
    """Return tables of consecutive steps with at most so many tasks, all of them where they are few; never none.

    The steps are those around the typical one. Work that was queued before them is left out: the window
    begins when the device is done with it, and ends with the last task that they launched.
    """
    num = min(max(1, int(most_tasks * t.steps.num / max(len(t.tasks.row), 1))), MOST_STEPS)
    if t.steps.num <= num:
        return t
    first = min(max(t.steps.typical - num // 2, 0), t.steps.num - num)
    return _of_steps(t, first, first + num)


def _of_steps(t: Tables, first: int, last: int) -> Tables:
    begin, finish = int(t.steps.start[first]), int(t.steps.end[last - 1])
    tasks, launch = t.tasks, t.tasks.launch
    queued = np.where(launch >= 0, t.trace.events.start[launch], tasks.start)
    mine = (queued >= begin) & (queued < finish)
    if not mine.any():
        return t
    before = tasks.end[queued < begin]
    window_start = max(begin, int(before.max())) if len(before) and before.max() > begin else begin
    window_start = min(window_start, int(tasks.start[mine].min()))
    kept = Tasks(
        row=tasks.row[mine],
        start=tasks.start[mine],
        end=tasks.end[mine],
        stream=tasks.stream[mine],
        launch=launch[mine],
        is_collective=tasks.is_collective[mine],
        is_copy=tasks.is_copy[mine],
    )
    part = Tables(t.capture, t.trace, t.claims)
    for name in _OF_THE_WHOLE:
        vars(part)[name] = getattr(t, name)
    vars(part)["tasks"] = kept
    vars(part)["steps"] = t.steps._replace(
        start=t.steps.start[first:last],
        end=t.steps.end[first:last],
        number=t.steps.number[first:last],
        window_start=window_start,
        window_end=max(finish, int(kept.end.max())),
    )
    vars(part)["_made"] = {key: rows for key, rows in t._made.items() if _holds_everywhere(key)}
    return part


def _holds_everywhere(key: object) -> bool:
    """Tell whether a shared table does not depend on the window."""
    return isinstance(key, tuple) and key[0] in ("host_rows", "calls")
