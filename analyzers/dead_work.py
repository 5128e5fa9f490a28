"""The step computes results that nothing uses.

What it looks for
    Operators whose results reach no parameter, later step, collective or Python code. Examples: unread metrics, heads
    without a loss, gradients that nothing uses, a term times a coefficient of 0, an average of frozen weights. Also
    gradients of parameters whose learning rate is 0, and statements whose results only a rare branch reads, or only
    what follows the loop. Example: a score of each step that every hundredth step prints. Threshold: 3% of the step.

Why it costs
    A loss that goes through a second model also computes that model's gradients.

What to do
    Remove the work, or run it only in the steps that read it. Leave a term out while its coefficient is 0. Call
    `detach()` on the output of a model that the loss must not train. Freeze parameters with `requires_grad_(False)`. Do
    not ask for the gradient of an input below frozen layers.

How sure
    High, unless only other steps read the result, such as every hundredth. Statements and branches are counted in ten
    or more steps. Needs `diagnose trace`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diagnose.analyzers.common.advice import Advice, identical, in_training
from diagnose.analyzers.common.avoidable import IN_LONG_STEP, Avoidable, AvoidableRule, at
from diagnose.analyzers.common.locate import line_at
from diagnose.analyzers.common.rewrite import (
    Edits,
    detached,
    frozen_for,
    only_trained,
    skipped,
    without_gradients,
)
from diagnose.analyzers.common.rewrite_blocks import moved
from diagnose.analyzers.common.unread import operators_in, run_share
from diagnose.dataflow.graph import Graph
from diagnose.dataflow.liveness import DeadWork
from diagnose.model.dataflow import Frame
from diagnose.model.diagnosis import Finding
from diagnose.model.limits import FEWEST, MAJORITY, MAX_NAMED
from diagnose.model.own_source import OwnSource
from diagnose.model.records import UnreadRecord
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.flow import Flow
from diagnose.tables.run_steps import run_mean
from diagnose.text.numbers import percent, plural

META = RuleMeta(
    id="dead-work",
    kind="idle",
    order=97,  # before waits and Python that only serve such a result
    host_order=61,
    legend=Legend("operators computed what nothing uses"),
    changes=("skip-zero-term", "skip-frozen", "detach-inputs", "compute-in-branch", "compute-less-often"),
    needs=("data flow",),
)
ADVICE = (
    Advice(
        id="compute-less-often",
        title="Leave the work out{there}: the step that does it reads nothing of it",
        numerics=identical("if no later step reads it"),
        needs="a result that no step needs",
        when=lambda f, _: f.facts.get(IN_LONG_STEP) and f.facts.get("kind") == "result",
        least=0.9,
    ),
    Advice(
        id="compute-less-often",
        title="Compute it only in the steps that read it{there}",
        numerics=identical("if only other steps read it"),
        needs="a result that is not needed in each step",
        when=lambda f, p: f.facts.get("kind") == "result" and in_training(f, p),
        least=0.5,
    ),
)
_OFTEN = "A result is made more often than it is read"


def detect(flow: Flow) -> Iterator[Avoidable]:
    """Yield gradients that nothing reads, terms that are multiplied by zero, and other results that nothing reads."""
    yield from _unread(flow)
    yield from _averages(flow)
    for one in flow.found.dead_work:
        if one.parameters:
            title = "The backward pass computes gradients of parameters that no optimizer updates"
            more = f" and {len(one.parameters) - 1:,} more parameters" if len(one.parameters) > 1 else ""
            text = f"The backward pass of {at(one.value_line)} computes gradients of {one.parameters[0]}{more}, and "
            text += "no optimizer updates them."
            if one.has_no_rate:
                title = "The backward pass computes gradients of parameters with a learning rate of 0"
                text = f"{at(one.value_line).capitalize()} computes gradients of {one.parameters[0]}{more}, and their "
                text += "learning rate is 0."
        elif one.unused:
            title = "The backward pass computes gradients of parameters that nothing uses"
            text = f"The backward pass of {at(one.call_line)} computes gradients of {modules_of(one.unused)}, and "
            text += "nothing uses them."
        elif one.kind == "gradient":
            title = "The backward pass goes on into operators whose gradients nothing uses"
            used, made = at(one.use_line), at(one.value_line)
            text = f"Gradients go from {used} back through {made}, and no optimizer reads them."
            if one.frozen and one.below:
                text = f"Gradients go from {one.below} back to {modules_of(one.frozen[-1:])}, and nothing there trains."
        elif one.kind == "zero factor":
            title = "Operators compute a term that is multiplied by zero"
            text = f"What {at(one.value_line)} computes is multiplied by zero at {at(one.use_line)}."
            if one.value_line == one.use_line:
                text = f"{at(one.use_line).capitalize()} multiplies what it computes by zero."
        else:
            title = "Operators compute a result that nothing uses"
            text = f"No recorded step reads what {at(one.value_line)} makes."
        is_first = one.kind == "gradient" or one.value_line not in one.work.lines or _runs_more(flow.found.graph, one)
        lines = (one.asked_line, one.call_line, *((one.value_line,) * is_first), *one.work.lines)
        lines = (one.use_line, *lines) if one.kind == "zero factor" else lines
        lines = (flow.optimizer, *lines) if one.has_no_rate else lines
        facts: dict[str, object] = {
            "kind": one.kind,
            "draws": one.draws,
            "is_frozen": bool(one.parameters),
            "has_no_rate": one.has_no_rate,
            "is_unused": bool(one.unused),
            "modules": modules_of((*one.parameters, *one.unused)),
            "is_asked": one.asked_line is not None,
            "below": one.below,
            "ends_early": one.ends_early,
        }
        yield Avoidable(
            title,
            text,
            one.work,
            lines,
            facts,
            one.avoidable,
            "high" if one.is_certain else "low",
            edits=_edits(flow.source, one),
            with_inner=one.with_inner,
            doubt=""
            if one.is_certain
            else "the gradients stay in `.grad`, and a step that was not recorded may use them",
        )


def _unread(flow: Flow) -> Iterator[Avoidable]:
    """Yield what the user's statements make in each step, and read in fewer."""
    graph = flow.found.graph
    for one in flow.unread:
        if _is_in_each_step(one) and one.made > one.read:
            mine = operators_in([each.stack for each in graph.operators], one.chains)
            work = graph.work(set(mine).intersection(graph.of_step(0)))
            lines: tuple[Frame | None, ...] = tuple(Frame(file, line, "") for file, line in reversed(one.first))
            share, facts, edits = 1 - one.read / one.made, _facts(one), _moved(flow.source, one)
            yield Avoidable(_OFTEN, _reading(one), work, lines, facts, share, chains=one.chains, edits=edits)


def _moved(source: OwnSource, one: UnreadRecord) -> Edits:
    """Return the statements moved into the branch that reads what they make, if they are in the function that has it.

    What follows a loop may find other values, and a condition that is made in between has to be tested first.
    """
    if one.after or one.early or len(one.readers) != 1 or any(each[:-1] != one.first[:-1] for each in one.chains):
        return ()
    statements = [Frame(*each[-1][:2], "") for each in one.chains]
    reader = Frame(*one.readers[0], "")
    return moved(source, statements, reader) if {each.file for each in statements} == {reader.file} else ()


def _is_in_each_step(one: UnreadRecord) -> bool:
    return one.in_steps > MAJORITY * one.steps


def _reading(one: UnreadRecord) -> str:
    """Return a sentence on how often a result is made and read."""
    made = f"{at(Frame(*one.first[-1], '')).capitalize()} makes {_names(one)}"
    if not one.readers:
        return f"{made}, and nothing reads it after this call."
    times = f"{made} {one.made:,} times in {plural(one.steps, 'step')}"
    reader = f"line {one.readers[0][1]}"
    return f"{times}, and {reader} reads {one.read:,} of the results."


def _names(one: UnreadRecord) -> str:
    return ", ".join(f"`{name}`" for name in one.names[:MAX_NAMED]) or "a result"


def _facts(one: UnreadRecord) -> dict[str, object]:
    kind = "after" if one.after else "early" if one.early else "in branch" if one.readers else "unread"
    return {"kind": kind, "names": _names(one), "reader": one.readers[0][1] if one.readers else 0}


def find(t: Tables) -> list[Finding]:
    """Name what can be left out in each step, and what comes now and then and is read less often."""
    return [*_RULE.find(t), *_now_and_then(t)]


def _now_and_then(t: Tables) -> Iterator[Finding]:
    mean = run_mean(t.capture.run, t.capture) if t.capture.run is not None else None
    for one in t.capture.known.unread:
        if mean is None or _is_in_each_step(one) or one.made < FEWEST:
            continue
        in_run, num = run_share(t, one)
        share = in_run * (1 - one.read / one.made)
        if share < _RULE.min_share or num < FEWEST:
            continue
        yield Finding(
            rule=META.id,
            title=_OFTEN,
            lost_ns=share * mean[0],
            share=share,
            evidence=(_reading(one), f"{num} samples of the run were there, {percent(in_run)} of its time."),
            where=tuple(line_at(t, file, line, "") for file, line in reversed(one.first)),
            facts=_facts(one) | {IN_LONG_STEP: True},
        )


def _runs_more(graph: Graph, one: DeadWork) -> bool:
    """Return whether the line that takes most of some work runs other operators too: it is not the one to edit."""
    own, step = set(one.work.operators), graph.operators[one.work.operators[0]].step
    others = (graph.operators[i] for i in graph.of_step(step) if i not in own and not graph.operators[i].is_view)
    return any(other.place == one.work.line for other in others)


def _averages(flow: Flow) -> Iterator[Avoidable]:
    """Yield averages of weights that never change."""
    for one in flow.found.unchanged_averages:
        num, of = len(one.names), modules_of(one.names)
        text = f"{at(one.work.line).capitalize()} averages {plural(num, 'parameter')} that no step changes, of {of}."
        edits = only_trained(flow.source, one.work.line) if one.work.line is not None else ()
        title = "An average is kept of weights that never change"
        yield Avoidable(title, text, one.work, one.work.lines, {"kind": "unchanged"}, edits=edits)


def _edits(source: OwnSource, one: DeadWork) -> Edits:
    """Return the user's statement that starts the gradients or adds the term, without them."""
    if one.asked_line is not None:  # another step may use them, as a ranking by gradients now and then
        return ()
    if one.unused:
        return frozen_for(source, one.call_line) if one.call_line is not None else ()
    if one.kind == "zero factor" and one.use_line is not None and one.use_line == one.value_line:
        return skipped(source, one.use_line)
    if one.kind != "gradient" or one.value_line is None or one.use_line is None or one.value_line == one.use_line:
        return ()
    if one.below and one.is_apart:
        return without_gradients(source, one.value_line)
    return detached(source, one.value_line, one.use_line)


def modules_of(parameters: Sequence[str]) -> str:
    """Return the modules of some parameters, three by name."""
    found = list(dict.fromkeys(name.rpartition(".")[0] or name for name in parameters))
    more = f" and {len(found) - MAX_NAMED:,} more modules" if len(found) > MAX_NAMED else ""
    return ", ".join(found[:MAX_NAMED]) + more


_RULE = AvoidableRule(META, detect, by_time=True)
claim, claim_host = _RULE.claim, _RULE.claim_host
