"""The stages in which the tables of a trace are computed, and their order in each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from diagnose.errors import is_debugging
from diagnose.model.capture import Capture
from diagnose.model.events import Kind, Note, Trace
from diagnose.model.intervals import among, rows_of_each, span
from diagnose.model.rules import Cause
from diagnose.tables import Claim, Tables, device, host, names
from diagnose.tables.call_frames import open_frames
from diagnose.tables.calls import anomaly_checks, of_known_kernels, updates
from diagnose.tables.collectives import host_backend, small_collectives
from diagnose.tables.flow import flow_of
from diagnose.tables.gaps import assign, find_gaps, launch_latency, one_gap
from diagnose.tables.growing_calls import growing_calls
from diagnose.tables.host_gaps import (
    computing_operators,
    filled_by_operators,
    host_gaps,
    python_gaps,
    silences,
    silent_operators,
)
from diagnose.tables.issuers import issued, issuer_of
from diagnose.tables.kernel_classes import task_classes
from diagnose.tables.lost import launches_without_task
from diagnose.tables.op_launches import (
    graph_nodes,
    graphed_updates,
    matched_steps,
    operator_inputs,
    operators,
    outermost_by_step,
)
from diagnose.tables.passes import links
from diagnose.tables.plain_steps import plain_steps
from diagnose.tables.program import program_of
from diagnose.tables.python_calls import called_by_python, runs_no_python
from diagnose.tables.queue import queue_numbers
from diagnose.tables.roofline import groups
from diagnose.tables.run_steps import growing_steps, late_samples, recompiling, sampled_files, sampled_lines, stalls
from diagnose.tables.step_calls import step_calls
from diagnose.tables.steps import Steps, find_steps
from diagnose.tables.syncs import blocking_calls, freeing_calls, full_queue, late_by, sync_free

if TYPE_CHECKING:
    from diagnose.dataflow import Analyses

Order: TypeAlias = Mapping[str, Callable[[Tables], object]]

# Each table may read those above it.

WAITS: Order = {
    "late_by": late_by,
    "blocking_calls": blocking_calls,
    "freeing_calls": freeing_calls,
    "full_queue": full_queue,
}
RUN: Order = {
    "recompiling": recompiling,
    "stalls": stalls,
    "growing_steps": growing_steps,
    "plain_steps": plain_steps,
}
HOST: Order = {
    "work_layers": host.work_layers,
    "frame_layers": host.frame_layers,
    "in_ops": host.in_ops,
    "updates": updates,
    "called_by_python": called_by_python,
    "open_frames": open_frames,
    "known_kernel_calls": of_known_kernels,
    "runs_no_python": runs_no_python,
    "computing_operators": computing_operators,
    "silences": silences,
    "late_samples": late_samples,
    "host_gaps": host_gaps,
    "python_gaps": python_gaps,
    "flow": flow_of,
}
IDLE: Order = {
    "launches_without_task": launches_without_task,
    "host_backend": host_backend,
    "anomaly_checks": anomaly_checks,
    "silent_operators": silent_operators,
    "filled_by_operators": filled_by_operators,
}
PROGRAM: Order = {"program": program_of, "outermost_by_step": outermost_by_step}
CALLS: Order = {  # that claims read where there is no device, and rules of all
    **PROGRAM,
    "matched_steps": matched_steps,
    "growing_calls": growing_calls,
    "issuer": issuer_of,
    "issued": issued,
}
TOLD: Order = {
    "step_calls": step_calls,
    "links": links,
    "sampled_lines": sampled_lines,
    "sampled_files": sampled_files,
    "operators": operators,
    "operator_inputs": operator_inputs,
    "graph_nodes": graph_nodes,
    "graphed_updates": graphed_updates,
    "task_classes": task_classes,
    "roofline_groups": groups,
    "small_collectives": small_collectives,
    "sync_free": sync_free,
}
OF_HOST = (  # what does not change with the tasks that are looked at
    "steps", "device_id", "launch_threads", "main", "threads", "rows", "launch_latency", "late_by", "blocking_calls",
    *RUN, *HOST,
)  # fmt: skip


def begin(capture: Capture, trace: Trace, analyses: Analyses | None = None) -> Tables:
    """Return the steps and what ran in them, as far as a replay and the length of the true step need it."""
    t = Tables(capture, trace, analyses)
    t.steps = find_steps(trace, exact=capture.info is not None)
    t.device_id = device.busiest_device(trace)
    t.tasks = device.find_tasks(trace, t.device_id, *t.steps.window)
    t.launch_threads = host.launch_threads(trace, t.tasks.launch) if t.device_id >= 0 else ()
    t.main = host.main_thread(trace, t.steps.thread, t.launch_threads)
    t.threads = tuple(dict.fromkeys((t.main, *t.launch_threads)))
    events = t.trace.events
    kinds = (Kind.OP, Kind.ANNOTATION, Kind.RUNTIME, Kind.PYTHON, Kind.GC)
    rows = names.rows_of(t.trace, *kinds)
    rows = rows[among(events.thread[rows], np.array(t.threads, events.thread.dtype))]
    t.rows = MappingProxyType({kind: rows[events.kind[rows] == int(kind)] for kind in kinds})
    _add_idle(t)
    _add(t, {**WAITS, **RUN}, [])
    return t


def of_steps(t: Tables, steps: Steps, tasks: device.Tasks) -> Tables:
    """Return the tables of some of the steps and the tasks that they launched, as far as a replay needs them."""
    part = Tables(t.capture, t.trace)
    part.steps, part.device_id, part.tasks = steps, t.device_id, tasks
    part.launch_threads, part.main, part.threads, part.rows = t.launch_threads, t.main, t.threads, t.rows
    _add_idle(part)
    _add(part, WAITS, [])
    return part


def of_tasks(t: Tables, tasks: device.Tasks) -> Tables:
    """Return the tables, and the causes, of a device that ran some of the tasks alone; its host did what it did."""
    part = Tables(t.capture, t.trace, t.analyses)
    for name in OF_HOST:
        setattr(part, name, getattr(t, name))
    part.tasks = tasks
    _add_idle(part)
    _add(part, WAITS, [])
    return add_causes(part, t.claims, t.kinds, [], t.named)


def add_causes(
    t: Tables,
    claims: tuple[tuple[str, Claim], ...],
    kinds: Mapping[str, Cause],
    notes: list[Note],
    named: Tables | None = None,
) -> Tables:
    """Add what explains idle time, and its causes; a table that fails is not there, and is named in ``notes``.

    ``named`` are the tables of the attribution window.
    """
    start, end = t.steps.window
    has_device = t.device_id >= 0
    t.partition = device.partition(t.occupancy, end - start)
    t.queue = queue_numbers(t.trace, t.tasks, t.occupancy, t.steps, t.launch_latency)
    t.claims, t.kinds = claims, kinds
    _add(t, HOST, notes)
    attribution = t.capture.attribution
    if named is None and attribution is not None and attribution is not t.trace:
        named = begin(t.capture, attribution, t.analyses)
        named.named = named
        _add(named, {**HOST, **PROGRAM}, [])
    t.named = named or t
    _add(t, IDLE if has_device else {**IDLE, **CALLS}, notes)
    *before, (rest, _) = claims
    idle = t.occupancy.idle if has_device else span(start, end)
    t.causes = assign(t.gaps, idle, [(rule, partial(claim, t)) for rule, claim in before], rest=rest)
    return t


def complete(t: Tables, notes: list[Note], searches: Order = MappingProxyType({})) -> Tables:
    """Add what rules tell about causes and kernels, then what ``searches`` find that several rules share.

    The tables of the attribution window have to be complete.
    """
    _add(t, {**CALLS, **TOLD, **searches}, notes)
    return t


def _add(t: Tables, tables: Order, notes: list[Note]) -> None:
    for name, make in tables.items():
        if hasattr(t, name):
            continue
        try:
            setattr(t, name, make(t))
        except Exception as error:
            if is_debugging():
                raise
            notes.append(Note(f"The table {name} failed on this trace ({type(error).__name__}: {error})."))


def _add_idle(t: Tables) -> None:
    t.streams = rows_of_each(t.tasks.stream)
    t.occupancy = device.occupancy(t.tasks, *t.steps.window)
    idle = t.occupancy.idle
    if not hasattr(t, "launch_latency"):
        t.launch_latency = launch_latency(t.trace, t.tasks, idle)
    is_host = t.device_id < 0
    t.gaps = one_gap(*t.steps.window) if is_host else find_gaps(t.trace, t.tasks, idle, t.launch_latency)
