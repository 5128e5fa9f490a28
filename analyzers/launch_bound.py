"""The host cannot launch as fast as the device finishes.

What it looks for
    Idle while the launching thread was inside operators or short Python between them, with no long call: the time
    the framework needs to prepare the next launch, and the launch itself while the queue is empty. Without a device:
    operators that take less than 15 µs themselves, those of the backward pass too, and short Python between them, from
    30 % of the step on.

Why it costs
    A small kernel takes 2 to 10 µs on the device, and 10 to 50 µs of Python and dispatch to launch.

What to do
    Fewer, larger kernels: `torch.compile` (with CUDA graphs: mode="reduce-overhead"), larger batches, foreach or
    fused operators. Where a loop of the script's own calls them, outside the model: operators over all rows at once,
    and one transfer in the place of many `.item()`. Where the host waits for the device every few launches, remove the
    waits first: no graph holds them, and savings of graphs are those of longer intervals alone.

    The line is that of the loop, where samples show one and the recording holds where it ends: which of its lines has
    most of them changes from recording to recording.

How sure
    High that the host was preparing; how much fusing or graphs gain depends on the model. Without a device, what the
    operators that work leave of an unrecorded step is calling, whatever recording costs.
"""

from __future__ import annotations

import re
from dataclasses import asdict, replace

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleGaps, IdleRule, idle_finding, idle_gaps_of
from diagnose.analyzers.common.locate import sampled_lines, source_line
from diagnose.model.diagnosis import Finding, Where
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, intersect, subtract, total, union
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.dispatch import MIN_OVERHEAD_SHARE, TINY_OPERATOR_NS, overhead, tiny_share, unrecorded_calling
from diagnose.tables.host_gaps import without_operators
from diagnose.tables.issuers import (
    MIN_IN_LOOP,
    MIN_IN_MODEL,
    Issuer,
    SampledLoop,
    issued_in_loop,
    sampled_loop,
)
from diagnose.tables.names import DATA_SIZES, GRAPH_LAUNCH, LAUNCH
from diagnose.tables.python_calls import PASSES_ON
from diagnose.tables.syncs import MIN_GRAPH_LAUNCHES, in_sync_free
from diagnose.text.numbers import duration, percent, plural

__all__ = ["before_graphs", "share_before_graphs"]

# What a compiled function does on the host before its first launch: guards, its inputs, the trees of CUDA graphs.

_REGION = re.compile(r"^(Torch-Compiled Region|TorchDynamo Cache Lookup|CompiledFunction(Backward)?$)")


def before_graphs(t: Tables) -> Intervals:
    """Return the time from a compiled function's begin to its first launch, where that is the launch of a graph.

    What begins no later than the function and ends within it, as the look-up of its guards does, is part of it.
    """
    events = t.trace.events
    regions = t.in_window(t.calls(_REGION, Kind.OP, Kind.ANNOTATION))
    launches = t.calls(LAUNCH)
    if not len(regions) or not len(launches):
        return EMPTY
    graphs = set(t.calls(GRAPH_LAUNCH).tolist())
    starts, ends = [], []
    for thread in t.threads:
        mine = launches[events.thread[launches] == thread]
        mine = mine[np.argsort(events.start[mine], kind="stable")]
        own = regions[events.thread[regions] == thread]
        first = np.searchsorted(events.start[mine], events.start[own])
        for region, at in zip(own.tolist(), first.tolist(), strict=True):
            is_look_up = t.name(region).startswith("TorchDynamo")
            if (
                at < len(mine)
                and int(mine[at]) in graphs
                and (is_look_up or events.start[mine[at]] < events.end[region])
            ):
                starts.append(int(events.start[region]))
                ends.append(int(min(events.start[mine[at]], events.end[region])))
    return union((np.array(starts, np.int64), np.array(ends, np.int64))) if starts else EMPTY


def share_before_graphs(t: Tables, pieces: Intervals) -> float:
    """Return the share of idle pieces in which a compiled function had not launched its graph yet."""
    whole = total(pieces)
    return total(intersect(pieces, before_graphs(t))) / whole if whole else 0.0


META = RuleMeta(
    id="launch-bound",
    kind="idle",
    order=140,
    host_order=100,
    legend=Legend(
        "operators were issued slower than they ran",
        "#6366f1",
        host_label="Python and dispatch around many small operators",
    ),
    changes=("vectorise-loop", "compile-model", "compile-graphs", "fewer-guards"),
    inflated=True,
    cause="host-work",
    also=("capture-step",),
    paced_by="dispatch",
)

MIN_GRAPHABLE = 0.5  # of the idle time: below that the waits between the launches are what to remove
MIN_BEFORE_GRAPHS = 0.5  # of the idle time: then a compiled function's own work is what to look at
MIN_CERTAIN = 0.5  # of the unrecorded step: then calling operators is what takes it, whatever recording costs
MIN_NAMED = 0.1  # of the idle time: less is no line of the evidence
MAX_LINES, MAX_PLACES = 12, 5  # that are looked at, and that are named


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim the host's part of what is left, but for long intervals outside operators and interruptions within."""
    return subtract(intersect(left, t.gaps.host_part()), without_operators(t))


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim, without a device, the time of calling operators where it dominates.

    Where there are launches the device was only not recorded, and short operators are what launching looks like.
    """
    if len(t.launches_without_task):
        return EMPTY
    start, end = t.steps.window
    calls, loop = intersect(left, overhead(t)), intersect(left, issued_in_loop(t))
    return union(calls, loop) if total(calls) >= MIN_OVERHEAD_SHARE * (end - start) else loop


def find(t: Tables) -> list[Finding]:
    """Name the idle time of launching."""
    if t.device_id < 0:
        title = "Operators are so small that calling them takes the step's time"
        facts = {"has_device": False, **_issuer(t)}
        rule = IdleRule(META.id, title, probe="middle", evidence=_calling, facts=facts)
        return [
            replace(found, where=_with_issuer(t, found.where), unrecorded_share=_unrecorded_share(t))
            for found in idle_finding(t, rule)
        ]
    title = "The GPU waits for kernel launches"
    graphable = _graphable(t)
    if graphable < MIN_GRAPHABLE:
        title = "The host waits for the device every few launches, and gets no lead between the waits"
    rows = t.causes.of(META.id)
    pieces = Intervals(t.causes.start[rows], t.causes.end[rows])
    in_compiled = share_before_graphs(t, pieces)
    if in_compiled >= MIN_BEFORE_GRAPHS:
        title = "A compiled function works on the host before it launches its graph"
    rule = IdleRule(
        META.id,
        title,
        evidence=lambda t, o: [
            *_launching(t, o),
            *_waiting(t, graphable),
            *_compiled(t, in_compiled),
            *_by_one_function(t),
        ],
        facts={
            "has_device": True,
            "graphable": graphable,
            "before_graphs": in_compiled,
            "data_sizes": len(t.in_window(t.calls(DATA_SIZES, Kind.OP))) / t.steps.num,
            **_issuer(t),
        },
    )
    return [replace(found, where=_with_issuer(t, found.where)) for found in idle_finding(t, rule)]


def _graphable(t: Tables) -> float:
    """Return the share of the idle time before launches of intervals without a wait, long enough for a graph."""
    o = idle_gaps_of(t, META.id)
    launch = t.gaps.launch[o.gap]
    time = np.where(launch >= 0, t.trace.events.start[launch], (o.start + o.end) // 2)
    return float(o.lost[in_sync_free(t, time)].sum() / max(int(o.lost.sum()), 1))


def _compiled(t: Tables, share: float) -> list[str]:
    """Return what compiled functions take before the launches of their graphs."""
    if share < MIN_NAMED:
        return []
    calls = before_graphs(t)
    each = duration(total(calls) / len(calls.start))
    return [
        f"{percent(share)} of it passes in compiled functions before they launch their graphs: guards, arguments and "
        f"the checks of CUDA graph trees, {each} for each of {len(calls.start) / t.steps.num:,.0f} a step."
    ]


def _waiting(t: Tables, graphable: float) -> list[str]:
    """Return how much of it lies between waits, where that is most: the waits have to go first."""
    if graphable >= MIN_GRAPHABLE:
        return []
    num = len(t.in_window(t.blocking_calls)) / t.steps.num
    return [
        f"{percent(1 - graphable)} of it lies in intervals of fewer than {MIN_GRAPH_LAUNCHES} launches between two "
        f"blocking calls ({num:,.0f} a step): no graph holds them, and the host gets no lead before those are gone."
    ]


def _calling(t: Tables, _o: IdleGaps) -> list[str]:
    num, share = tiny_share(t)
    at_most = f"{TINY_OPERATOR_NS / 1000:.0f} µs"
    lines = [f"{num:.0f} operators a step; {percent(share, 0)} of them are over in less than {at_most}."]
    unrecorded, least = unrecorded_calling(t), _unrecorded_share(t)
    if unrecorded is not None and least is not None:
        lines.append(
            f"Without recording a step takes {duration(unrecorded.step_ns)}, at least {percent(least, 0)} of it for "
            f"{unrecorded.calls:,.0f} calls of operators, {duration(unrecorded.calling_ns / unrecorded.calls)} each: "
            "what recording costs does not change the cause."
        )
    return [*lines, *_by_one_function(t)]


def _unrecorded_share(t: Tables) -> float | None:
    """Return the share of an unrecorded step that calling operators takes at least, where that is most of it."""
    unrecorded = unrecorded_calling(t)
    if unrecorded is None or unrecorded.calling_ns < MIN_CERTAIN * unrecorded.step_ns:
        return None
    return unrecorded.calling_ns / unrecorded.step_ns


def _by_one_function(t: Tables) -> list[str]:
    issuer = _looping(t)
    if issuer is None:
        return []
    reads = f"; {issuer.reads:.0f} of them read one number each" if issuer.reads >= 1 else ""
    return [
        f"{issuer.function} ({issuer.file}:{issuer.line}) calls {issuer.num:.0f} of the operators of a step itself "
        f"({percent(issuer.share, 0)}), most of them {', '.join(issuer.names)}{reads}.",
        *_of_loop(issuer, sampled_loop(t, issuer.file, issuer.function)),
    ]


def _of_loop(issuer: Issuer, loop: SampledLoop | None) -> list[str]:
    if loop is None:
        return []
    body = f"lines {loop.head} to {loop.last}" if loop.last > loop.head else f"line {loop.head}"
    return [f"{percent(loop.share, 0)} of the samples of {issuer.function} are in the loop of {issuer.file}, {body}."]


def _looping(t: Tables) -> Issuer | None:
    """Return the function that issues most; beside a device only one whose operators are more than a model's layers.

    None where other rules account for most of the time in which it does.
    """
    issuer = t.issuer
    if issuer is not None and _is_of_others(t):
        return None
    few = issuer is not None and issuer.num < (MIN_IN_MODEL if issuer.in_model else MIN_IN_LOOP)
    return None if few and t.device_id >= 0 else issuer


def _is_of_others(t: Tables) -> bool:
    """Return whether less than half of the idle time in which one function issues is what no rule before explains."""
    rows = t.causes.of(META.id)
    mine = intersect(t.issued, Intervals(t.causes.start[rows], t.causes.end[rows]))
    return 2 * total(mine) < total(intersect(t.issued, union((t.causes.start, t.causes.end))))


def _issuer(t: Tables) -> dict[str, object]:
    issuer = _looping(t)
    return {"issuer": asdict(issuer)} if issuer is not None else {}


def _with_issuer(t: Tables, where: tuple[Where, ...]) -> tuple[Where, ...]:
    """Put the loop and the lines of the function that issues most first; its first line where none was sampled."""
    if t.device_id < 0:
        where = _lines_to_edit(t, where)
    issuer = _looping(t)
    if issuer is None:
        return where
    loop = sampled_loop(t, issuer.file, issuer.function)
    if loop is not None:
        code = source_line(t, issuer.file, loop.head)
        last = loop.last if loop.last > loop.head else None
        head = Where(issuer.file, loop.head, issuer.function, code=code, last_line=last)
        where = (head, *(w for w in where if (w.file, w.line) != (head.file, head.line)))
    mine = tuple(w for w in where if w.function == issuer.function and w.file == issuer.file)
    first = mine or (Where(issuer.file, issuer.line, issuer.function),)
    return (*first, *(w for w in where if w not in mine))


def _lines_to_edit(t: Tables, where: tuple[Where, ...]) -> tuple[Where, ...]:
    """Return the places with lines that call operators themselves first: a backward pass repeats what these called."""
    rows = t.causes.of(META.id)
    sampled = sampled_lines(t, Intervals(t.causes.start[rows], t.causes.end[rows]), MAX_LINES)
    lines = dict.fromkeys(w for w in (*(line for line, _ in sampled), *where) if w.file)
    calling = [w for w in lines if not PASSES_ON.search(w.code or "")]
    passing = [w for w in lines if PASSES_ON.search(w.code or "")]
    return (*calling, *passing, *(w for w in where if not w.file))[:MAX_PLACES]


def _launching(t: Tables, _o: IdleGaps) -> list[str]:
    q = t.queue
    return [
        f"{plural(q.launches_per_step, 'launch')} a step; {percent(q.late_share, 0)} of the device tasks were launched "
        f"onto an empty device."
    ]
