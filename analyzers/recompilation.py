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

from diagnose.analyzers.common.avoidable import IN_LONG_STEP
from diagnose.analyzers.common.guards import said_of
from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, idle_gaps_of, in_steps
from diagnose.analyzers.common.locate import line_at
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import Intervals, among, intersect
from diagnose.model.rules import Legend, RuleMeta
from diagnose.model.statistics import MIN_LONG_RATIO
from diagnose.tables import Tables
from diagnose.tables.calls import code_loads, compile_frames, recurs
from diagnose.tables.run_steps import run_mean, usable_steps
from diagnose.text.numbers import duration, plural

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
    return [replace(each, where=(*places, *each.where)) for each in found] or _now_and_then(t)


def _now_and_then(t: Tables) -> list[Finding]:
    """Name the code that is compiled again in steps that are long now and then, as often as it has versions."""
    run, compiled = t.capture.run, t.capture.known.compiled
    mean = run_mean(run, t.capture) if run is not None else None
    if run is None or mean is None or not compiled.versions:
        return []
    version = compiled.versions[0]
    usable = np.flatnonzero(usable_steps(run, t.capture))
    usual = float(np.median(run.step_ns[usable]))
    explained = [row for stall in t.stalls if stall.phase for row in stall.rows.tolist()]
    long = usable[(run.step_ns[usable] >= MIN_LONG_RATIO * usual) & ~among(usable, np.array(explained, np.intp))]
    long = long[np.argsort(-run.step_ns[long])][: version.num - 1]
    each_ns = compiled.took_s * 1e9 / version.num
    if len(long) < 2:  # the first version is no second compilation, and one more may be the last
        return []
    lost_ns = float(np.minimum(run.step_ns[long] - usual, each_ns).sum()) / len(usable)
    texts, facts = said_of([version])
    times = f"{plural(len(long), 'step')} of {len(usable)} took {duration(float(np.median(run.step_ns[long])))}, the "
    return [
        Finding(
            rule=META.id,
            title="Code is compiled again in steps that are long now and then",
            lost_ns=lost_ns,
            share=min(lost_ns / mean[0], 1.0),
            count=len(long),
            evidence=(f"{times}others {duration(usual)}. A compilation took {duration(each_ns)}.", *texts),
            where=(line_at(t, version.file, version.line, version.function),),
            facts={**facts, "phase": "", IN_LONG_STEP: True},
        )
    ]
