"""The few steps that are replayed, and how well a replay explains them; the same for every question about a trace.

A few steps of the window are enough: what a change saves in one steady step it saves in the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.model.intervals import total
from diagnose.model.rules import FREES_HOST, Cause
from diagnose.replay.build import build
from diagnose.replay.graph import Graph, Times
from diagnose.replay.simulate import owners, period_ns, simulate
from diagnose.replay.transforms import typical_delays
from diagnose.tables import Tables
from diagnose.tables.device import Tasks
from diagnose.tables.gaps import launches_unlinked
from diagnose.tables.lost import graph_holes
from diagnose.tables.stages import of_steps
from diagnose.text.numbers import percent

__all__ = [
    "MAX_ERROR_TO_PREDICT",
    "MAX_ERROR_TO_RELY",
    "MAX_TASKS",
    "ReplayBase",
    "replay_base",
    "step_subset",
    "unreplayable",
]

# The error of the replay with usual delays. Beyond the first what changes save is bounded instead of replayed; up to
# the second the replay is taken to show what the step waits for, and no warning stands beside an answer.
MAX_ERROR_TO_PREDICT = 0.1
MAX_ERROR_TO_RELY = 0.03
MAX_HOLES = 0.03  # of the window, beside unrecorded nodes of graphs; as much as an error that is relied on
MAX_TASKS = 8_000  # a replay of these takes 5 ms; one long step may have more
MAX_STEPS = 10  # as many as a capture records: what comes in one step of ten is among them


class ReplayBase(NamedTuple):
    """The steps that are replayed; the same for every question about a trace."""

    t: Tables  # of these steps
    graph: Graph
    times: Times  # of the unchanged replay
    owner: npt.NDArray[np.intp]  # of each node: the step
    period_ns: float  # from step to step in the unchanged replay; 0 where the steps have no length
    error: float  # share by which a replay with usual delays misses the one with measured delays
    why_not: str = ""  # why what changes save is bounded instead of replayed, one sentence
    is_uneven: bool = False  # the first step is unlike the others: what changes save is a mean of all of them
    is_hostless: bool = False  # then only of what changes on the host: no launches tie the device to it

    def period_of(self, graph: Graph, times: Times) -> float:
        """Return the time from step to step in a replay, of the same steps as that of the unchanged one, ns."""
        return times.window_ns / self.t.steps.num if self.is_uneven else period_ns(graph, times, self.owner)

    def refuses(self, cause: Cause) -> bool:
        """Return whether the replay cannot show what happens without a cause."""
        return bool(self.why_not) and (not self.is_hostless or cause in FREES_HOST)

    @property
    def is_reliable(self) -> bool:
        """Return whether the replay shows what the step waits for."""
        return not self.why_not and self.error <= MAX_ERROR_TO_RELY


def replay_base(t: Tables) -> ReplayBase:
    """Return the steps of a trace that are replayed, as a graph; built once."""

    def make() -> ReplayBase:
        part = step_subset(t)
        graph = build(part)
        owner, times = owners(part, graph), simulate(graph)
        usual = simulate(typical_delays(graph)).window_ns
        error = abs(usual / times.window_ns - 1) if times.window_ns > 0 else 0.0
        is_hostless = t.device_id >= 0 and launches_unlinked(t.tasks) and error <= MAX_ERROR_TO_PREDICT
        period = period_ns(graph, times, owner)
        mean = times.window_ns / part.steps.num
        is_uneven = period > 0 and abs(mean / period - 1) > MAX_ERROR_TO_PREDICT
        period = mean if is_uneven else period
        return ReplayBase(part, graph, times, owner, period, error, _why_not(t, error), is_uneven, is_hostless)

    return t.cached("replay base", make)


def unreplayable(t: Tables) -> str:
    """Return why the recorded steps cannot be replayed, whatever its error; "" where they can."""
    if t.device_id < 0:
        return ""
    if launches_unlinked(t.tasks):
        known = float((t.tasks.launch >= 0).mean())
        return (
            f"Only {percent(known, 0)} of the device tasks are linked to a launch, so the trace does not show what "
            "they waited for on the host: what changes there save is bounded, not replayed."
        )
    holes = total(graph_holes(t)) / max(t.steps.window[1] - t.steps.window[0], 1)
    if holes > MAX_HOLES:
        return (
            f"For {percent(holes, 0)} of the time nodes of a graph ran that were not recorded: what changes save is "
            "bounded, not replayed."
        )
    return ""


def _why_not(t: Tables, error: float) -> str:
    if error > MAX_ERROR_TO_PREDICT:
        return unreplayable(t) or (
            f"Replayed with usual delays the step comes out {percent(error, 0)} off: the trace does not show what its "
            "tasks waited for, so what changes save is bounded, not replayed."
        )
    return unreplayable(t)


def step_subset(t: Tables, max_tasks: int = MAX_TASKS) -> Tables:
    """Return tables of consecutive steps with at most so many tasks, all of them where they are few; never none.

    The steps are those around the typical one. Work that was queued before them is left out: the window
    begins when the device is done with it, and ends with the last task that they launched.
    """
    num = min(max(1, int(max_tasks * t.steps.num / max(len(t.tasks.row), 1))), MAX_STEPS)
    if t.steps.num <= num:
        return t
    first = min(max(t.steps.median_step - num // 2, 0), t.steps.num - num)
    return _chosen(t, first, first + num)


def _chosen(t: Tables, first: int, last: int) -> Tables:
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
    return of_steps(t, steps, kept)
