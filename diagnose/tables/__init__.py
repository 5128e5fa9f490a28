"""Tables that several analyzers need, computed once from a capture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

import numpy as np

from diagnose.model.arrays import Mask, Rows, read_only
from diagnose.model.capture import Capture
from diagnose.model.diagnosis import Partition, Queue
from diagnose.model.events import Kind, Trace
from diagnose.model.intervals import Intervals, among, contains, rows_of_each, span
from diagnose.model.rules import Cause
from diagnose.tables import device, host, names
from diagnose.tables.gaps import Causes, Gaps, assign, find_gaps, launch_latency, one_gap
from diagnose.tables.host import Layers
from diagnose.tables.queue import queue_numbers
from diagnose.tables.steps import Steps, find_steps

if TYPE_CHECKING:
    from diagnose.dataflow import Analyses

__all__ = ["Claim", "Tables", "finished", "host_table", "shared_table"]

Claim: TypeAlias = "Callable[[Tables, Intervals], Intervals]"

S = TypeVar("S")
T = TypeVar("T")


def finished(make: Callable[[S], T]) -> Callable[[S], T]:
    """Make the columns of a property's table read-only."""

    @wraps(make)
    def finish(t: S) -> T:
        return read_only(make(t))

    return finish


def host_side(make: Callable[[Tables], T]) -> Callable[[Tables], T]:
    """Make a property of tables of some tasks that of all tasks: it does not depend on which are looked at."""

    @wraps(make)
    def find(t: Tables) -> T:
        found: T = make(t) if t.of_host is t else getattr(t.of_host, make.__name__)
        return found

    return find


@dataclass(frozen=True, eq=False)  # tables of one trace are compared by identity: arrays have no equality
class Tables:
    """One rank's trace and everything derived from it, each table on first use.

    ``claims`` are the idle rules in their order, the last one taking what is left; ``causes``
    follows from them, so a claim itself must not read it. ``kinds`` is what the time of each of these
    rules is. ``analyses`` is what the capture's data flow shows. Columns are read-only, those of ``cached`` tables too.
    """

    capture: Capture
    trace: Trace
    claims: tuple[tuple[str, Claim], ...] = ()
    kinds: Mapping[str, Cause] = field(default_factory=dict)
    analyses: Analyses | None = None

    @property
    def of_host(self) -> Tables:
        """The tables that hold what the host did: these, or for some of a device's tasks those of all."""
        return self

    @cached_property
    @host_side
    @finished
    def steps(self) -> Steps:
        """The steady steps and the window they span."""
        return find_steps(self.trace, exact=self.capture.info is not None)

    @cached_property
    @host_side
    def device_id(self) -> int:
        """The id of the busiest device, -1 without one."""
        return device.busiest_device(self.trace)

    @cached_property
    @finished
    def tasks(self) -> device.Tasks:
        """The device's tasks in the window."""
        return device.find_tasks(self.trace, self.device_id, *self.steps.window)

    @cached_property
    @finished
    def streams(self) -> Mapping[int, Rows]:
        """The tasks of each stream, as rows of ``tasks`` in time order; sorted once for any number of streams."""
        return rows_of_each(self.tasks.stream)

    @cached_property
    @finished
    def occupancy(self) -> device.Occupancy:
        """What covers the window: compute, exposed communication, exposed copies, idle."""
        return device.occupancy(self.tasks, *self.steps.window)

    @cached_property
    def partition(self) -> Partition:
        """The same as shares of the window."""
        start, end = self.steps.window
        return device.partition(self.occupancy, end - start)

    @cached_property
    @host_side
    def launch_latency(self) -> int | None:
        """How long after its launch a task starts that waits for nothing else, ns; None where no task shows it."""
        return launch_latency(self.trace, self.tasks, self.occupancy.idle)

    @cached_property
    def queue(self) -> Queue:
        """The queue's figures."""
        return queue_numbers(self.trace, self.tasks, self.occupancy, self.steps, self.launch_latency)

    @cached_property
    @finished
    def gaps(self) -> Gaps:
        """The idle regions; without a device the whole window, which the host's own rules divide."""
        if self.device_id < 0:
            return one_gap(*self.steps.window)
        return find_gaps(self.trace, self.tasks, self.occupancy.idle, self.launch_latency)

    @cached_property
    @finished
    def causes(self) -> Causes:
        """One cause for every idle nanosecond; without a device, for every nanosecond of the training thread."""
        idle = self.occupancy.idle if self.device_id >= 0 else span(*self.steps.window)
        *claims, (rest, _) = self.claims
        return assign(self.gaps, idle, [(rule, partial(claim, self)) for rule, claim in claims], rest=rest)

    @cached_property
    @host_side
    def launch_threads(self) -> tuple[int, ...]:
        """Threads that launch the device's tasks."""
        return host.launch_threads(self.trace, self.tasks.launch) if self.device_id >= 0 else ()

    @cached_property
    @host_side
    def main(self) -> int:
        """The thread of the training loop."""
        return host.main_thread(self.trace, self.steps.thread, self.launch_threads)

    @cached_property
    @host_side
    def threads(self) -> tuple[int, ...]:
        """The threads whose activity explains idle time: the main one and those that launch."""
        return tuple(dict.fromkeys((self.main, *self.launch_threads)))

    @property
    def named(self) -> Tables:
        """The tables of the attribution window, which has names and lines; these where it was not recorded."""
        trace = self.capture.attribution
        if trace is None or trace is self.trace:
            return self
        return self.of_host.cached("named", lambda: Tables(self.capture, trace, analyses=self.analyses))

    def host_rows(self, *kinds: Kind) -> Rows:
        """Return the rows of the given kinds on the main and launching threads."""

        def find() -> Rows:
            rows = names.rows_of(self.trace, *kinds)
            return rows[self._on_threads(rows)]

        # Of several kinds they are as many as the host has events, and asked for once or twice: not worth keeping.
        return self.of_host.cached(("host_rows", kinds), find) if len(kinds) == 1 else find()

    def calls(self, pattern: names.Pattern, *kinds: Kind) -> Rows:
        """Return the rows on the main and launching threads whose name the pattern finds."""

        def find() -> Rows:
            rows = names.matching(self.trace, kinds or (Kind.RUNTIME,), pattern)
            return rows[self._on_threads(rows)]

        return self.of_host.cached(("calls", pattern, kinds), find)

    def _on_threads(self, rows: Rows) -> Mask:
        threads = self.trace.events.thread
        return among(threads[rows], np.array(self.threads, threads.dtype))

    @cached_property
    def _cache(self) -> dict[object, object]:
        return {}

    def cached(self, key: object, make: Callable[[], T]) -> T:
        """Return what ``make`` returned when ``key`` was first requested: for tables that several rules share."""
        if key not in self._cache:
            self._cache[key] = read_only(make())
        return cast("T", self._cache[key])

    def tasks_matching(self, pattern: names.Pattern, among: Rows | None = None) -> Mask:
        """Return which tasks, or which ``among`` them, have a name that the pattern finds.

        Each distinct name is searched once.
        """
        ids = self.trace.events.name[self.tasks.row if among is None else self.tasks.row[among]]
        found = np.zeros(len(self.trace.names) + 1, bool)
        found[ids] = True
        is_found = names.searcher(pattern)
        for name in np.flatnonzero(found).tolist():
            found[name] = is_found(self.trace.names[name][: names.NAME_PART])
        mask: Mask = found[ids]
        return mask

    def in_window(self, rows: Rows) -> Rows:
        """Return the rows whose events begin in the window."""
        start, end = self.steps.window
        began = self.trace.events.start[rows]
        mine: Rows = rows[(began >= start) & (began < end)]
        return mine

    def launched_in(self, inside: Intervals) -> Mask:
        """Return which tasks were launched at these times."""
        launch = self.tasks.launch
        found: Mask = (launch >= 0) & contains(inside, self.trace.events.start[np.maximum(launch, 0)])
        return found

    def covering(self, rows: Rows) -> Intervals:
        """Return the time that the given events cover."""
        return host.intervals_of(self.trace, rows)

    @cached_property
    @host_side
    @finished
    def work_layers(self) -> dict[int, Layers]:
        """Operators, annotations and runtime calls by nesting, for the main and launching threads."""
        kinds = (Kind.OP, Kind.ANNOTATION, Kind.RUNTIME)
        return {t: host.layers(self.trace, host.host_rows(self.trace, t, *kinds)) for t in self.threads}

    @cached_property
    @host_side
    @finished
    def frame_layers(self) -> dict[int, Layers]:
        """Python frames by nesting, for the main and launching threads; empty where stacks were not recorded."""
        rows = {t: host.host_rows(self.trace, t, Kind.PYTHON) for t in self.threads}
        return {t: host.layers(self.trace, frames, deep=True) for t, frames in rows.items()}

    @cached_property
    @host_side
    @finished
    def in_ops(self) -> Intervals:
        """Time in which the main or a launching thread was inside an operator or a runtime call."""
        rows = names.rows_of(self.trace, Kind.OP, Kind.RUNTIME)  # as many as the host has events, and asked for once
        return self.covering(rows[self._on_threads(rows)])

    def name(self, row: int) -> str:
        """Return the name of an event."""
        return self.trace.names[int(self.trace.events.name[row])]


def shared_table(make: Callable[[Tables], T]) -> Callable[[Tables], T]:
    """Let a function of ``Tables`` compute its result once for each of them."""

    @wraps(make)
    def shared(t: Tables) -> T:
        return t.cached(make, lambda: make(t))

    return shared


def host_table(make: Callable[[Tables], T]) -> Callable[[Tables], T]:
    """Do the same for a function of what the host did: it does not change with the tasks that are looked at."""
    shared = shared_table(make)

    @wraps(make)
    def of_host(t: Tables) -> T:
        return shared(t.of_host)

    return of_host
