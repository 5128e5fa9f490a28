"""Code is compiled again in steady steps.

What it looks for
    Idle time while Dynamo, Inductor or Triton compile, or while GPU code is loaded, in half of the steps or more. Also
    guards of torch.compile that fail time and again after the first quarter of the run, and what compiling then takes.

Why it costs
    A compilation takes 0.1–30 s, and the GPU waits. It repeats if a guard fails: a shape, a number or an attribute
    changes from step to step.

What to do
    A size that changes: mark the dimension as dynamic with `torch._dynamo.mark_dynamic(x, 0)`, or pad to a few sizes.
    A number that changes: pass it as a tensor. An object: make it once. The finding names the guard that failed.

How sure
    High: torch notes when it compiles and why. The cost fades if only a few sizes or values occur.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diagnose.analyzers.common.compiled_graphs import said_of
from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, idle_gaps_of, in_steps
from diagnose.analyzers.common.locate import line_at
from diagnose.model.diagnosis import Finding
from diagnose.model.guards import checked_by
from diagnose.model.intervals import Intervals, intersect
from diagnose.model.records import as_facts
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.calls import code_loads, compile_frames, recurs
from diagnose.tables.run_steps import Recompiling
from diagnose.text.numbers import duration, percent

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
    frames, loads = compile_frames(t), code_loads(t)
    recurring = [frames] if t.recompiling is not None or recurs(t, frames) else []
    rows = np.concatenate([np.empty(0, np.intp), *recurring, *([loads] if recurs(t, loads) else [])])
    return intersect(intersect(left, t.gaps.host_part()), t.covering(rows))


def find(t: Tables) -> list[Finding]:
    """Name what is compiled again over the run, else in the recorded steps, with the guard that failed."""
    if t.recompiling is not None:
        return [_of_run(t, t.recompiling)]
    o = idle_gaps_of(t, META.id)
    versions = t.capture.known.compiled.versions
    title = f"Code is compiled or loaded {in_steps(t, o.start, o.lost)}"
    texts, facts = said_of(versions[:1])
    found = idle_finding(t, IdleRule(META.id, title, probe="middle", evidence=texts, facts=facts))
    places = tuple(line_at(t, each.file, each.line, each.function) for each in versions[:1])
    return [replace(each, where=(*places, *each.where)) for each in found]


def _of_run(t: Tables, again: Recompiling) -> Finding:
    last, num, calls = again.compilations[-1], again.num, t.capture.known.compiled.calls
    call = next((each for each in calls if each.functions[0][1:3] == (last.file, last.line)), None)
    guards = list(dict.fromkeys(each.guard for each in reversed(again.compilations) if each.guard))
    known = [each.at for each in reversed(again.compilations) if each.at]  # what the guards check
    given = [(call.file, call.line)] if call is not None else []
    at = dict.fromkeys([*known, *given, (last.file, last.line)])
    evidence = [
        f"{num} of {again.num_steps} steps after the start of the run compile {last.function} again: "
        f"{duration(again.each_ns)} each, {duration(again.lost_ns)} of the mean step, {percent(again.share, 0)} of "
        "the run's time.",
        *(f"The guard that failed: {guard}." for guard in guards[:3]),
    ]
    return Finding(
        rule=META.id,
        title=f"torch.compile compiles {last.function} again in {num} of {again.num_steps} steps",
        lost_ns=again.lost_ns,
        share=again.share,
        count=num,
        total_ns=int(again.lost_ns * again.num_steps),
        median_ns=int(again.each_ns),
        evidence=tuple(evidence),
        where=tuple(line_at(t, *place, "" if place in given else last.function) for place in at if place[0])[:3],
        facts={
            "kind": checked_by(guards[0]) if guards else "other",
            "guard": guards[0] if guards else "",
            "cost_factor": round(again.factor, 3),
            **({"made": as_facts(call.made)} if call is not None and call.made is not None else {}),
        },
    )
