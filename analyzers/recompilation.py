"""Code is compiled again in steady steps.

What it looks for
    Idle time while Dynamo, Inductor or Triton compile, or while GPU code is loaded, in half of the steps or more.

Why it costs
    A compilation takes 0.1–30 s, and the GPU waits. It repeats if a guard fails: a shape, a number or an attribute
    changes from step to step.

What to do
    Mark the changing dimension as dynamic with `torch._dynamo.mark_dynamic(x, 0)`, or pad to a few sizes.
    `TORCH_LOGS=recompiles` prints the guard that failed.

How sure
    High.
"""

from __future__ import annotations

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, idle_gaps_of, in_steps
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
    changes=("stop-recompiling",),
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
    """Name the idle time of compilations."""
    o = idle_gaps_of(t, META.id)
    title = f"Code is compiled or loaded {in_steps(t, o.start, o.lost)}"
    return idle_finding(t, IdleRule(META.id, title, probe="middle"))
