"""A function of the script's own computes without gradients in each training step.

What it looks for
    On a recording without a device, of steps that train: operators that a function of the user's calls itself, outside
    of torch's layers, the loader, the backward pass and the optimizer, and that leave nothing for the backward pass:
    what is detached, under `no_grad`, or made of data alone. Products and convolutions are a model's and do not count,
    nor does what draws random numbers, such as dropout of the inputs, or a function that makes targets of labels
    (`scatter`, `one_hot`): they are others in each step.
    At least 15 % of the step in one function, half of it in operators of 0.1 ms or more.

Why it costs
    The step is as long as its forward and backward pass and this. Statistics of activations, metrics over all that came
    before, tables that are built anew, and buffers that are copied whole are often the larger part.

What to do
    What is the same in each step: once, before the loop. What is only read now and then: only then. What grows or moves
    by a few rows: these rows alone, in place.

How sure
    High for the time and the line. Whether the step needs it only the script's author knows.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding
from diagnose.model.arrays import Rows
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import EMPTY, Intervals, among, intersect, total
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables, shared_table
from diagnose.tables.issuers import called_by_functions
from diagnose.tables.no_grad_calls import HEAVY, without_gradients
from diagnose.text.numbers import duration
from diagnose.text.patterns import lazy_pattern

META = RuleMeta(
    id="work-without-gradients",
    kind="idle",
    order=127,
    host_order=95,
    legend=Legend("the script's own functions computed without gradients", "#2f8f6b"),
    changes=("compute-less-often",),
    cause="host-work",
    host_needs=("stacks",),
    without_dataflow=True,
)
MIN_FUNCTION_SHARE = 0.15  # of the step, in one function: noise, targets and metrics of a batch take a few percent
MIN_NS = 100_000  # of an operator that computes; a call of a small one takes a tenth of it
MAX_NAMED = 3
_DRAWS = lazy_pattern(
    r"^aten::(\w*dropout_?|rand\w*|multinomial|(bernoulli|normal|uniform|exponential|binomial|poisson)_?)$"
)
_MAKES_TARGETS = lazy_pattern(r"^aten::(scatter_?|one_hot)$")


def claim(_t: Tables, _left: Intervals) -> Intervals:
    """Claim nothing beside a device, where operators only launch."""
    return EMPTY


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim the operators of the function that computes most without gradients."""
    rows = _largest(t)[1]
    return intersect(left, t.covering(rows)) if len(rows) else EMPTY


def find(t: Tables) -> list[Finding]:
    """Name the function and what it calls."""
    frame, rows = _largest(t)
    if t.device_id >= 0 or not len(rows):
        return []
    cost = Counter[str]()
    for row in rows.tolist():
        cost[t.name(row)] += int(t.trace.events.end[row] - t.trace.events.start[row])
    listed = [f"{name} ({duration(ns / t.steps.num)} a step)" for name, ns in cost.most_common(MAX_NAMED)]
    function = frame.rpartition(": ")[2]
    title = f"Operators without gradients in {function} take the step's time, most of it {cost.most_common(1)[0][0]}"
    text = f"{frame} calls {', '.join(listed)}; no gradient passes through them."
    rule = IdleRule(META.id, title, probe="middle", evidence=lambda _t, _o: [text], facts={"function": function})
    return idle_finding(t, rule)


@shared_table
def _largest(t: Tables) -> tuple[str, Rows]:
    """Return the function with the longest such operators, and these; none where they take too little."""
    free = without_gradients(t)
    apart = np.array([any(pattern.match(name) for pattern in (HEAVY, _DRAWS)) for name in t.trace.names], bool)
    of_labels = np.array([_MAKES_TARGETS.match(name) is not None for name in t.trace.names], bool)
    best: tuple[int, str, Rows] = (0, "", np.empty(0, np.intp))
    for frame, rows in called_by_functions(t).items() if len(free) else ():
        mine = np.sort(rows[among(rows, free) & ~apart[t.trace.events.name[rows]]], kind="stable")
        length = (t.trace.events.end - t.trace.events.start)[mine]
        if length[length >= MIN_NS].sum() < length.sum() / 2:  # a loop of small operators: launch-bound names it
            continue
        if of_labels[t.trace.events.name[mine]].any():
            continue
        best = max(best, (total(t.covering(mine)), frame, mine), key=lambda each: each[0])
    window = t.steps.window[1] - t.steps.window[0]
    return best[1:] if best[0] >= MIN_FUNCTION_SHARE * window else ("", np.empty(0, np.intp))
