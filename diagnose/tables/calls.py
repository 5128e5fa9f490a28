"""Slow one-off calls and where they recur: which distinguishes a warm-up from a stall in every step."""

from __future__ import annotations

import re

import numpy as np

from diagnose.model.arrays import Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, among, distinct, grouped, intersect, union
from diagnose.model.limits import AT_ONCE_NS, LONG_NS, MAJORITY, MIN_RECURRENCES
from diagnose.tables import Tables
from diagnose.tables.host import host_rows
from diagnose.tables.names import (
    ALLOCATION,
    BACKWARD,
    LAUNCH,
    MODULE_LOAD,
    OPTIMIZER_STEP,
    ZERO_GRAD,
    matching,
    rows_of,
)

# Autograd's anomaly detection: each function records a stack, and its gradient is looked at for NaN.

_ISNAN = re.compile(r"^aten::isnan$")
_PARTS = re.compile(r"^aten::(isnan|_is_any_true|any|item|is_nonzero)$")
_FUNCTION = r"Backward\d*$"


def anomaly_checks(t: Tables) -> Rows:
    """Return the operators of the checks, empty where anomaly detection is off."""
    trace = t.trace
    functions = t.in_window(t.calls(BACKWARD, Kind.OP))
    seen = t.in_window(t.calls(_ISNAN, Kind.OP))
    threads = distinct(trace.events.thread[functions])
    seen = seen[among(trace.events.thread[seen], threads)]
    if not len(functions) or len(seen) < MAJORITY * len(functions):
        return seen[:0]
    events, parts = trace.events, t.in_window(t.calls(_PARTS, Kind.OP))
    parts = parts[among(events.thread[parts], threads)]
    last = np.searchsorted(events.start[seen], events.start[parts], side="right") - 1
    # From one part of a check to the next.
    near = (last >= 0) & (events.start[parts] - events.start[seen][np.maximum(last, 0)] <= 4 * AT_ONCE_NS)
    mine: Rows = parts[near]
    return mine


def recorded_stacks(t: Tables) -> Intervals:
    """Return the begins of the training thread's operators, as long as recording their stacks takes.

    The capture measured how long that is for one; each function that an operator leaves behind has a stack.
    """
    info = t.capture.info
    if info is None or not info.stack_ns or not len(t.anomaly_checks):
        return EMPTY
    # The training thread's operators that are called while gradients are on.
    rows = host_rows(t.trace, t.main, Kind.OP)
    is_function = np.array([re.search(_FUNCTION, name) is not None for name in t.trace.names], bool)
    rows = rows[(t.trace.events.sequence[rows] >= 0) & ~is_function[t.trace.events.name[rows]]]
    left_behind = np.diff(t.trace.events.sequence[rows], append=t.trace.events.sequence[rows[-1:]])
    rows, left_behind = rows[left_behind > 0], left_behind[left_behind > 0]
    start, end = t.trace.events.start[rows], t.trace.events.end[rows]
    return union((start, np.minimum(end, start + (left_behind * info.stack_ns).astype(np.int64))))


# When the optimizer updates parameters: its step without what a closure computes in it.
#
# Some trainers hand forward and backward to ``optimizer.step`` as a closure. What comes after the last gradient is the
# optimizer's own, and where it calls the closure several times, as LBFGS does, what comes between a gradient and the
# ``zero_grad`` of the next call.


def updates(t: Tables) -> Intervals:
    """Return the times in which a step of an optimizer updates parameters."""
    steps = t.covering(t.calls(OPTIMIZER_STEP, Kind.ANNOTATION, Kind.OP))
    if not len(steps.start):
        return steps
    gradients = np.sort(t.trace.events.end[matching(t.trace, (Kind.OP, Kind.ANNOTATION), BACKWARD)], kind="stable")
    if not len(gradients):
        return steps
    last = gradients[np.maximum(np.searchsorted(gradients, steps.end, side="right") - 1, 0)]
    inside = (last > steps.start) & (last < steps.end)
    after = Intervals(np.where(inside, last, steps.start), steps.end)
    # What lies, within a step, between the last gradient of a closure's call and the next ``zero_grad``.
    cleared = np.sort(t.trace.events.start[t.calls(ZERO_GRAD, Kind.ANNOTATION, Kind.OP)], kind="stable")
    step = np.searchsorted(steps.start, cleared, side="right") - 1
    before = np.searchsorted(gradients, cleared, side="right") - 1
    cleared, step, before = (part[(step >= 0) & (before >= 0)] for part in (cleared, step, before))
    within = gradients[before] > steps.start[step]
    between_calls = intersect(union((gradients[before][within], cleared[within])), steps)
    return union(after, between_calls)


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


def allocations(t: Tables) -> Rows:
    """Return the calls that took memory from the driver or gave it back."""
    return t.calls(ALLOCATION)


def code_loads(t: Tables) -> Rows:
    """Return the long calls that loaded device code or set the runtime up; a launch of over 1 ms loaded code too.

    What asks for or sets something of a kernel loads that one, unless it ran before.
    """
    events = t.trace.events
    setup = t.calls(MODULE_LOAD)
    # Many of these calls are queries that return in a few µs when there is nothing to load.
    setup = setup[events.end[setup] - events.start[setup] > AT_ONCE_NS]
    setup = setup[~among(setup, t.known_kernel_calls)]
    launches = t.calls(LAUNCH)
    slow = launches[events.end[launches] - events.start[launches] > LONG_NS]
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
    # Of the optimizer, that stand in for step marks: of two the first may be the cold one.
    return t.steps.num >= 2 if t.steps.marked else len(_updates(t)) >= MIN_RECURRENCES


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
        return len(distinct(step[step < num])) >= MAJORITY * num
    step = np.searchsorted(t.steps.start, t.trace.events.start[rows], side="right")
    inside = step[(step > 0) & (t.trace.events.start[rows] < t.steps.end[-1])]
    return len(distinct(inside)) >= max(2.0, MAJORITY * t.steps.num)
