"""The CPU computes with subnormal numbers, which takes many times as long.

What it looks for
    On a recording without a device: parameters, gradients and buffers of which a thousandth or more are subnormal,
    below 1.2e-38 and not 0, as the capture finds them in memory; and operators with an input of that shape that take at
    least twice as long for a number, or a product for an operation, as the recording's others. At least 5 % of the
    step.

Why it costs
    The units that add and multiply do not handle these numbers themselves: each such operation takes 100 to 200 cycles
    more, and holds up all numbers of its vector.

What to do
    `torch.set_flush_denormal(True)` makes them 0. Or keep them from coming into being: powers of a decay, masks and
    averages that fade are cut off where they no longer count.

How sure
    Medium: that tensors hold them is counted. That an operator is slow for them, and not for its layout, follows from
    its shape and the comparison; a trial shows it (`diagnose prove`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from diagnose.analyzers.common.callers import at_function
from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, worth_claiming
from diagnose.analyzers.common.locate import locate
from diagnose.model.arrays import Rows
from diagnose.model.diagnosis import Finding, Where
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, contains, union
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.names import BACKWARD
from diagnose.tables.subnormal_numbers import subnormal_numbers
from diagnose.text.numbers import percent

META = RuleMeta(
    id="subnormal-numbers",
    kind="idle",
    order=131,
    host_order=77,
    legend=Legend("the CPU computed with subnormal numbers", "#3f6fb0"),
    changes=("flush-subnormals",),
    cause="host-work",
    needs=("shapes", "contents of tensors"),
    without_dataflow=True,
)
MIN_STEP_SHARE = 0.05  # of the step
MAX_NAMED = 3


def claim(_t: Tables, _left: Intervals) -> Intervals:
    """Claim nothing beside a device, which computes with such numbers as fast as with others."""
    return EMPTY


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim what operators on such numbers take longer than others."""
    found = subnormal_numbers(t)
    return EMPTY if found is None else worth_claiming(t, left, union(found.host), MIN_STEP_SHARE)


def find(t: Tables) -> list[Finding]:
    """Name the tensors and how much longer operators take."""
    found = subnormal_numbers(t)
    if found is None:
        return []
    first = found.tensors[0]
    tensors = "; ".join(
        f"{each.name} ({' × '.join(map(str, each.shape))}): {percent(each.share)}" for each in found.tensors[:MAX_NAMED]
    )
    texts = [
        f"Share of subnormal numbers: {tensors}.",
        f"Operators with an input of such a shape take {found.ratio:.1f} times as long as others for as much work.",
    ]
    title = f"The CPU computes with subnormal numbers, of the {first.name}"
    facts = {"tensor": first.name}
    rule = IdleRule(META.id, title, probe="middle", confidence="medium", evidence=lambda _t, _o: texts, facts=facts)
    return [replace(each, where=_where(t, found.rows) or each.where) for each in idle_finding(t, rule)]


def _where(t: Tables, rows: Rows) -> tuple[Where, ...]:
    """Return the functions that call the operators which take longest, outside of the backward pass."""
    named, cost = t.named, Counter[tuple[str, int, str]]()
    events = named.trace.events
    backward = named.covering(named.calls(BACKWARD, Kind.OP, Kind.ANNOTATION))
    rows = rows[~contains(backward, events.start[rows])]
    for row, place in zip(rows.tolist(), locate(named, events.thread[rows], events.start[rows]), strict=True):
        if place.file and place.line and place.function:
            cost[place.file, place.line, place.function] += int(events.end[row] - events.start[row])
    return tuple(at_function(t, function) for function, _ in cost.most_common(MAX_NAMED))
