"""A loop calls small operators whose results do not depend on each other.

What it looks for
    Lines that call the same operators at least four times per step, with no call that needs the one before. Examples:
    experts, rows, boxes. Threshold: the calls take 5% of the step.

Why it costs
    Each operator costs some microseconds to call, however little it computes.

What to do
    Stack the inputs and call each operator once: a batch dimension, `torch.bmm`, `torch.vmap` or `torch._foreach_*`.
    Call what walks the model's modules, such as `state_dict()`, once before the loop.
    Library calls: `clip_grad_norm_(..., foreach=True)`, or `multi_avg_fn` of `AveragedModel`.

How sure
    High that the calls are independent. The saving is an estimate. Needs `diagnose trace`.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from diagnose.analyzers.common.advice import Advice, When, rounding
from diagnose.analyzers.common.avoidable import IN_LONG_STEP, loop_rule
from diagnose.analyzers.common.rewrite import Edits, hoisted
from diagnose.model.dataflow import Frame
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind
from diagnose.model.intervals import subtract, total
from diagnose.model.locations import FRAME, Where, own_place
from diagnose.model.own_source import OwnSource
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.call_frames import stacks
from diagnose.tables.python_calls import LIBRARY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnose.dataflow.loops import Loop

META = RuleMeta(
    id="independent-loop",
    kind="idle",
    order=139,
    host_order=97,
    legend=Legend("a loop called small operators one by one"),
    changes=("call-once", "vectorise-loop"),
    needs=("data flow",),
)


def dependence(loop: Loop) -> str:
    """Return how far the calls of a loop depend on each other, as the end of a sentence."""
    alike = "of one shape" if loop.same_shapes else "of different shapes"
    weights = "" if loop.same_weights else ", each with its own weights"
    return f" {alike}{weights}; the longest chain of calls that need each other is {loop.longest_chain}."


_TITLES = {"independent": "A loop calls operators one by one that do not depend on each other"}
_RULE = loop_rule(META, _TITLES, dependence)
claim, claim_host = _RULE.claim, _RULE.claim_host


def find(t: Tables) -> list[Finding]:
    """Name the loop that costs most, with the function of a library that it is in."""
    return [
        finding if IN_LONG_STEP in finding.facts else _with_call(t, _with_function(t, finding))
        for finding in _RULE.find(t)
    ]


def _with_call(t: Tables, finding: Finding) -> Finding:
    """Return the finding with the call in the loop's body that gives the same in each turn, if there is one.

    What the loop's operators do not compute in may be that call. It comes first: what vectorising the rest saves is
    known when it is gone.
    """
    line, flow = own_place(finding.where), t.flow
    call = unchanging_call(flow.source, line) if line is not None and flow is not None else None
    if call is None or flow is None:
        return finding
    computing = flow.time_of(t, [i for i in finding.operators if flow.found.graph.computes(i)])
    between = total(subtract(flow.span_of(t, finding.operators), computing)) / t.steps.num
    call_share = min(between / max(finding.lost_ns, 1.0), 1.0)
    facts: dict[str, object] = {"unchanging": call._asdict(), "not_computing": call_share}
    title = f"A loop calls {call.call} in each of {finding.facts['num_calls']} turns"
    text = f"{call.call} does not depend on the turn."
    facts |= {name: finding.facts[name] for name in ("kind", "num_calls")}
    return replace(finding, title=title, evidence=(*finding.evidence, text), facts=facts)


def _with_function(t: Tables, finding: Finding) -> Finding:
    line = own_place(finding.where)
    called = _functions(t, finding.operators, line) if line is not None else []
    of_line = (each for each in called if line and re.search(rf"\b{re.escape(each[0])}\(", line.code or ""))
    function, file = next(of_line, ("", ""))
    if not function:
        return finding
    return replace(
        finding,
        title=f"A loop in {function}() calls operators one by one that do not depend on each other",
        evidence=(*finding.evidence, f"{function}() is in {file}."),
        facts={**finding.facts, "function": function, "library": file},
    )


def _functions(t: Tables, operators: Sequence[int], line: Where) -> list[tuple[str, str]]:
    """Return functions of libraries, with their files, in which the line's function runs most of such operators.

    The outermost comes first. None where they run in no such function, or the recording has no Python frames.
    """
    named, flow = t.named, t.capture.dataflow
    names = {flow.operators[i].name.partition(".")[0] for i in operators} if flow is not None else set()
    wanted = np.array([name in names for name in named.trace.names], bool)
    rows, found = named.host_rows(Kind.OP), Counter[tuple[tuple[str, str], ...]]()
    # Of a recording that was cut short, the thread with most operators may be that of the backward pass.
    thread = max(named.frame_layers, key=lambda each: sum(map(len, named.frame_layers[each].rows)), default=named.main)
    rows = rows[(named.trace.events.thread[rows] == thread) & wanted[named.trace.events.name[rows]]]
    for stack in stacks(named, rows[:5000], thread):  # the first stand for the rest
        inside, user = list[tuple[str, str]](), ("", "")
        for frame in filter(None, (FRAME.match(named.trace.names[i]) for i in stack.tolist() if i >= 0)):
            if LIBRARY.search(frame["file"]):
                inside.append((frame["function"], frame["file"]))
            else:
                inside, user = [], (frame["function"], frame["file"])
        if user[0] == line.function and (line.file or "").endswith(user[1]):
            found[tuple(inside)] += 1
    every = dict.fromkeys(each for frames in found for each in frames)
    return [each for each in every if 2 * sum(num for frames, num in found.items() if each in frames) > found.total()]


def _in_file(file: str) -> When:
    """Return a test for loops in a library's file."""
    return lambda f, _: str(f.facts.get("library", "")).endswith(file)


_LOOP = Advice(
    id="vectorise-loop",
    title="Call each operator once for all tensors{at} ({num_calls} calls per step): torch._foreach_*",
    numerics=rounding("a product and a sum may be rounded once; compare the loss of the first steps"),
    needs="lists of tensors on one device",
    when=lambda f, _: f.facts.get("of_model") and not f.facts.get("with_gradients"),
    least=0.7,
    most=0.98,
)
ADVICE = (
    replace(
        _LOOP,
        title="Use multi_avg_fn in the place of avg_fn: one call averages all weights{there}",
        needs="weights on one device",
        when=_in_file("torch/optim/swa_utils.py"),
    ),
    replace(
        _LOOP,
        title="Call clip_grad_norm_ with foreach=True{at}: one call takes the norms of all gradients",
        needs="gradients that are dense tensors on one device",
        when=_in_file("torch/nn/utils/clip_grad.py"),
    ),
    _LOOP,
)


_TABLES = frozenset({"state_dict"})
_WALKS = frozenset({"parameters", "buffers", "modules", "children"})  # iterators, each also as "named_..."
_COLLECTS = frozenset({"dict", "list", "tuple"})


class UnchangingCall(NamedTuple):
    """A call, as the script has it, and the edits that make it before the loop."""

    call: str
    edits: Edits


def unchanging_call(source: OwnSource, place: Where) -> UnchangingCall | None:
    """Return the outermost such call of a line in a loop, None where there is none or the loop's head is not known."""
    line = Frame(place.file or "", place.line or 0, "")
    edits = hoisted(source, line, lambda call: _walk(call) is not None)
    node = source.statement(line) if edits else None
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call) and _walk(each)] if node is not None else []
    return UnchangingCall(ast.unparse(calls[0]), edits) if calls else None


def _walk(node: ast.Call) -> ast.Attribute | None:
    """Return the method of a call that makes a table of a model's parts, None for any other call."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name) as method, args=[]) if name in _TABLES:
            return method
        case ast.Call(func=ast.Name(id=kind), args=[ast.Call(func=ast.Attribute(attr=name) as method, args=[])]) if (
            kind in _COLLECTS and name.removeprefix("named_") in _WALKS
        ):
            return method
    return None
