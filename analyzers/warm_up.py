"""The recording is of a cold start, not of steady steps.

What it looks for
    Idle inside calls that a program makes once: device code being loaded (a launch of over 1 ms, `cuModuleLoad*`,
    stream and event creation, lazy loading of functions and modules), the first allocations, compilation, the capture
    of a graph, an operator that is silent for a millisecond or more before a kernel runs for the first time in the
    file, and a gap of a millisecond before the first run of a kernel that is three times as long as those before its
    later runs. What recurs in the later steps is none of it.

Why it costs
    Once. A claim about the steady state cannot be made from such time.

What to do
    Capture again after some steps; `diagnose trace` waits until step times have settled.

How sure
    High where the calls cover the idle time; what recurs in half of the steps or more is never booked here.
"""

from __future__ import annotations

from diagnose.analyzers.common.advice import Advice, identical
from diagnose.analyzers.common.idle_findings import IdleRule, calls_inside, idle_finding, pieces_of
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, intersect, total, union
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.calls import allocations, code_loads, compile_frames, recurs
from diagnose.tables.host_gaps import first_use, gaps_of_first_use, graph_captures
from diagnose.tables.names import GRAPH_CAPTURE, LOADS_CODE, matching
from diagnose.tables.thresholds import THRESHOLDS

META = RuleMeta(
    id="warm-up",
    kind="trust",
    order=30,
    host_order=10,
    legend=Legend("first-time work, no steady state", "#848e9c"),
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
    calls = union(EMPTY, *(t.covering(rows) for rows in (loads, frames, blocks) if not recurs(t, rows)))
    loaded = matching(t.trace, (Kind.OVERHEAD,), LOADS_CODE)  # the profiler's category, CUDA's work
    captures = EMPTY if recurs(t, t.calls(GRAPH_CAPTURE)) else graph_captures(t)
    first = union(first_use(t), t.gaps.host_part(gaps_of_first_use(t)))
    return intersect(intersect(left, t.gaps.host_part()), union(calls, t.covering(loaded), captures, first))


def find(t: Tables) -> list[Finding]:
    """Name the idle time of a cold start with the calls that took it."""
    title = "The recording is of a cold start: capture again once steps are steady"
    if total(pieces_of(t, META.id)) < THRESHOLDS.cold_share * (t.causes.end - t.causes.start).sum():
        title = "One-off work is in the recording: a steady step has none of it"
    return idle_finding(t, IdleRule(META.id, title, evidence=calls_inside))
