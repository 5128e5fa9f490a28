"""The recording shows a cold start, not steady steps.

What it looks for
    Idle time inside work that a program does once: loading GPU code, first allocations, compilation, graph capture.
    Work that recurs in half of the steps does not count.

Why it costs
    These costs come once. They do not show what limits a steady step.

What to do
    Record again after some steps. `diagnose trace` waits until step times are steady.

How sure
    High if recorded calls cover the idle time.
"""

from __future__ import annotations

import re

import numpy as np

from diagnose.analyzers.common.advice import Advice, identical
from diagnose.analyzers.common.idle_findings import IdleRule, calls_inside, idle_finding
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, among, grouped, intersect, span, total, union
from diagnose.model.limits import LONG_NS
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.calls import allocations, code_loads, compile_frames, recurs
from diagnose.tables.host import captures_of
from diagnose.tables.host_gaps import _WRAPS, NEVER_COMPUTES
from diagnose.tables.names import GRAPH_CAPTURE, GRAPH_LAUNCH, LOADS_CODE, matching
from diagnose.tables.thresholds import THRESHOLDS

META = RuleMeta(
    id="warm-up",
    kind="trust",
    order=30,
    host_order=10,
    legend=Legend("first-time work, no steady state"),
    changes=("capture-steady-steps",),
    one_off=True,
)
ADVICE = (
    Advice(
        id="capture-steady-steps",
        title="Capture again after the warm-up",
        numerics=identical(),
        before="",
        after="diagnose trace {script}        # waits until step times have settled\n"
        "# or, with torch.profiler: schedule=torch.profiler.schedule(wait=20, warmup=2, active=3)",
        needs="a few more steps of running time",
        most=0.0,
        records_again=True,
    ),
)


# Allocations without a step mark count as warm-up only beside code loads of at least this share of their time.
COLD_BESIDE = 0.1


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle inside one-off calls."""
    events = t.trace.events
    loads, blocks, frames = code_loads(t), allocations(t), compile_frames(t)
    cold, allocating = ((events.end[rows] - events.start[rows]).sum() for rows in (loads, blocks))
    if t.steps.num == 1 and cold < COLD_BESIDE * allocating:
        blocks = blocks[:0]
    if t.recompiling is not None:  # a cold start is over: these come again, if not in these steps
        frames = frames[:0]
    calls = union(EMPTY, *(t.covering(rows) for rows in (loads, frames, blocks) if not recurs(t, rows)))
    loaded = matching(t.trace, (Kind.OVERHEAD,), LOADS_CODE)  # the profiler's category, CUDA's work
    captures = EMPTY if recurs(t, t.calls(GRAPH_CAPTURE)) else graph_captures(t)
    first = union(first_use(t), t.gaps.host_part(gaps_of_first_use(t)))
    return intersect(intersect(left, t.gaps.host_part()), union(calls, t.covering(loaded), captures, first))


def find(t: Tables) -> list[Finding]:
    """Name the idle time of a cold start with the calls that took it."""
    title = "The recording is of a cold start: capture again once steps are steady"
    if total(t.causes.pieces(META.id)) < THRESHOLDS.cold_share * (t.causes.end - t.causes.start).sum():
        title = "One-off work is in the recording: a steady step has none of it"
    return idle_finding(t, IdleRule(META.id, title, evidence=calls_inside(t, META.id)))


MIN_FIRST_RATIO = 3.0  # of the gap before a kernel's first launch over those before its later ones


def first_use(t: Tables) -> Intervals:
    """Return those intervals that end in the first launch of a kernel in the whole file.

    An operator that is silent before kernels launched earlier as well does not prepare their first use, nor does one
    that allocates, makes a view or wraps the operator that launches.
    """
    new = _ends_in_first_launch(t)
    found, seen = [], set[int]()
    for intervals, operator in t.silent_operators:
        gap = np.searchsorted(t.gaps.start, intervals.start, side="right") - 1
        is_new = new[np.maximum(gap, 0)]
        names = t.trace.events.name[operator]
        seen |= set(names[~is_new].tolist())
        prepares = [
            not (NEVER_COMPUTES.search(text) or re.search(_WRAPS, text)) for text in map(t.name, operator.tolist())
        ]
        found.append((intervals, is_new & np.array(prepares, bool), names))
    kept = [(s, is_new & ~among(names, np.array(list(seen), names.dtype))) for s, is_new, names in found]
    return union(*((s.start[keep], s.end[keep]) for s, keep in kept)) if kept else EMPTY


def gaps_of_first_use(t: Tables) -> Mask:
    """Return which gaps end in the first launch of a kernel and are many times longer than those before its later ones.

    It needs no operator: what loads a kernel may run between operators, and in files without them.
    """
    gaps, tasks = t.gaps, t.tasks
    waited = np.zeros(len(tasks.row) + 1)
    waited[gaps.after] = np.maximum(gaps.queued_at - gaps.start, 0)  # the last place takes the -1 of no task
    waited = waited[:-1]
    name = grouped(t.trace.events.name[tasks.row]).of
    new = _ends_in_first_launch(t) & (gaps.after >= 0)
    first = gaps.after[new]
    later = np.ones(len(tasks.row), bool)
    later[first] = False
    longest = np.full(int(name.max(initial=-1)) + 1, -1.0)
    np.maximum.at(longest, name[later], waited[later])
    found = np.zeros(len(gaps.start), bool)
    others = longest[name[first]]  # -1: it is launched once
    found[new] = (waited[first] >= LONG_NS) & (others >= 0) & (waited[first] >= MIN_FIRST_RATIO * others)
    return found


def graph_captures(t: Tables) -> Intervals:
    """Return the time of capturing graphs: from the enclosing operator's begin to the first launch of a graph.

    Between the begin and the end of a capture all work of the thread goes into the graph, whatever operators it is.
    """
    events = t.trace.events
    launches = events.start[t.calls(GRAPH_LAUNCH)]
    found = [captures_of(t.trace, thread) for thread in t.threads]
    for row in t.calls(GRAPH_CAPTURE).tolist():
        layers = t.work_layers.get(int(events.thread[row]))
        around = [r for r in (layers.at(int(events.start[row])) if layers else []) if events.kind[r] == Kind.OP]
        whole = around[0] if around else row
        start, end = int(events.start[whole]), int(events.end[whole])
        first = int(np.searchsorted(launches, events.end[row]))
        end = min(end, int(launches[first])) if first < len(launches) else end
        found.append(span(start, max(start, end)))
    return union(*found) if found else EMPTY


def _ends_in_first_launch(t: Tables) -> Mask:
    """Return which gaps end in the first run of a kernel, as far as the file shows."""
    events, tasks, gaps = t.trace.events, t.tasks, t.gaps
    kernels = np.flatnonzero(events.kind == Kind.KERNEL)
    is_first = np.zeros(len(events) + 1, bool)
    is_first[kernels[grouped(events.name[kernels]).first]] = True
    after = np.append(tasks.row, -1)[gaps.after]  # -1: no task after
    found: Mask = is_first[after]
    return found
