"""Hooks of modules pile up: the script registers them again and again, and removes none.

What it looks for
    Lines that register hooks in several steps, of modules that still have all of them. The hooks run operators, and
    several hooks of a module compute the same. Also what a step that is long now and then computes of their results.
    Threshold: 1% of the run's time.

Why it costs
    Each call of the module runs all of its hooks. Steps get longer, and what the hooks keep takes more memory.

What to do
    Keep the handle that `register_forward_hook` returns, and call `handle.remove()`. Or register the hook once, and let
    a flag decide whether it does something.

How sure
    High: the hooks that are still registered are counted. Needs `diagnose trace`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from diagnose.analyzers.common.advice import Advice, identical
from diagnose.analyzers.common.avoidable import IN_LONG_STEP, at
from diagnose.analyzers.common.locate import line_at
from diagnose.model.dataflow import Frame, Operator
from diagnose.model.diagnosis import Finding
from diagnose.model.records import HookRecord
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.run_steps import run_mean
from diagnose.tables.thresholds import THRESHOLDS
from diagnose.text.numbers import duration, percent

if TYPE_CHECKING:
    from diagnose.dataflow.graph import Graph

META = RuleMeta(
    id="piled-hooks",
    kind="run",
    order=13,
    legend=Legend("hooks of modules pile up"),
    needs=("steps of the whole run", "data flow"),
    changes=("remove-hooks",),
)
ADVICE = (
    Advice(
        id="remove-hooks",
        title="Remove the hooks after their use, or register them once{there}",
        numerics=identical("if one hook of each module is meant to run"),
        after="""handles = [layer.register_forward_hook(hook) for layer in layers]
...
for handle in handles:   # once their results are read
    handle.remove()""",
        needs="no use of what the same hook computes several times",
        least=0.7,  # what the hooks of one call take stays
    ),
)


class _Spare(NamedTuple):
    """What is needless in a step."""

    ns: float
    share: float  # of the operators of the hooks
    hooks: frozenset[int]  # operators


def find(t: Tables) -> list[Finding]:
    """Name the lines that register hooks, the most expensive first."""
    mean = run_mean(t.capture.run, t.capture) if t.capture.run is not None else None
    found = [_finding(t, one, mean[0]) for one in t.capture.known.hooks] if mean is not None and t.flow else []
    return sorted((one for one in found if one is not None), key=lambda finding: -finding.lost_ns)


def _finding(t: Tables, one: HookRecord, mean_ns: float) -> Finding | None:
    if t.flow is None:
        return None
    usual = _spare(t.flow.found.graph, one)
    cost_ns, parts = usual.ns, []
    if t.flow.long_step is not None:
        graph, every = t.flow.long_step.flow.found.graph, t.flow.long_step.every
        read_ns = graph.time(_readers(graph, _spare(graph, one).hooks) & t.flow.long_step.own)
        if read_ns >= THRESHOLDS.naming_share * mean_ns:
            later_ns = min(
                read_ns * _spare(graph, one).share / every, sum(stall.lost_ns for stall in t.stalls) or mean_ns
            )
            cost_ns += later_ns
            parts = [f"1 step in {every} computes with what they have kept: {duration(later_ns)} of the mean step."]
    share = min(cost_ns / mean_ns, 1.0)
    if share < THRESHOLDS.naming_share:
        return None
    line, hook = Frame(one.file, one.line, one.function), Frame(one.hook_file, one.hook_lines[0], one.hook_name)
    return Finding(
        rule=META.id,
        title="Hooks of modules pile up: each is registered again and none is removed",
        lost_ns=share * mean_ns,
        share=share,
        count=one.num,
        evidence=(
            f"{one.num:,} hooks are registered of {one.modules:,} modules, in {one.steps:,} steps of the run: "
            f"{at(line)} registers them.",
            f"{percent(usual.share, 0)} of what the hook at {at(hook)} computes in a step is the same again: "
            f"{duration(usual.ns)}.",
            *parts,
        ),
        where=tuple(line_at(t, frame.file, frame.line, frame.function) for frame in (line, hook)),
        facts={"num": one.num, IN_LONG_STEP: True},
    )


def _spare(graph: Graph, hook: HookRecord) -> _Spare:
    """Return what a hook computes again in the last step, for a module that has it several times."""
    seen, again, every = set[object](), list[int](), list[int]()
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        if _is_of(one, hook):
            every.append(i)
            reads = tuple((use.value, use.shape, use.stride, use.offset) for use in one.reads)
            key = one.name, one.attributes, one.module, reads
            if key in seen:
                again.append(i)
            seen.add(key)
    whole = graph.time(every)
    others = (i for i, one in enumerate(graph.operators) if one.step < graph.last_step and _is_of(one, hook))
    return _Spare(graph.time(again), graph.time(again) / max(whole, 1), frozenset((*every, *others)))


def _is_of(one: Operator, hook: HookRecord) -> bool:
    first, last = hook.hook_lines
    return any(
        frame.function == hook.hook_name and frame.file == hook.hook_file and first <= frame.line <= last
        for frame in one.stack
    )


def _readers(graph: Graph, operators: frozenset[int]) -> frozenset[int]:
    """Return the other operators that compute with what some have made, directly or not."""
    left, found = list(operators), set[int]()
    while left:
        for use in graph.operators[left.pop()].writes:
            new = set(graph.readers[use.value]) - found - operators
            found |= new
            left += new
    return frozenset(found)
