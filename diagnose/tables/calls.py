"""Slow one-off calls and where they recur: which distinguishes a warm-up from a stall in every step."""

from __future__ import annotations

import re

import numpy as np

from diagnose.model.arrays import Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, among, distinct, grouped, union
from diagnose.tables import Tables
from diagnose.tables.names import ALLOCATION, LAUNCH, MODULE_LOAD, OPTIMIZER_STEP, rows_of
from diagnose.tables.steps import COLD_CALL_NS

__all__ = [
    "COMPILE",
    "allocations",
    "can_recur",
    "code_loads",
    "collections",
    "compile_frames",
    "of_known_kernels",
    "recurs",
]


_OF_A_KERNEL = re.compile(r"^(cuda|hip|cu)(FuncGetAttribute|FuncSetAttribute|OccupancyMaxActiveBlocks)")
_COPY_OR_GRAPH = r"Memcpy|Memset|GraphLaunch"

# Marks that Dynamo, Inductor and Triton leave while they compile; a cache look-up or a run of compiled code is none.
COMPILE = re.compile(
    r"_compile\.compile_inner|(?<!/)compile_fx|compile_fx\.py\(\d+\): \w*(compil|codegen)|compile_attempt"
    r"|dynamo_timed|entire_frame_compile|backend_compile"
    r"|inductor_compile|convert_frame\.py\(\d+\): _compile|triton/compiler/compiler\.py\(\d+\): compile"
    r"|triton/runtime/jit\.py\(\d+\): _do_compile|CachingAutotuner\.benchmark|async_compile|GraphLowering"
    r"|aot_dispatch|create_aot_dispatcher|call_user_compiler|^dynamo$"
)
SETUP_NS = 50_000  # many of these calls are queries that return in a few µs when there is nothing to load
# A slow call counts as part of every step when it shows in at least this share of them.
MIN_STEP_SHARE = 0.5
MIN_UPDATES = 3  # of the optimizer, that stand in for step marks: of two the first may be the cold one


def allocations(t: Tables) -> Rows:
    """Return the calls that took memory from the driver or gave it back."""
    return t.calls(ALLOCATION)


def code_loads(t: Tables) -> Rows:
    """Return the long calls that loaded device code or set the runtime up; a launch of over 1 ms loaded code too.

    What asks for or sets something of a kernel loads that one, unless it ran before.
    """
    events = t.trace.events
    setup = t.calls(MODULE_LOAD)
    setup = setup[events.end[setup] - events.start[setup] > SETUP_NS]
    setup = setup[~among(setup, t.known_kernel_calls)]
    launches = t.calls(LAUNCH)
    slow = launches[events.end[launches] - events.start[launches] > COLD_CALL_NS]
    slow = np.array([r for r in slow.tolist() if not re.search(_COPY_OR_GRAPH, t.name(r))], np.intp)
    return distinct(slow, setup)


def of_known_kernels(t: Tables) -> Rows:
    """Return the calls for attributes of a kernel after which their thread launches one that ran before in the file."""
    trace, events, asked = t.trace, t.trace.events, t.calls(_OF_A_KERNEL)
    kernels = rows_of(trace, Kind.KERNEL)
    kernels = kernels[events.cause[kernels] >= 0]
    kernels = kernels[np.argsort(events.start[events.cause[kernels]], kind="stable")]
    is_known = np.ones(len(kernels), bool)
    is_known[grouped(events.name[kernels]).first] = False
    launch = events.cause[kernels]
    found = np.zeros(len(asked), bool)
    for thread in t.threads:
        mine = events.thread[launch] == thread
        following = np.searchsorted(events.start[launch[mine]], events.end[asked])
        known = np.append(is_known[mine], False)
        found |= (events.thread[asked] == thread) & known[following]
    return asked[found]


def collections(t: Tables) -> Intervals:
    """Return when Python's garbage collector ran, as the profiler records it or the capture has noted it."""
    samples = t.capture.samples
    if samples is None or not samples.gc_runs or not t.trace.epoch_ns:
        noted = EMPTY
    else:
        runs = np.array(samples.gc_runs, np.int64) - t.trace.epoch_ns
        noted = union((runs[:, 0], runs[:, 1]))
    return union(t.covering(t.host_rows(Kind.GC)), noted)


def compile_frames(t: Tables) -> Rows:
    """Return the calls in which a graph or a kernel was being compiled."""
    return t.calls(COMPILE, Kind.ANNOTATION, Kind.PYTHON, Kind.OP)


def can_recur(t: Tables) -> bool:
    """Return whether the recording is long enough to tell what recurs: two steps, or three updates of the optimizer."""
    return t.steps.num >= 2 if t.steps.marked else len(_updates(t)) >= MIN_UPDATES


def _updates(t: Tables) -> Rows:
    return t.in_window(t.calls(OPTIMIZER_STEP, Kind.ANNOTATION, Kind.OP))


def recurs(t: Tables, rows: Rows) -> bool:
    """Return whether the given calls show in enough of the steps to be part of every step.

    Where steps are not marked, the optimizer's steps part them.
    """
    if not can_recur(t):
        return False
    if not t.steps.marked:
        updates = _updates(t)
        num = len(updates)
        ends = np.sort(t.trace.events.end[updates], kind="stable")
        step = np.searchsorted(ends, t.trace.events.start[rows], side="right")
        return len(distinct(step[step < num])) >= MIN_STEP_SHARE * num
    step = np.searchsorted(t.steps.start, t.trace.events.start[rows], side="right")
    inside = step[(step > 0) & (t.trace.events.start[rows] < t.steps.end[-1])]
    return len(distinct(inside)) >= max(2.0, MIN_STEP_SHARE * t.steps.num)
