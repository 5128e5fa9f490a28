"""A module is called again with the same inputs and the same weights.

What it looks for
    Calls of one module that differ in nothing: the capture compares the values of their inputs (of tensors on a
    device, which tensor it is and whether it was written to), the versions of the weights, buffers and settings, and
    whether random numbers were drawn. Of several such calls in a step the longest is needed, and of one that is the
    same in each step none. With the calls go their functions in the backward pass. At least 5 % of the step.

    A result that has gradients stands for a later call's only until its backward pass, which frees what it needs, and
    until an optimizer updates weights in place; one without gradients never stands for one with them. So the two calls
    of a discriminator, on a generator's output and on what `detach()` makes of it, are two.

Why it costs
    Targets that are computed anew for each minibatch although the model that computes them stays as it is, a loss and a
    metric that each call the model, or a derivative that each term of a loss takes from a call of its own: all of them
    compute what is there already.

What to do
    Keep the result: compute it before the loop over minibatches, pass the outputs on, take all derivatives of one call.

How sure
    High where values were compared. Accumulation over batches, two views, minibatches and dropout are told apart by
    their inputs and by the draws. What a module keeps outside of tensors and plain attributes is not compared. Traces
    that were not recorded by this program, and compiled models, have no such comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from diagnose.analyzers.common.callers import callers
from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, worth_claiming
from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding, with_idle
from diagnose.analyzers.common.locate import source_line
from diagnose.model.diagnosis import Confidence, Finding, Where
from diagnose.model.intervals import EMPTY, Intervals, intersect, total, union
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.repeated_calls import RepeatedCall, repeated_calls
from diagnose.text.numbers import duration

META = RuleMeta(
    id="repeated-call",
    kind="idle",
    order=126,
    host_order=75,
    legend=Legend("a module computed the same again", "#7a4fb5"),
    changes=("reuse-result",),
    cause="host-work",
    needs=("contents of tensors",),
    without_dataflow=True,
)
MIN_STEP_SHARE = 0.05  # of the step
MAX_NAMED = 3


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle while the host issues calls that could be left out."""
    return intersect(claim_host(t, left), t.gaps.host_part())


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim the calls that could be left out."""
    found = union(EMPTY, *[one.host for one in repeated_calls(t)])
    return worth_claiming(t, left, found, MIN_STEP_SHARE)


def find(t: Tables) -> list[Finding]:
    """Name the modules and what their calls take."""
    found = repeated_calls(t)
    if not found:
        return []
    first = found[0]
    title = f"{first.module} computes the same again: equal inputs, unchanged weights"
    texts = [_text(t, one) for one in found[:MAX_NAMED]]
    facts = {"module": first.module, "with_gradients": first.with_gradients}
    confidence: Confidence = "high" if t.device_id < 0 else "medium"
    rule = IdleRule(META.id, title, probe="middle", confidence=confidence, evidence=lambda _t, _o: texts, facts=facts)
    idle = [replace(finding, where=_where(t, found) or finding.where) for finding in idle_finding(t, rule)]
    if t.device_id < 0:
        return idle
    host = union(*[one.host for one in found])
    tasks = np.flatnonzero(t.launched_in(host))
    busy = kernel_finding(t, KernelRule(META.id, title, MIN_STEP_SHARE, 0.0, texts, confidence, facts), tasks)
    return with_idle(idle, busy, tasks)


def _where(t: Tables, found: Sequence[RepeatedCall]) -> tuple[Where, ...]:
    """Return where the calls come from; of a function that calls the first module itself, the line of its calls."""
    where = callers(t, found)
    cwd = t.capture.info.cwd.rstrip("/") if t.capture.info is not None else ""
    places = Counter((file.removeprefix(f"{cwd}/"), line, function) for file, line, function in found[0].places)
    if where:
        places = Counter({each: num for each, num in places.items() if each[2] == where[0].function})
    if not places:
        return where
    (file, line, function), _ = places.most_common(1)[0]
    return (Where(file, line, function, code=source_line(t, file, line)), *where[1:])


def _text(t: Tables, one: RepeatedCall) -> str:
    took = duration(total(one.host) / t.steps.num)
    through = ", their part of the backward pass included" if one.with_gradients else ""
    if one.is_constant:
        return (
            f"{one.module} is called {one.num:.3g} times a step with inputs and weights that are the same in each of "
            f"them: {took} of the host{through}."
        )
    return (
        f"{one.module} is called {one.num:.3g} times a step with inputs and weights that an earlier call had; "
        f"{one.spare:.3g} of the calls could be left out: {took} of the host{through}."
    )
