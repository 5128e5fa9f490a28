"""What to compute again in the backward pass so that a step fits into so much memory, and what that takes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from diagnose.dataflow.checkpoints import checkpoints
from diagnose.dataflow.graph import graph_of
from diagnose.dataflow.kept import KeptMemory, StepMemory, step_memory
from diagnose.errors import UsageError
from diagnose.model.dataflow import Frame
from diagnose.model.intervals import Intervals
from diagnose.pipeline.operator_times import operator_times
from diagnose.replay.effects import Effect
from diagnose.replay.graph import Graph
from diagnose.replay.predict import Predicted, predict
from diagnose.replay.transforms import scale_host, shorten_tasks
from diagnose.tables import Tables
from diagnose.tables.flow import Flow, shows_values
from diagnose.text.numbers import duration, plural, size_words

__all__ = ["ComputedAgain", "WithinMemory", "twice", "within_memory"]


class ComputedAgain(NamedTuple):
    """One module or line whose calls are computed again, after those before it in the list."""

    line: Frame | None
    caller: Frame | None  # that calls the function of a line
    module: str  # its qualified name, "" for a line
    freed_bytes: int
    added_ns: float  # to the step
    peak_bytes: int
    step_ns: float

    @property
    def name(self) -> str:
        """Return the module and its line: "blocks.4 at train.py:29", or a line and what calls it."""
        line, caller = (f"{at.file.rpartition('/')[2]}:{at.line}" if at is not None else "" for at in self[:2])
        return " at ".join(part for part in (self.module, line) if part) + (f", called at {caller}" if caller else "")


class WithinMemory(NamedTuple):
    """A list of what to compute again, and what it starts from."""

    most_bytes: int
    peak_bytes: int  # as recorded
    basis: str  # of that peak: "memory records" or "data flow"
    calls: tuple[ComputedAgain, ...]

    @property
    def title(self) -> str:
        """Return what the change is called."""
        return f"{plural(len(self.calls), 'checkpoint')} for a peak of {size_words(self.calls[-1].peak_bytes)}"

    def lines(self) -> Iterator[str]:
        """Yield the list as text."""
        fits = "" if self.calls else f", which is within {size_words(self.most_bytes)}"
        yield f"peak memory now {size_words(self.peak_bytes)}, by the {self.basis}{fits}"
        for each in self.calls:
            yield (
                f"  {each.name}: frees {size_words(each.freed_bytes)}, adds {duration(each.added_ns)} per step; then "
                f"peak {size_words(each.peak_bytes)}, step {duration(each.step_ns)}"
            )

    def to_json(self) -> dict[str, object]:
        """Return the list as JSON; times are ms."""
        return {
            "budget_bytes": self.most_bytes,
            "peak_bytes": self.peak_bytes,
            "peak_from": self.basis,
            "checkpoints": [
                {
                    "file": each.line.file if each.line is not None else None,
                    "line": each.line.line if each.line is not None else None,
                    "module": each.module,
                    "frees_bytes": each.freed_bytes,
                    "adds_ms": each.added_ns / 1e6,
                    "peak_bytes": each.peak_bytes,
                    "step_ms": each.step_ns / 1e6,
                }
                for each in self.calls
            ],
        }


def within_memory(t: Tables, before: Predicted, most_bytes: int) -> tuple[WithinMemory, Predicted]:
    """Return what to compute again so that the step's peak is at most so many bytes, and the step then.

    The peak is the larger one of the memory records and of what the data flow holds: the former lack what was there
    before the recording of a host, the latter what operators take for themselves.

    Raises:
        UsageError: there is no data flow of the steps, or so little memory cannot be reached.
    """
    flow = t.flow
    if flow is None or t.capture.dataflow is None:
        raise UsageError(
            "--memory needs the data flow of a step, which this recording does not have: record it with diagnose "
            "trace, without --no-dataflow and without --quick."
        )
    if not shows_values(t):
        raise UsageError(
            "The data flow of this recording differs from its timed steps, so what computing again takes is not known. "
            "Record again."
        )
    memory = step_memory(graph_of(t.capture.dataflow))
    peak, basis = _peak(t, memory)
    other = peak - int(memory.held.max(initial=0))
    found = checkpoints(memory.held, memory.kept, _times(t, flow, memory.kept), most_bytes - other)
    lowest = other + found[-1].peak_bytes if found else peak
    if lowest > most_bytes:
        raise UsageError(
            f"A peak of {size_words(most_bytes)} cannot be reached by computing again in the backward pass: it falls "
            f"from {size_words(peak)} to {size_words(lowest)}, which is {size_words(lowest - most_bytes)} too much."
        )
    calls, state = [], before
    for each in found:
        one, earlier = memory.kept[each.number], state
        again = partial(twice, t=t, pieces=flow.span_of(t, one.operators))
        state = predict(t, state, Effect(again, again))
        added_ns = state.step_ns - earlier.step_ns
        calls.append(
            ComputedAgain(
                one.line, one.caller, one.module, each.freed_bytes, added_ns, other + each.peak_bytes, state.step_ns
            )
        )
    return WithinMemory(most_bytes, peak, basis, tuple(calls)), state


def _peak(t: Tables, memory: StepMemory) -> tuple[int, str]:
    held, records = int(memory.held.max(initial=0)), t.memory
    is_same = (t.device_id < 0) == memory.device.startswith("cpu")
    if records is not None and is_same and records.peak_allocated > held:
        return records.peak_allocated, "memory records"
    return held, "data flow"


def _times(t: Tables, flow: Flow, kept: tuple[KeptMemory, ...]) -> list[float]:
    """Return the time that each takes in the forward pass, ns: the host's or the device's, whichever is longer."""
    host, device = operator_times(t, flow)
    return [max(host[list(one.operators)].sum(), device[list(one.operators)].sum()) for one in kept]


def twice(graph: Graph, t: Tables, pieces: Intervals) -> Graph:
    """Make the host's work in the pieces, and the tasks that it launches, take twice as long."""
    tasks = np.flatnonzero(t.launched_in(pieces))
    tasks = tasks[np.argsort(t.tasks.row[tasks], kind="stable")]
    if len(tasks):
        length = (t.tasks.end - t.tasks.start)[tasks].astype(np.float64)
        graph = shorten_tasks(graph, t.tasks.row[tasks], -length)
    return scale_host(graph, pieces, 2.0)
