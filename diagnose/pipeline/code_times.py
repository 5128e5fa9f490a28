"""Where a step goes: by phase, module and function of the user's own files, by operator and by kernel.

Python frames show it, of the attribution window where there is one; their times are brought to those of the timing
window (``step_clock``). Without frames the lines show it that the sampler saw in the timing window.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.common.locate import locate_one
from diagnose.model.arrays import Floats, Ints, Mask, Rows
from diagnose.model.charts import (
    CodeTime,
    CodeTimes,
    DeviceShare,
    FlopUtilisation,
    HostOperator,
    KernelTime,
    Roofline,
    RooflinePoint,
)
from diagnose.model.events import Kind
from diagnose.model.intervals import (
    EMPTY,
    Intervals,
    among,
    contains,
    distinct,
    grouped,
    intersect,
    rows_of_each,
    span,
    subtract,
    union,
)
from diagnose.model.limits import MAJORITY
from diagnose.model.locations import FRAME, is_own_file
from diagnose.tables import Tables
from diagnose.tables.call_frames import names_of_open_frames
from diagnose.tables.host import Layers, host_rows, layers
from diagnose.tables.kernel_classes import CLASSES, OTHER
from diagnose.tables.names import BACKWARD, LOADER_NEXT, NAME_PART, ZERO_GRAD, names_of
from diagnose.tables.op_launches import MatchedStep, OperatorInputs
from diagnose.tables.roofline import PRECISION_NAMES, gpu_spec
from diagnose.text.kernel_names import shorten

# What the device spends its time on: its kernels, those of one name together, the most expensive first.

NO_COMPUTE = frozenset({"memcpy", "memset", "collective"})  # families
_DTYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "Half": "float16",
    "c10::Float8_e4m3fn": "float8", "c10::Float8_e4m3fnuz": "float8", "c10::Float8_e5m2": "float8",
    "signed char": "int8", "unsigned char": "uint8", "int": "int32", "long int": "int64", "bool": "bool",
}  # fmt: skip
_OWN_OPERATOR = r"^(?!autograd::|torch::|c10d::)\w+::"
# What names of kernels show of their types; a name that shows several shows none.
_IN_NAMES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("bfloat16", re.compile(r"bf16|bfloat16|_BBS_|_B[BS]_", re.IGNORECASE)),
    ("float16", re.compile(r"(?<!b)f16|(?<![A-Za-z])(h(gemm|cudnn|884|1688|16816))|c10::Half|__half|_HHS_|_HB?_")),
    ("float8", re.compile(r"e4m3|e5m2|fp8|float8", re.IGNORECASE)),
    ("int8", re.compile(r"int8|_s8_|imma", re.IGNORECASE)),
    ("tf32", re.compile(r"tf32|s1688|xf32", re.IGNORECASE)),
    ("float32", re.compile(r"sgemm|scudnn|simt_s|(?<![A-Za-z_])float(?![\w8])|_SB_|f32f32_f32f32_f32")),
)
# NCCL moves bytes where it adds nothing up, whatever the tensors' type is.
_MOVES_BYTES = r"(?i)nccl\w*_(SendRecv|AllGather|Broadcast)"


def kernel_times(t: Tables, most: int) -> list[tuple[KernelTime, int]]:
    """Return ``most`` kernels and for each the row of the launch of its longest call, -1 for none.

    The last entry sums what is not listed, so that the times add up to the time of all device tasks.
    """
    if t.device_id < 0 or not len(t.tasks.row):
        return []
    inverse = grouped(t.trace.events.name[t.tasks.row]).of
    length = (t.tasks.end - t.tasks.start).astype(np.float64)
    cost, whole = np.bincount(inverse, length), float(length.sum())
    if not whole:
        return []
    order = np.argsort(-cost, kind="stable")
    listed = order if len(order) <= most + 1 else order[:most]
    peak = np.full(len(length), np.nan)  # the share of the device's that the operator of each task reaches
    for group in t.roofline_groups:
        peak[group.tasks] = group.share
    found = [_kernel_time(t, np.flatnonzero(inverse == i), whole, peak) for i in listed.tolist()]
    rest = np.flatnonzero(~among(inverse, listed))
    if len(rest):
        num = len(order) - len(listed)
        time = float(length[rest].sum())
        found.append((KernelTime(f"{num} others", "", len(rest) / t.steps.num, time / t.steps.num, time / whole), -1))
    return found


def kernel_families(t: Tables) -> dict[str, float]:
    """Return the shares of the time of computing kernels, by family; a long kernel of no family by its own name."""
    if t.device_id < 0:
        return {}
    length = (t.tasks.end - t.tasks.start).astype(np.float64)
    of = t.task_classes
    cost = dict(zip(CLASSES, np.bincount(of, length, len(CLASSES)).tolist(), strict=True))
    unknown = np.flatnonzero(of == CLASSES.index(OTHER))
    names, _, inverse = grouped(t.trace.events.name[t.tasks.row[unknown]])
    whole = sum(ns for name, ns in cost.items() if name not in NO_COMPUTE)
    if not whole:
        return {}
    for name, ns in zip(names.tolist(), np.bincount(inverse, length[unknown], len(names)).tolist(), strict=True):
        # Of the computing time: a kernel of no family that takes less is one of the others.
        if ns >= 0.02 * whole:
            short = shorten(t.trace.names[name], 30)
            cost[short] = cost.get(short, 0.0) + ns
            cost[OTHER] -= ns
    cost["unclassified kernels"] = cost.pop(OTHER)
    found = {name: ns / whole for name, ns in cost.items() if ns > 0 and name not in NO_COMPUTE}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _kernel_time(t: Tables, tasks: Rows, whole: float, peak: Floats) -> tuple[KernelTime, int]:
    length = (t.tasks.end - t.tasks.start).astype(np.float64)
    longest = int(tasks[length[tasks].argmax()])
    name = t.name(int(t.tasks.row[longest]))
    with_peak = tasks[np.isfinite(peak[tasks])]
    covered = float(length[with_peak].sum())
    share = float((peak[with_peak] * length[with_peak]).sum() / covered) if covered else None
    time = float(length[tasks].sum())
    # The type that is computed with: of the inputs, or as the name shows it; TF32 takes float32 inputs.
    of_inputs, shown = _dtype_of_inputs(t.operator_inputs, tasks, length), name[:NAME_PART]
    in_name = [dtype for dtype, pattern in _IN_NAMES if pattern.search(shown)]
    of_name = in_name[0] if len(in_name) == 1 and not re.search(_MOVES_BYTES, name) else ""
    dtype = of_name if of_inputs == "float32" and of_name == "tf32" else of_inputs or of_name
    row = KernelTime(
        name=name,
        family=CLASSES[t.task_classes[longest]],
        calls_per_step=len(tasks) / t.steps.num,
        time_ns=time / t.steps.num,
        share=time / whole,
        dtype=dtype,
        peak_share=share if covered >= MAJORITY * time else None,
    )
    launched = tasks[t.tasks.launch[tasks] >= 0]
    at = int(launched[length[launched].argmax()]) if len(launched) else -1
    return row, int(t.tasks.launch[at]) if at >= 0 else -1


def _dtype_of_inputs(known: OperatorInputs, tasks: Rows, length: npt.NDArray[np.float64]) -> str:
    """Return the type of the operators' first floating-point tensor, where most of the time has one.

    A compiled region or a function of the backward hands its inputs to many operators: they show no kernel's type.
    """
    cost: dict[str, float] = {}
    single = np.zeros(len(known.texts) + 1, bool)
    names = known.name[tasks]
    for name in distinct(names[names >= 0]).tolist():
        single[name] = re.match(_OWN_OPERATOR, known.text(name)) is not None
    types = np.where(single[names], known.types[tasks], -1)
    for text in distinct(types[types >= 0]).tolist():
        given: object = None
        with suppress(ValueError):
            given = json.loads(known.text(text))
        named = [_DTYPES[t] for t in given if isinstance(t, str) and t in _DTYPES] if isinstance(given, list) else []
        dtype = next((dtype for dtype in named if "float" in dtype), named[0] if named else "")
        cost[dtype] = cost.get(dtype, 0.0) + float(length[tasks[types == text]].sum())
    name = max(cost, key=lambda dtype: cost[dtype], default="")
    return name if name and cost[name] > MAJORITY * float(length[tasks].sum()) else ""


def flop_utilisation(t: Tables) -> FlopUtilisation | None:
    """Return how much of its peak the device reached over the steps; None where no operation could be counted."""
    peak, found = gpu_spec(t), t.roofline_groups
    flop = sum(g.work.flop for g in found)
    if peak is None or not flop:
        return None
    start, end = t.steps.window
    at_peak_ns = sum(g.work.flop / peak.rate(g.precision) * 1e9 for g in found if g.work.flop)
    work = ~(t.tasks.is_collective | t.tasks.is_copy)
    computing = float((t.tasks.end - t.tasks.start)[work].sum())
    return FlopUtilisation(
        share=flop / max(peak.rate("f16"), peak.rate("fp32")) * 1e9 / (end - start),
        own_share=at_peak_ns / (end - start),
        flop_per_step=flop / t.steps.num,
        tflops=flop / (end - start) / 1e3,
        known_share=min(1.0, sum(g.time_ns for g in found) / computing),
        device=peak.name,
    )


def roofline(t: Tables) -> Roofline | None:
    """Return the chart's points, the most expensive first; None for an unknown device or where no work is known."""
    peak, found = gpu_spec(t), t.roofline_groups
    if peak is None or not found:
        return None
    start, end = t.steps.window
    points = tuple(
        RooflinePoint(
            op=g.op,
            shapes=g.shapes,
            kernel=g.kernel,
            step_share=g.time_ns / (end - start),
            precision=PRECISION_NAMES[g.precision],
            flop_per_byte=g.work.flop / g.work.bytes if g.work.bytes else 0.0,
            tflops=g.work.flop / g.time_ns / 1e3,
            gb_per_s=g.work.bytes / g.time_ns,
            bound=g.limit,
            achieved=g.share,
        )
        # What is left out is too short to be seen in the chart.
        for g in found[:60]
    )
    rates = {name: peak.rate(precision) / 1e12 for precision, name in PRECISION_NAMES.items()}
    return Roofline(peak.name, {name: rate for name, rate in rates.items() if rate}, peak.bandwidth, points)


# Python frames by the frames of the same kind around them, and what a step spends in each such path.

MODULE = "nn.Module: "
MAX_STACK_DEPTH = 200  # of one kind of frame: recursion beyond it counts for the frame at that depth


class _Thread(NamedTuple):
    """Frames of one thread, each with its path."""

    rows: Rows
    path: Ints  # -1 deeper than MAX_STACK_DEPTH
    nested: Layers

    def innermost(self, time: Ints) -> Ints:
        """Return the path that is open at each time, -1 for none."""
        found = np.full(len(time), -1, np.int64)
        for depth in range(len(self.nested.rows)):
            row = self.nested.open_in(depth, time)
            inside = row >= 0
            if not inside.any():
                break
            found[inside] = self.path[np.searchsorted(self.rows, row[inside])]
        return found


class CallPaths(NamedTuple):
    """A tree of paths: a path's number is larger than that of the path around it. Times are sums over all steps, ns."""

    parent: list[int]  # -1: outermost
    name: list[int]  # row of Trace.names
    calls: Floats
    host: Floats  # with what is called in it
    own: Floats  # without the paths in it
    device: Floats  # of tasks, with those of the paths in it
    backward: Floats  # of the host
    backward_device: Floats


class _Tree:
    def __init__(self, num_names: int) -> None:
        self.parent: list[int] = []
        self.name: list[int] = []
        self._known: dict[int, int] = {}
        self._num_names = num_names

    def add(self, t: Tables, rows: Rows) -> _Thread:
        """Give each frame of a thread its path, layer by layer."""
        events = t.trace.events
        nested, path = layers(t.trace, rows, MAX_STACK_DEPTH, deep=True), np.full(len(rows), -1, np.int64)
        for depth, mine in enumerate(nested.rows):
            around = np.full(len(mine), -1, np.int64)
            if depth:
                outer = nested.open_in(depth - 1, events.start[mine])
                around[outer >= 0] = path[np.searchsorted(rows, outer[outer >= 0])]
            keys = grouped((around + 1) * self._num_names + events.name[mine])
            numbers = np.array([self._number(key) for key in keys.value.tolist()], np.int64)
            path[np.searchsorted(rows, mine)] = numbers[keys.of]
        return _Thread(rows, path, nested)

    def _number(self, key: int) -> int:
        if key not in self._known:
            self._known[key] = len(self.parent)
            around, name = divmod(key, self._num_names)
            self.parent.append(around - 1)
            self.name.append(name)
        return self._known[key]


def frames_of(t: Tables, thread: int, is_wanted: Callable[[str], bool]) -> Rows:
    """Return a thread's Python frames with such names."""
    wanted = np.zeros(len(t.trace.names) + 1, bool)
    for name in names_of(t.trace, Kind.PYTHON):
        wanted[name] = is_wanted(t.trace.names[name])
    if not wanted.any():
        return np.empty(0, np.intp)
    rows = host_rows(t.trace, thread, Kind.PYTHON)
    found: Rows = rows[wanted[t.trace.events.name[rows]]]
    return found


def call_paths(t: Tables, clock: StepClock, is_wanted: Callable[[str], bool]) -> CallPaths | None:
    """Return the paths of the frames with such names on the threads that matter, None where there are none.

    ``t`` are the tables of the window with names, ``clock`` what its times are brought to.
    """
    events, tree = t.trace.events, _Tree(len(t.trace.names) + 1)
    found = {thread: tree.add(t, rows) for thread in t.threads if len(rows := frames_of(t, thread, is_wanted))}
    if not found:
        return None
    num = len(tree.parent)

    def summed(path: Ints, weight: Floats | Mask) -> Floats:
        of = path >= 0
        sums: Floats = np.bincount(path[of], weight[of], minlength=num).astype(np.float64)
        return sums

    rows, path = (np.concatenate([getattr(each, key) for each in found.values()]) for key in ("rows", "path"))
    host = summed(path, clock.length(events.start[rows], events.end[rows]))
    calls = summed(path, clock.counts(events.start[rows]))

    def within(launched: Rows) -> Ints:
        """Return the path that each event lies in; times are rounded, so it is looked for in the event's middle."""
        inside, time = np.full(len(launched), -1, np.int64), (events.start[launched] + events.end[launched]) // 2
        for thread, frames in found.items():
            mine = (events.thread[launched] == thread) & clock.counts(time)
            inside[mine] = frames.innermost(time[mine])
        return inside

    linked = t.links
    of_node, task_ns = within(linked.ops), (t.tasks.end - t.tasks.start).astype(np.float64)
    of_task, of_backward = (np.full(len(task_ns), -1, np.int64) for _ in range(2))
    launched = np.flatnonzero(t.tasks.launch >= 0)
    of_task[launched] = within(t.tasks.launch[launched].astype(np.intp))
    node, node_ns = _backward_nodes(t, launched, clock)
    launched, node = launched[node >= 0], node[node >= 0]
    of_backward[launched] = of_node[np.searchsorted(linked.nodes, node)]
    of_task[of_backward >= 0] = -1

    def with_inner(own: Floats) -> Floats:
        """Return the sums of paths with those of the paths in them."""
        whole = own.tolist()
        for path in range(num - 1, -1, -1):
            if tree.parent[path] >= 0:
                whole[tree.parent[path]] += whole[path]
        return np.array(whole, np.float64)

    sums = (of_task, task_ns), (of_node, node_ns), (of_backward, task_ns)
    device, backward, backward_device = (with_inner(summed(*each)) for each in sums)
    own = host.copy()
    np.subtract.at(own, [p for p in tree.parent if p >= 0], host[[p >= 0 for p in tree.parent]])
    return CallPaths(tree.parent, tree.name, calls, host, np.maximum(own, 0.0), device, backward, backward_device)


def _backward_nodes(t: Tables, tasks: Rows, clock: StepClock) -> tuple[Rows, Floats]:
    """Return the innermost node of the backward pass that launched each task, -1 for none, and what each node takes.

    A node takes its time without the nodes in it, as of a pass that recomputes.
    """
    events, nodes, launch = t.trace.events, t.links.nodes, t.tasks.launch[tasks]
    took = clock.length(events.start[nodes], events.end[nodes])
    found = np.full(len(tasks), -1, np.intp)
    time = (events.start[launch] + events.end[launch]) // 2
    for thread, rows in rows_of_each(events.thread[nodes]).items():
        nested = layers(t.trace, nodes[rows])
        mine = np.flatnonzero(events.thread[launch] == thread)
        for depth, inner in enumerate(nested.rows):
            row = nested.open_in(depth, time[mine])
            found[mine[row >= 0]] = row[row >= 0]
            if depth:
                outer = nested.open_in(depth - 1, events.start[inner])
                known = outer >= 0
                inner_ns = clock.length(events.start[inner], events.end[inner])
                np.subtract.at(took, np.searchsorted(nodes, outer[known]), inner_ns[known])
    return found, np.maximum(took, 0.0)


# What a step's time goes into by the training loop's phases, as far as the recording shows them.
#
# Marks of the loader, of autograd and of the optimizer show *loading*, *backward* and *optimizer*. Frames show
# *forward* (a module outside of these), *loss* (a loss of torch's, or a function or module named so, without other
# modules that it calls), *evaluation* and *collate* (functions named so). The rest is *other*.

PHASE_ORDER = ("loading", "collate", "forward", "loss", "backward", "optimizer", "evaluation", OTHER)
_LOSS_MODULE = r"(Loss|Criterion)\w*_\d+$"
_LIBRARY = (  # files of torch's, the functions that show a phase, and which
    (("torch/_tensor.py", "torch/autograd/__init__.py"), r"(backward|grad)$", "backward"),
    ("torch/nn/functional.py", r"cross_entropy$|kl_div$|\w+_loss$", "loss"),
    ("torch/utils/data/_utils/collate.py", "", "collate"),
)
# Functions of the user's, by their names.
_NAMED = (
    r"(?:^|_)(?:(?P<evaluation>eval(?:uate|uation)?|validat(?:e|ion))|(?P<collate>collate|collator)"
    r"|(?P<loss>loss|losses|criterion))(?:_|$)"
)
_IN_LOSS = "loss module"  # other modules in it belong to the loss


def code_phases(t: Tables, clock: StepClock) -> tuple[CodeTime, ...]:
    """Return the phases in the order of a step, then the rest; their times and shares sum to the step."""
    events, window = t.trace.events, span(int(clock.time[0]), int(clock.time[-1]))
    framed = _framed(t)
    backward = union(t.covering(t.calls(BACKWARD, Kind.OP, Kind.ANNOTATION)), framed["backward"])
    optimizer = union(t.updates, t.covering(t.calls(ZERO_GRAD, Kind.ANNOTATION, Kind.OP)))
    loading = t.covering(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP))
    found: dict[str, Intervals] = {}
    left = window
    for name, pieces in (
        ("evaluation", framed["evaluation"]),
        ("backward", backward),
        ("optimizer", optimizer),
        ("collate", framed["collate"]),
        ("loading", loading),
        ("loss", framed["loss"]),
        ("forward", framed["forward"]),
    ):
        found[name], left = intersect(pieces, left), subtract(left, pieces)
    found[OTHER] = left
    shown = [name for name in PHASE_ORDER if len(found[name].start)]
    if shown == [OTHER]:
        return ()
    host = [float(clock.length(*found[name]).sum()) / clock.num for name in shown]
    launched = np.flatnonzero(t.tasks.launch >= 0)
    start, task_ns = events.start[t.tasks.launch[launched]], (t.tasks.end - t.tasks.start)[launched]
    task_ns[~clock.counts(start)] = 0
    device = [float(task_ns[contains(found[name], start)].sum()) / clock.num for name in shown]
    return tuple(
        CodeTime(name, ns, ns / max(clock.step_ns, 1.0), ns, device_ns=on_device if t.device_id >= 0 else None)
        for name, ns, on_device in zip(shown, host, device, strict=True)
    )


def _framed(t: Tables) -> Mapping[str, Intervals]:
    """Return when the training thread is in which phase by its frames, by the innermost that shows one."""
    found = dict.fromkeys(("evaluation", "backward", "collate", "loss", "forward"), EMPTY)
    if t.main < 0:
        return found
    rows = frames_of(t, t.main, lambda name: bool(_label(name)))
    events, nested = t.trace.events, layers(t.trace, rows, deep=True)
    labels = [*found, _IN_LOSS]
    of_name = {name: labels.index(_label(t.trace.names[name])) for name in set(events.name[rows].tolist())}
    label = np.array([of_name[name] for name in events.name[rows].tolist()], np.int64)
    evaluation, collate, loss, in_loss = (labels.index(name) for name in ("evaluation", "collate", "loss", _IN_LOSS))
    for depth, mine in enumerate(nested.rows):
        at = np.searchsorted(rows, mine)
        if depth:
            outer = nested.open_in(depth - 1, events.start[mine])
            around = np.where(outer >= 0, label[np.searchsorted(rows, np.maximum(outer, 0))], -1)
            stays = (around == evaluation) | (around == collate) | (around == in_loss)
            label[at] = np.where(stays, around, label[at])
        pieces = {number: t.covering(mine[label[at] == number]) for number in set(label[at].tolist())}
        covered = union(*pieces.values())
        for number, name in enumerate(found):
            own = [pieces[n] for n in pieces if (loss if n == in_loss else n) == number]
            found[name] = union(subtract(found[name], covered), *own)
    return found


def _label(frame: str) -> str:
    """Return the phase that a frame shows, "" for none."""
    if frame.startswith(MODULE):
        return _IN_LOSS if re.search(_LOSS_MODULE, frame) else "forward"
    place, _, function = frame.rpartition("): ")
    if not place:
        return ""  # a built-in function
    file = place.rpartition("(")[0]
    for end, pattern, phase in _LIBRARY:
        if file.endswith(end):
            return phase if re.match(pattern, function) else ""
    named = re.search(_NAMED, function)
    return named.lastgroup or "" if named is not None and is_own_file(file) else ""


MAX_PAGE_ROWS = 60  # of a table of a page: functions, launching operators, kernels whose launch is looked up
MIN_SHOWN_SHARE = 0.0005  # of the step: less is no row
MIN_SAMPLES_SHOWN = 3  # in a function or a box: fewer do not show its share
# Parts of a function, which are counted as its own time.
_PARTS = frozenset({"<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"})


def code_times(t: Tables) -> CodeTimes:
    """Return the times by phase, module and function; without stacks and samples there are the phases alone."""
    named = t.named
    if names_of(named.trace, Kind.PYTHON):
        clock = step_clock(t)
        phases, modules, functions = code_phases(named, clock), _modules(named, clock), _functions(named, clock)
        if modules or functions:
            return CodeTimes("frames", clock.step_ns, clock.as_timed, phases, modules, functions)
    sampled = _sampled(t)
    phases = code_phases(t, own_clock(t))
    return CodeTimes("samples" if sampled else "none", t.steps.step_ns, phases=phases, functions=sampled)


class _Sums(NamedTuple):
    """What paths take over all steps, and what makes figures of a step of it."""

    paths: CallPaths
    clock: StepClock
    has_device: bool

    def row(self, name: str, each: list[int], outer: list[int], depth: int = 0) -> CodeTime:
        """Return the sums of some paths; of times with what is called, those of the ``outer`` ones."""
        paths, host = self.paths, self._of(self.paths.host, outer)
        return CodeTime(
            name,
            self_ns=self._of(paths.own, each),
            share=host / self.clock.step_ns if self.clock.step_ns else 0.0,
            host_ns=host,
            calls=self._of(paths.calls, each),
            device_ns=self._of(paths.device, outer) if self.has_device else None,
            backward_ns=self._of(paths.backward, outer),
            backward_device_ns=self._of(paths.backward_device, outer) if self.has_device else None,
            depth=depth,
        )

    def _of(self, column: Floats, paths: list[int]) -> float:
        return float(column[paths].sum()) / self.clock.num


def _modules(t: Tables, clock: StepClock) -> tuple[CodeTime, ...]:
    """Return the tree of modules, each before those called in it; of too many the longest."""
    paths = call_paths(t, clock, lambda name: name.startswith(MODULE))
    if paths is None:
        return ()
    sums = _Sums(paths, clock, t.device_id >= 0)
    whole = np.maximum(paths.host + paths.backward, paths.device + paths.backward_device)
    least = MIN_SHOWN_SHARE * clock.step_ns * clock.num
    # A module takes as long as those in it and has a lower number, so none is kept without those around it.
    # A page has the longest rows.
    kept = [p for p in np.argsort(-whole, kind="stable")[:300].tolist() if whole[p] >= least]
    inner: defaultdict[int, list[int]] = defaultdict(list)
    for path in kept:
        inner[paths.parent[path]].append(path)
    found: list[CodeTime] = []
    waiting = [(path, "", 0) for path in reversed(inner[-1])]
    while waiting:
        path, around, depth = waiting.pop()
        name = around + t.trace.names[paths.name[path]].removeprefix(MODULE).replace(".", "_")
        found.append(sums.row(name, [path], [path], depth))
        waiting += [(each, f"{name}.", depth + 1) for each in reversed(inner[path])]
    return tuple(found)


def _functions(t: Tables, clock: StepClock) -> tuple[CodeTime, ...]:
    """Return the functions of the user's own files, those first that take longest with what they call."""

    def is_own(frame: str) -> bool:
        place, _, function = frame.rpartition("): ")
        file = place.rpartition("(")[0]
        return bool(file) and function not in _PARTS and is_own_file(file)

    paths = call_paths(t, clock, is_own)
    if paths is None:
        return ()
    found, sums = [], _Sums(paths, clock, t.device_id >= 0)
    already = names_of_open_frames(t)
    by_name: defaultdict[int, list[int]] = defaultdict(list)
    for path, name in enumerate(paths.name):
        by_name[name].append(path)
    for name, each in by_name.items():
        shown = t.trace.names[name]  # "train.py(41): compute_loss" as "train.py:41 compute_loss"
        if (match := FRAME.match(shown)) is not None:
            line = "" if name in already else f":{match['line']}"
            shown = f"{match['file']}{line} {match['function']}"
        row = sums.row(shown, each, _outermost(paths, each))
        # Of the step: what runs around all steps and takes less itself only calls the others.
        passes_on = not row.calls and row.self_ns < 0.01 * clock.step_ns
        if row.share >= MIN_SHOWN_SHARE and not passes_on:
            found.append(row)
    return tuple(sorted(found, key=lambda row: -(row.host_ns or 0.0))[:MAX_PAGE_ROWS])


def _outermost(paths: CallPaths, same: list[int]) -> list[int]:
    """Return those of a function's paths that lie in no call of it: of recursive calls the first."""

    def is_outer(path: int) -> bool:
        name, path = paths.name[path], paths.parent[path]
        while path >= 0 and paths.name[path] != name:
            path = paths.parent[path]
        return path < 0

    return [path for path in same if is_outer(path)]


def _sampled(t: Tables) -> tuple[CodeTime, ...]:
    """Return the functions that the sampler saw the training thread in, with the line that it was at most often."""
    samples, epoch = t.capture.samples, t.trace.epoch_ns
    if samples is None or not epoch:
        return ()
    start, end = t.steps.window
    time = samples.time_ns - epoch
    seen = Counter(samples.place[(time >= start) & (time < end)].tolist())
    total = sum(seen.values())
    lines: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for place, num in seen.items():
        if place >= 0 and is_own_file(samples.places[place][0]):
            file, line, function = samples.places[place]
            lines[file, function][line] += num
    often = ((key, at.most_common(1)[0][0], sum(at.values())) for key, at in lines.items())
    rows = [
        CodeTime(f"{file}:{line} {function}", num / total * t.steps.step_ns, num / total)
        for (file, function), line, num in often
        if num >= MIN_SAMPLES_SHOWN
    ]
    return tuple(sorted(rows, key=lambda row: -row.self_ns)[:MAX_PAGE_ROWS])


# The same by operator of the host, by kernel of the device, and by the operator that launched it.

MAX_HOST_OPERATORS = 12


def host_operators(t: Tables) -> tuple[HostOperator, ...]:
    """Return the operators of the threads that matter, the most expensive by self time first."""
    (start, end), events, num = t.steps.window, t.trace.events, len(t.trace.names)
    calls, own, whole = np.zeros(num, np.int64), np.zeros(num), np.zeros(num)
    for thread in t.threads:
        rows = host_rows(t.trace, thread, Kind.OP)
        nested = layers(t.trace, rows[(events.start[rows] >= start) & (events.start[rows] < end)])
        inner_rows, inner_start = (*nested.rows[1:], np.empty(0, np.int32)), (*nested.start[1:], events.start[:0])
        each = zip(nested.rows, nested.start, inner_rows, inner_start, strict=False)
        for layer, begin, children, child_begin in each:
            names, spent = events.name[layer], (events.end[layer] - begin).astype(np.float64)
            calls += np.bincount(names, minlength=num)
            whole += np.bincount(names, spent, num)
            parent = np.searchsorted(begin, child_begin, side="right") - 1
            spent -= np.bincount(parent, events.end[children] - child_begin, len(layer))
            own += np.bincount(names, np.maximum(spent, 0.0), num)
    called = np.flatnonzero(calls)
    known = np.flatnonzero((events.kind == int(Kind.OP)) & (events.shapes >= 0))
    known = known[(events.start[known] >= start) & (events.start[known] < end)]
    known = known[among(events.thread[known], t.threads)]

    def shapes(name: int) -> str:
        """Return the shapes that most of the calls of a name have, the first of several; "" if none were recorded."""
        counted = Counter(events.shapes[known[events.name[known] == name]].tolist())
        return t.trace.names[counted.most_common(1)[0][0]] if counted else ""

    return tuple(
        HostOperator(
            name=t.trace.names[i],
            calls_per_step=calls[i] / t.steps.num,
            self_ns=own[i] / t.steps.num,
            total_ns=whole[i] / t.steps.num,
            shapes=shapes(i),
        )
        for i in called[np.argsort(-own[called], kind="stable")][:MAX_HOST_OPERATORS].tolist()
    )


def kernels(t: Tables, most: int = 10) -> tuple[KernelTime, ...]:
    """Return ``most`` of the device's kernels, the most expensive first, with the place of their launch."""
    events = t.trace.events
    return tuple(
        row._replace(where=replace(locate_one(t, int(events.thread[at]), int(events.start[at])), stack=()))
        if at >= 0 and i < MAX_PAGE_ROWS
        else row
        for i, (row, at) in enumerate(kernel_times(t, most))
    )


def by_operator(t: Tables) -> tuple[DeviceShare, ...]:
    """Return the device time that each operator launched; what no operator launched is one entry."""
    if t.device_id < 0 or not len(t.tasks.row):
        return ()
    ops = t.operators
    ids, _, inverse = grouped(np.where(ops >= 0, t.trace.events.name[np.maximum(ops, 0)], -1).astype(np.int64))
    length = (t.tasks.end - t.tasks.start).astype(np.float64)
    time, calls, whole = np.bincount(inverse, length), np.bincount(inverse), max(float(length.sum()), 1.0)
    names = {i: t.trace.names[i] for i in ids.tolist()} | {-1: "(no operator recorded)"}
    return tuple(
        DeviceShare(
            names[int(ids[i])], int(calls[i]) / t.steps.num, float(time[i]) / t.steps.num, float(time[i]) / whole
        )
        for i in np.argsort(-time, kind="stable")[:MAX_PAGE_ROWS].tolist()
    )


class StepClock(NamedTuple):
    """Brings times of the window with names to the time line of the steps counted, which follow each other."""

    steps: Intervals  # that count; others last no time
    time: Ints  # begins and ends of steps and operators, ns
    shown: Floats  # where they lie, ns
    as_timed: bool  # in the timing window

    @property
    def num(self) -> int:
        """Return the number of steps that count."""
        return len(self.steps.start)

    @property
    def step_ns(self) -> float:
        """Return what a step takes."""
        return float(self.shown[-1]) / self.num

    def length(self, start: Ints, end: Ints) -> Floats:
        """Return how long each takes, of what lies within the steps."""
        found: Floats = np.interp(end, self.time, self.shown) - np.interp(start, self.time, self.shown)
        return found

    def counts(self, time: Ints) -> Mask:
        """Return which times lie within the steps."""
        return contains(self.steps, time)


def step_clock(t: Tables) -> StepClock:
    """Return the clock of the window with names: that of its own times where no step has its like in the other one."""
    named = t.named
    if named is not t and (found := _matched(t, named)) is not None:
        return found
    return own_clock(named)._replace(as_timed=named is t)


def own_clock(t: Tables) -> StepClock:
    """Return the clock of a window that leaves its times as they are."""
    start, end = t.steps.window
    bounds = np.append(t.steps.start, end)
    bounds = np.maximum.accumulate(np.maximum(bounds, start))
    return StepClock(Intervals(bounds[:-1], bounds[1:]), bounds, (bounds - start).astype(np.float64), as_timed=True)


def _matched(t: Tables, named: Tables) -> StepClock | None:
    like: dict[int, list[MatchedStep]] = {}
    for step in t.matched_steps:
        like.setdefault(_step_of(named, step.named), []).append(step)
    numbers = sorted(i for i in like if i >= 0)
    if not numbers:
        return None
    times, shown, reached = [], [], 0.0
    for i in numbers:
        first = like[i][0].named
        times.append(_marks(named, i, first))
        same = [step.rows for step in like[i] if len(step.named) == len(first) and (step.named == first).all()]
        timed = [(_marks(t, j, rows) - t.steps.start[j]) for rows in same if (j := _step_of(t, rows)) >= 0]
        if not timed:
            return None
        shown.append(reached + np.mean(timed, axis=0))
        reached = float(shown[-1][-1])
    steps = Intervals(named.steps.start[numbers], named.steps.end[numbers])
    return StepClock(steps, np.concatenate(times), np.concatenate(shown), as_timed=True)


def _step_of(t: Tables, rows: Rows) -> int:
    """Return the step that operators lie in, -1 for none."""
    return int(np.searchsorted(t.steps.start, t.trace.events.start[rows[0]], side="right")) - 1


def _marks(t: Tables, step: int, rows: Rows) -> Ints:
    """Return the begin of a step, begin and end of each of its operators, and its end, in their order."""
    start, end = int(t.steps.start[step]), int(t.steps.end[step])
    inner = np.stack([t.trace.events.start[rows], t.trace.events.end[rows]], axis=1).reshape(-1)
    return np.maximum.accumulate(np.clip(np.concatenate([[start], inner, [end]]), start, end))
