"""Compiled functions are so small that calling them takes longer than what they compute.

What it looks for
    On the CPU, several calls of compiled graphs per step, without a graph break. Looking up and entering the graphs
    takes longer than the operators in them. Threshold: 5% of the step.

Why it costs
    Each call checks guards and passes wrappers in Python and in the backward pass, 50–500 µs. A helper of a few small
    operators computes for less.

What to do
    Compile one function that calls the helpers, such as a whole time step, or leave the helpers uncompiled.

How sure
    High for the time of the calls, which the trace shows. Medium for the saving: uncompiled operators are called too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from diagnose.analyzers.common.advice import Advice, rounding
from diagnose.analyzers.common.compiled_graphs import breaks, entering_and_computing, graphs
from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, worth_claiming
from diagnose.analyzers.common.locate import line_at
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import EMPTY, Intervals, total
from diagnose.model.records import CompilationRecord
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.text.numbers import duration

META = RuleMeta(
    id="small-graphs",
    kind="idle",
    order=127,
    host_order=79,
    legend=Legend("small compiled graphs were looked up and entered"),
    changes=("compile-larger",),
    cause="host-work",
    paced_by="host",
)
ADVICE = (
    Advice(
        id="compile-larger",
        title="Compile one function around {functions} instead of each, or none of them{there}",
        numerics=rounding("operators may be fused otherwise; compare the loss of the first steps"),
        after="# without @torch.compile on {functions}\n"
        "step = torch.compile(step)   # what calls all of them, once for each time step",
        needs="that the function around them can be traced",
        least=0.5,  # operators that are not compiled are called one by one, and recorded for the backward pass
    ),
)
MIN_GRAPHS = 2.0  # calls a step: one graph around the step is what this asks for


def claim(_t: Tables, _left: Intervals) -> Intervals:
    """Claim nothing: if a device computes, the host's time does not show what graphs compute."""
    return EMPTY


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim the host's time for that."""
    if len(graphs(t)) < MIN_GRAPHS * t.steps.num or breaks(t):
        return EMPTY
    entering, computing = entering_and_computing(t)
    return worth_claiming(t, left, entering) if total(entering) > total(computing) else EMPTY


def find(t: Tables) -> list[Finding]:
    """Name the functions that are called most often."""
    called = Counter(t.name(row).rpartition(": ")[2] for row in graphs(t).tolist())
    known = {each.id: each for each in t.capture.known.compiled.compilations if each.function}
    by_function = Counter[tuple[str, int, str]]()
    for graph, count in called.items():
        one = known.get(graph, CompilationRecord(began_ns=0, took_ns=0))
        by_function[one.file, one.line, one.function] += count
    often = [place for place, _ in by_function.most_common() if place[2]]
    num, entering = sum(called.values()) / t.steps.num, entering_and_computing(t)[0]
    texts = [
        f"{num:,.0f} calls of compiled graphs a step; looking up and entering them takes "
        f"{duration(total(entering) / t.steps.num)} of it.",
        *(
            f"{name}, line {line}: {by_function[file, line, name] / t.steps.num:,.0f} calls."
            for file, line, name in often[:3]
        ),
    ]
    title = f"{num:,.0f} calls of small compiled graphs a step: entering them takes longer than what they compute"
    facts = {"functions": ", ".join(name for _, _, name in often[:3]) or "the small functions"}
    where = tuple(line_at(t, *place) for place in often[:5])
    return [
        replace(each, where=where or each.where)
        for each in idle_finding(t, IdleRule(META.id, title, "middle", "medium", texts, facts))
    ]
