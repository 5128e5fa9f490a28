"""The CPU launches kernels more slowly than the GPU runs them.

What it looks for
    Idle time while the launching thread is inside operators or short Python code between them. On a CPU: operators of
    less than 15 µs, if calling them takes 30% of the step.

Why it costs
    A small kernel takes 2–10 µs on the GPU, but 10–50 µs of Python and dispatch to launch.

What to do
    Launch fewer, larger kernels: `torch.compile(model, mode="reduce-overhead")`, larger batches, foreach or fused
    operators. Vectorize loops in the script. Remove waits for the GPU first: CUDA graphs cannot contain them.

How sure
    High that the CPU was the limit. The gain of compiling depends on the model.
"""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import PurePath

import numpy as np

from diagnose.analyzers.common.advice import Advice, identical
from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, idle_gaps_of
from diagnose.analyzers.common.locate import line_at, sampled_lines
from diagnose.model.diagnosis import Finding, Where
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, among, intersect, subtract, total, union
from diagnose.model.numerics import number
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.dispatch import MIN_OVERHEAD_SHARE, TINY_OPERATOR_NS, overhead, tiny_share, unrecorded_calling
from diagnose.tables.flow import shows_values
from diagnose.tables.host_gaps import without_operators
from diagnose.tables.issuers import (
    MIN_IN_LOOP,
    MIN_IN_MODEL,
    issued_in_loop,
    sampled_loop,
)
from diagnose.tables.names import DATA_SIZES, GRAPH_LAUNCH, LAUNCH
from diagnose.tables.python_calls import PASSES_ON, Issuer
from diagnose.tables.syncs import MIN_GRAPH_LAUNCHES, in_sync_free
from diagnose.text.numbers import duration, percent, plural

META = RuleMeta(
    id="launch-bound",
    kind="idle",
    order=140,
    host_order=100,
    legend=Legend(
        "operators were issued slower than they ran",
        host_label="Python and dispatch around many small operators",
    ),
    changes=("vectorise-loop", "compile-model", "compile-graphs", "fewer-guards"),
    inflated=True,
    cause="host-work",
    also=("capture-step",),
    paced_by="dispatch",
    is_pace=True,
)
ADVICE = (
    Advice(
        id="fewer-guards",
        title="Reduce the guards that run before each compiled graph",
        numerics=identical("if nothing changes that a guard was for"),
        before='model = torch.compile(model, mode="reduce-overhead")',
        after="""skip = torch.compiler.skip_guard_on_inbuilt_nn_modules_unsafe
options = {"triton.cudagraphs": True, "guard_filter_fn": skip}   # as in mode="reduce-overhead"
model = torch.compile(model, fullgraph=True, options=options)
# several compiled calls per step: compile the function that makes them, as one
# or capture the step itself, which nothing is checked for: diagnose.kernels.step_graph""",
        needs="torch 2.8 or later; modules that do not change after the first call",
        watch="A guard that is left out no longer notices what it was for, as an attribute that changes later.",
        when=lambda f, p: not p.server and number(f.facts, "before_graphs") >= 0.3,  # of the finding
        most=0.7,  # arguments are handled and the graph is looked up in any case
        of="before_graphs",
    ),
)

_REGION = re.compile(r"^(Torch-Compiled Region|TorchDynamo Cache Lookup|CompiledFunction(Backward)?$)")


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
    calls, loop = intersect(left, overhead(t)), intersect(left, issued_in_loop(t) if _may_loop(t) else EMPTY)
    return union(calls, loop) if total(calls) >= MIN_OVERHEAD_SHARE * (end - start) else loop


def find(t: Tables) -> list[Finding]:
    """Name the idle time of launching."""
    issuer = _looping(t)
    known = {"issuer": asdict(issuer)} if issuer is not None else {}
    if t.device_id < 0:
        title = "Operators are so small that calling them takes the step's time"
        facts = {"has_device": False, **known}
        rule = IdleRule(META.id, title, "middle", evidence=[*_calling(t), *_by_one_function(t, issuer)], facts=facts)
        return [
            replace(each, where=_with_issuer(t, issuer, _lines_to_edit(t, each.where)), unrecorded_share=_certain(t))
            for each in idle_finding(t, rule)
        ]
    pieces, compiling = t.causes.pieces(META.id), before_graphs(t)
    in_compiled = total(intersect(pieces, compiling)) / max(total(pieces), 1)
    o = idle_gaps_of(t, META.id)  # before launches of intervals without a wait, long enough for a graph
    launch = t.gaps.launch[o.gap]
    time = np.where(launch >= 0, t.trace.events.start[launch], (o.start + o.end) // 2)
    graphable = float(o.lost[in_sync_free(t, time)].sum() / max(int(o.lost.sum()), 1))
    title, texts = "The GPU waits for kernel launches", []
    if in_compiled >= 0.1:
        num = len(compiling.start)
        texts.append(
            f"{percent(in_compiled)} of it passes in compiled functions before they launch their graphs: guards, "
            f"arguments and the checks of CUDA graph trees, {duration(total(compiling) / num)} for each of "
            f"{num / t.steps.num:,.0f} a step."
        )
    if graphable < 0.5:  # the waits have to go first
        title = "The host waits for the device every few launches, and gets no lead between the waits"
        num_calls = len(t.in_window(t.blocking_calls)) / t.steps.num
        texts.insert(
            0,
            f"{percent(1 - graphable)} of it lies in intervals of fewer than {MIN_GRAPH_LAUNCHES} launches between two "
            f"blocking calls ({num_calls:,.0f} a step): no graph holds them, and the host gets no lead before those "
            "are gone.",
        )
    if in_compiled >= 0.5:
        title = "A compiled function works on the host before it launches its graph"
    launches = (
        f"{plural(t.queue.launches_per_step, 'launch')} a step; {percent(t.queue.late_share, 0)} of the device tasks "
        "were launched onto an empty device."
    )
    sizes = len(t.in_window(t.calls(DATA_SIZES, Kind.OP))) / t.steps.num
    facts = {"has_device": True, "graphable": graphable, "before_graphs": in_compiled, "data_sizes": sizes, **known}
    evidence = [launches, *texts, *_by_one_function(t, issuer)]
    rule = IdleRule(META.id, title, evidence=evidence, facts=facts)
    return [replace(each, where=_with_issuer(t, issuer, each.where)) for each in idle_finding(t, rule)]


def before_graphs(t: Tables) -> Intervals:
    """Return the time from a compiled function's begin to its first launch, where that is the launch of a graph.

    It does guards, its inputs and the trees of CUDA graphs. What begins no later than the function and ends within it,
    as the look-up of its guards does, is part of it.
    """
    events = t.trace.events
    regions, launches = t.in_window(t.calls(_REGION, Kind.OP, Kind.ANNOTATION)), t.calls(LAUNCH)
    found = [EMPTY]
    for thread in t.threads if len(regions) else ():
        mine = launches[events.thread[launches] == thread]
        mine = mine[np.argsort(events.start[mine], kind="stable")]
        own = regions[events.thread[regions] == thread]
        at = np.searchsorted(events.start[mine], events.start[own])
        own, first = own[at < len(mine)], mine[at[at < len(mine)]]
        is_look_up = np.array([t.name(row).startswith("TorchDynamo") for row in own.tolist()], bool)
        kept = among(first, t.calls(GRAPH_LAUNCH)) & (is_look_up | (events.start[first] < events.end[own]))
        own, first = own[kept], first[kept]
        found.append(Intervals(events.start[own], np.minimum(events.start[first], events.end[own])))
    return union(*found)


def _calling(t: Tables) -> list[str]:
    num, share = tiny_share(t)
    tiny = f"{TINY_OPERATOR_NS / 1000:.0f} µs"
    lines = [f"{num:.0f} operators a step; {percent(share, 0)} of them are over in less than {tiny}."]
    unrecorded, least = unrecorded_calling(t), _certain(t)
    if unrecorded is not None and least is not None:
        lines.append(
            f"Without recording a step takes {duration(unrecorded.step_ns)}, at least {percent(least, 0)} of it for "
            f"{unrecorded.calls:,.0f} calls of operators, {duration(unrecorded.calling_ns / unrecorded.calls)} each: "
            "what recording costs does not change the cause."
        )
    return lines


def _certain(t: Tables) -> float | None:
    """Return the share of an unrecorded step that calling operators takes at least, where that is most of it."""
    unrecorded = unrecorded_calling(t)
    share = unrecorded.calling_ns / unrecorded.step_ns if unrecorded is not None else 0.0
    return share if share >= 0.5 else None


def _by_one_function(t: Tables, issuer: Issuer | None) -> list[str]:
    if issuer is None:
        return []
    reads = f"; {issuer.reads:.0f} of them read one number each" if issuer.reads >= 1 else ""
    texts = [
        f"{issuer.function} ({issuer.file}:{issuer.line}) calls {issuer.num:.0f} of the operators of a step itself "
        f"({percent(issuer.share, 0)}), most of them {', '.join(issuer.names)}{reads}."
    ]
    loop = sampled_loop(t, issuer.file, issuer.function)
    if loop is not None:
        body = f"lines {loop.head} to {loop.last}" if loop.last > loop.head else f"line {loop.head}"
        share = percent(loop.share, 0)
        texts.append(f"{share} of the samples of {issuer.function} are in the loop of {issuer.file}, {body}.")
    return texts


def _looping(t: Tables) -> Issuer | None:
    """Return the function that issues most; beside a device only one whose operators are more than a model's layers.

    None where other rules account for most of the time in which it does, or the data flow shows no loop there: what a
    function of torch calls for each tensor need not be one that the line could do without.
    """
    issuer = t.issuer
    if issuer is None or not _may_loop(t):
        return None
    mine = intersect(t.issued, t.causes.pieces(META.id))
    of_others = 2 * total(mine) < total(intersect(t.issued, union((t.causes.start, t.causes.end))))
    few = t.device_id >= 0 and issuer.num < (MIN_IN_MODEL if issuer.in_model else MIN_IN_LOOP)
    return None if of_others or few else issuer


def _may_loop(t: Tables) -> bool:
    """Return whether fewer operators may do what the issuer's loop does, as far as the data flow shows it."""
    flow, issuer = t.flow, t.issuer
    if flow is None or issuer is None or not shows_values(t):
        return True
    own = PurePath(issuer.file).name, issuer.function
    loops = (one for one in flow.found.loops if one.kind != "separable")
    lines = (line for one in loops for line in (one.line, *one.called, *one.work.lines))
    return any((PurePath(line.file).name, line.function) == own for line in lines)


def _with_issuer(t: Tables, issuer: Issuer | None, where: tuple[Where, ...]) -> tuple[Where, ...]:
    """Put the loop and the lines of the function that issues most first; its first line where none was sampled."""
    if issuer is None:
        return where
    loop = sampled_loop(t, issuer.file, issuer.function)
    if loop is not None:
        last = loop.last if loop.last > loop.head else None
        head = replace(line_at(t, issuer.file, loop.head, issuer.function), last_line=last)
        where = (head, *(w for w in where if (w.file, w.line) != (head.file, head.line)))
    mine = tuple(w for w in where if w.function == issuer.function and w.file == issuer.file)
    first = mine or (Where(issuer.file, issuer.line, issuer.function),)
    return (*first, *(w for w in where if w not in mine))


def _lines_to_edit(t: Tables, where: tuple[Where, ...]) -> tuple[Where, ...]:
    """Return the places with lines that call operators themselves first: a backward pass repeats what these called."""
    sampled = [line for line, _ in sampled_lines(t, t.causes.pieces(META.id), 12)]
    lines = list(dict.fromkeys(w for w in (*sampled, *where) if w.file))
    lines.sort(key=lambda w: PASSES_ON.search(w.code or "") is not None)
    return (*lines, *(w for w in where if not w.file))[:5]
