"""A few steps of the window, enough to replay: what a change saves in one steady step it saves in the others."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from diagnose.model.arrays import Rows
from diagnose.model.events import Kind
from diagnose.model.frozen import dataclass
from diagnose.tables import Tables, finished
from diagnose.tables.device import Tasks
from diagnose.tables.host import Layers
from diagnose.tables.names import Pattern
from diagnose.tables.steps import Steps

__all__ = ["MAX_TASKS", "StepSubset", "step_subset"]

MAX_TASKS = 8_000  # a replay of these takes 5 ms; one long step may have more
MAX_STEPS = 10  # as many as a capture records: what comes in one step of ten is among them


@dataclass(frozen=True, kw_only=True, eq=False)
class StepSubset(Tables):
    """Tables of some consecutive steps: what does not depend on the window is that of the whole."""

    whole: Tables
    chosen_steps: Steps
    chosen_tasks: Tasks

    @cached_property
    @finished
    def steps(self) -> Steps:
        """The chosen steps and the window they span."""
        return self.chosen_steps

    @cached_property
    @finished
    def tasks(self) -> Tasks:
        """The device tasks that the chosen steps launched."""
        return self.chosen_tasks

    @cached_property
    def device_id(self) -> int:
        """The id of the busiest device."""
        return self.whole.device_id

    @cached_property
    def launch_threads(self) -> tuple[int, ...]:
        """Threads that launch the device's tasks."""
        return self.whole.launch_threads

    @cached_property
    def main(self) -> int:
        """The thread of the training loop."""
        return self.whole.main

    @cached_property
    def work_layers(self) -> dict[int, Layers]:
        """Operators, annotations and runtime calls by nesting, for each thread that matters."""
        return self.whole.work_layers

    def host_rows(self, *kinds: Kind) -> Rows:
        """Return the rows of the given kinds on the threads that matter."""
        return self.whole.host_rows(*kinds)

    def calls(self, pattern: Pattern, *kinds: Kind) -> Rows:
        """Return the rows on the threads that matter whose name the pattern finds."""
        return self.whole.calls(pattern, *kinds)


def step_subset(t: Tables, max_tasks: int = MAX_TASKS) -> Tables:
    """Return tables of consecutive steps with at most so many tasks, all of them where they are few; never none.

    The steps are those around the typical one. Work that was queued before them is left out: the window
    begins when the device is done with it, and ends with the last task that they launched.
    """
    num = min(max(1, int(max_tasks * t.steps.num / max(len(t.tasks.row), 1))), MAX_STEPS)
    if t.steps.num <= num:
        return t
    first = min(max(t.steps.median_step - num // 2, 0), t.steps.num - num)
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
    steps = t.steps._replace(
        start=t.steps.start[first:last],
        end=t.steps.end[first:last],
        number=t.steps.number[first:last],
        window_start=window_start,
        window_end=max(finish, int(kept.end.max())),
    )
    return StepSubset(t.capture, t.trace, t.claims, t.kinds, whole=t, chosen_steps=steps, chosen_tasks=kept)
