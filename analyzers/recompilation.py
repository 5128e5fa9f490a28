"""Code is compiled again in steady steps.

What it looks for
    Idle time while Dynamo, Inductor or Triton compile, or while GPU code is loaded, in half of the steps or more.

Why it costs
    A compilation takes 0.1–30 s, and the GPU waits. It repeats if a guard fails: a shape, a number or an attribute
    changes from step to step.

What to do
    A size that changes: mark the dimension as dynamic with `torch._dynamo.mark_dynamic(x, 0)`, or pad to a few sizes.
    A number that changes: pass it as a tensor. An object: make it once. The finding names the guard that failed.

How sure
    High.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diagnose.analyzers.common.guards import said_of
from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, idle_gaps_of, in_steps
from diagnose.analyzers.common.locate import line_at
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import Intervals, intersect
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.calls import code_loads, compile_frames, recurs

META = RuleMeta(
    id="recompilation",
    kind="idle",
    order=40,
    host_order=20,
    legend=Legend("code was compiled or loaded inside a step"),
    changes=("stop-recompiling", "steady-guard"),
    also=("group-lengths",),
    one_off=True,
    cause="compilation",
    needs=("a second step",),
)


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle while something that recurs is compiled or loaded."""
    rows = np.concatenate([r for r in (compile_frames(t), code_loads(t)) if recurs(t, r)] or [np.empty(0, np.intp)])
    return intersect(intersect(left, t.gaps.host_part()), t.covering(rows))


def find(t: Tables) -> list[Finding]:
    """Name the idle time of compilations, with the guard that failed where a capture has it."""
    o = idle_gaps_of(t, META.id)
    versions = t.capture.known.compiled.versions
    title = f"Code is compiled or loaded {in_steps(t, o.start, o.lost)}"
    texts, facts = said_of(versions[:1])
    found = idle_finding(t, IdleRule(META.id, title, probe="middle", evidence=texts, facts=facts))
    places = tuple(line_at(t, each.file, each.line, each.function) for each in versions[:1])
    return [replace(each, where=(*places, *each.where)) for each in found]
