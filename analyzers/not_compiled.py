"""What torch.compile was given runs uncompiled.

What it looks for
    Operators that a compiler would fuse, in a function that torch.compile skipped. Or in a compiled module, if the
    steps call other methods than `forward`. Threshold: a saving of 3% of the step.

Why it costs
    A graph break in a loop makes torch.compile skip the whole function. `torch.compile(model)` compiles `forward` only:
    `model.loss(x)` runs the original method. Both run operator by operator, and nothing warns.

What to do
    Move what cannot be traced out of the loop, or out of the function. Compile the method that the steps call.

How sure
    High that the code is not compiled, as torch notes it. Medium for the cost: it is what fusing would spare.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from diagnose.analyzers.common.advice import Advice, of_kind, rounding
from diagnose.analyzers.common.avoidable import Avoidable, AvoidableRule, last_parts
from diagnose.model.dataflow import Frame, Operator
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import EMPTY, Intervals, subtract, union
from diagnose.model.records import MAX_INT, CompileCallRecord, CompiledRecord
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.flow import Flow
from diagnose.tables.program import compiled_code
from diagnose.text.numbers import lower_first, percent

if TYPE_CHECKING:
    from diagnose.dataflow.fusion import Unfused

META = RuleMeta(
    id="not-compiled",
    kind="idle",
    order=126,
    host_order=76,
    legend=Legend("what torch.compile skipped ran operator by operator"),
    changes=("break-outside", "compile-method"),
    needs=("data flow",),
    cause="host-work",
    paced_by="host",
)
ADVICE = (
    Advice(
        id="break-outside",
        title="Move what torch.compile cannot trace out of {function}{there}",
        numerics=rounding("more is fused; compare the loss of the first steps"),
        before="{line}",
        after="# torch.compile skips {function}: {reason}\n"
        "model = torch.compile(model, fullgraph=True)   # without that line; names the next one",
        needs="that {function} runs without that line, or with a form of it that can be traced",
        when=of_kind("skipped"),
        least=0.5,
    ),
    Advice(
        id="compile-method",
        title="Compile {method}, which the steps call{there}",
        numerics=rounding("more is fused; compare the loss of the first steps"),
        before="{call}",
        after="{statement}",
        needs="that {method} can be traced",
        when=of_kind("idle"),
        least=0.5,
    ),
)


DEBUGGING = ("eager", "aot_eager", "aot_eager_decomp_partition")  # backends that generate no code
_Function: TypeAlias = tuple[str, str, int, int]  # name, file, first and last line


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle time while the host issues what a compiler would fuse."""
    return _rule(t).claim(t, left)


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim the host's time for that."""
    return _rule(t).claim_host(t, left)


def find(t: Tables) -> list[Finding]:
    """Name the function, and why it is not compiled."""
    return _rule(t).find(t)


def _rule(t: Tables) -> AvoidableRule:
    compiled = t.capture.known.compiled
    return AvoidableRule(META, lambda flow: (*_skipped(flow, compiled), *_idle(flow, compiled)), time_of=_spared)


def _skipped(flow: Flow, compiled: CompiledRecord) -> Iterator[Avoidable]:
    """Yield what functions compute that torch.compile skipped; what they call is compiled apart."""
    known = {each[:2]: (each, call.backend) for call in compiled.calls for each in call.functions}
    for broken in (each for each in compiled.breaks if each.skips):
        unknown = (broken.function, broken.file, 0, MAX_INT), ""
        whole, backend = known.get((broken.function, broken.file), unknown)
        one, others = _fusable(flow, partial(_is_of, whole))
        if one is not None:
            yield Avoidable(
                f"torch.compile skips {broken.function}: {lower_first(broken.reason)} at line {broken.line}",
                f"{broken.function} runs uncompiled: {broken.reason}. {_operators(one)}",
                one.work,
                (Frame(broken.file, broken.line, broken.function), *one.work.lines),
                {
                    "kind": "skipped",
                    "function": broken.function,
                    "reason": broken.reason,
                    "calls_operators": backend in DEBUGGING,
                },
                one.avoidable,
                "medium",
                others,
            )


def _idle(flow: Flow, compiled: CompiledRecord) -> Iterator[Avoidable]:
    """Yield what other methods of modules compute whose forward is compiled and never runs."""
    for call in (each for each in compiled.calls if each.is_idle):
        one, others = _fusable(flow, partial(_is_within, call))
        if one is None:
            continue
        operators = (flow.found.graph.operators[i] for i in one.work.operators)
        method, caller = Counter(filter(None, (_entered(each, call) for each in operators))).most_common(1)[0][0]
        yield Avoidable(
            f"torch.compile compiles {call.functions[0][0]} of {call.name}, and the steps call {method}",
            f"Line {call.line} gives {call.name} to torch.compile, and its {call.functions[0][0]} was not compiled. "
            f"{_operators(one)}",
            one.work,
            (Frame(call.file, call.line, ""), caller, *one.work.lines),
            {
                "kind": "idle",
                "method": method,
                "statement": f"{_target(call)}.{method} = torch.compile({_target(call)}.{method})",
                "call": call.text,
                "calls_operators": call.backend in DEBUGGING,
            },
            one.avoidable,
            "medium",
            others,
        )


def _fusable(flow: Flow, is_inside: Callable[[Operator], bool]) -> tuple[Unfused | None, tuple[int, ...]]:
    """Return what of these operators a compiler fuses, and the others, which it only calls."""
    from diagnose.dataflow.fusion import fusable_within  # only a recorded data flow needs it

    graph = flow.found.graph
    one = fusable_within(graph, is_inside)
    fused = frozenset(one.work.operators) if one is not None else frozenset[int]()
    mine = (i for i in graph.of_step(graph.last_step) if is_inside(graph.operators[i]))
    return one, tuple(i for i in mine if i not in fused)


def _is_of(function: _Function, operator: Operator) -> bool:
    return operator.place is not None and _holds(function, operator.place)


def _is_within(call: CompileCallRecord, operator: Operator) -> bool:
    return _entered(operator, call) is not None


def _entered(operator: Operator, call: CompileCallRecord) -> tuple[str, Frame | None] | None:
    """Return the outermost of these functions that an operator runs in, and the line that calls it."""
    stack = operator.stack
    depth = max((i for i, at in enumerate(stack) if any(_holds(each, at) for each in call.functions)), default=None)
    return None if depth is None else (stack[depth].function, stack[depth + 1] if depth + 1 < len(stack) else None)


def _holds(function: _Function, line: Frame) -> bool:
    name, file, first, last = function
    return (line.file, line.function) == (file, name) and first <= line.line <= last


def _operators(one: Unfused) -> str:
    return (
        f"{len(one.work.operators):,} operators a step run one by one; {percent(one.avoidable, 0)} of the bytes that "
        "they read and write are values that a fused operator keeps."
    )


def _spared(t: Tables, flow: Flow, one: Avoidable) -> Intervals:
    """Return the last part of each operator, outside of compiled code, and what calling all of them takes.

    Backends for debugging call operators one by one as well.
    """
    calling = EMPTY
    if not one.facts.get("calls_operators"):
        every = (*one.work.operators, *one.joined)
        calling = subtract(flow.span_of(t, every), flow.time_of(t, every))
    return subtract(union(last_parts(t, flow, one), calling), compiled_code(t))


def _target(call: CompileCallRecord) -> str:
    """Return what the script gives to torch.compile, as its source has it."""
    found = re.search(r"compile\(\s*([\w.]+)", call.text) or re.search(r"([\w.]+)\.compile\(", call.text)
    return found[1] if found else "model"
