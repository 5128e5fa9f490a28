"""An operator runs on the CPU while the GPU waits.

What it looks for
    Idle during which the launching thread was inside one operator for a millisecond or more without calling anything:
    no other operator, no launch, no call of the runtime. That is no dispatch, which takes microseconds; the operator
    itself was at work. So were many short operators that fill more than half of an interval without a call. Allocations
    and views compute nothing, however many there are; an operator that launches, or wraps others, computes where it is
    silent in half of its calls or more. Other silence is an interruption of the thread (`unexplained-host`).

Why it costs
    The device has nothing to do until the operator returns.

What to do
    Run it on the device, in the DataLoader's workers, or less often. An operator of PyTorch runs on the host because
    its inputs lie there.

How sure
    High that the operator filled the time; where a kernel runs for the first time behind it, it is first use
    (`warm-up`) instead.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleGaps, IdleRule, idle_finding, idle_gaps_of
from diagnose.model.arrays import Ints
from diagnose.model.diagnosis import Facts, Finding
from diagnose.model.intervals import Intervals, covered, intersect
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.host import layers
from diagnose.tables.host_gaps import (
    NEVER_COMPUTES,
    host_compute,
)
from diagnose.text.numbers import duration

META = RuleMeta(
    id="host-compute",
    kind="idle",
    order=125,
    legend=Legend("an operator computed on the host", "#17a3a3"),
    changes=("compute-on-device",),
    cause="host-work",
    paced_by="dispatch",
)
MAX_NAMED = 3
_COMPUTES = r"^(?!autograd::|torch::|c10d::|aten::(_to_copy|to|copy_|clone|contiguous)\b)\w+::\w+$"


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle in which the launching thread was silent inside an operator."""
    return intersect(left, host_compute(t))


def find(t: Tables) -> list[Finding]:
    """Name the operators that filled the idle time."""
    o = idle_gaps_of(t, META.id)
    facts = _facts(t, o)
    title = f"{facts['operator'] or _longest(t, o) or 'An operator'} runs on the CPU while the GPU waits"
    return idle_finding(t, IdleRule(META.id, title, probe="middle", evidence=_operators, facts=facts))


def _facts(t: Tables, o: IdleGaps) -> Facts:
    """Return the operator that computes longest on the host alone, and its like's share of the time.

    An operator that launches device tasks itself runs on the device: it was slow to begin. Copies and annotations
    compute nothing.
    """
    launched: dict[int, Ints] = {}
    events, launch = t.trace.events, t.tasks.launch[t.tasks.launch >= 0]
    for thread in t.threads:
        launched[thread] = np.sort(events.start[launch[events.thread[launch] == thread]], kind="stable")
    cost = Counter[str]()
    for row, ns in _claimed(t, o):
        begun = launched.get(int(events.thread[row]), events.start[:0])
        first, last = np.searchsorted(begun, (events.start[row], events.end[row]))
        if first == last and re.match(_COMPUTES, t.name(row)) and not NEVER_COMPUTES.search(t.name(row)):
            cost[t.name(row)] += ns
    whole = int(o.lost.sum())
    name = cost.most_common(1)[0][0] if cost else ""
    return {"operator": name, "on_host": min(sum(cost.values()) / whole, 1.0) if whole else 0.0}


def _longest(t: Tables, o: IdleGaps) -> str:
    """Return the operator that takes most of the time, "" where none does."""
    cost = _cost(t, o)
    name, ns = next(iter(cost.most_common(1)), ("", 0))
    return name if 2 * ns > cost.total() else ""


def _cost(t: Tables, o: IdleGaps) -> Counter[str]:
    cost = Counter[str]()
    for row, ns in _claimed(t, o):
        cost[t.name(row)] += ns
    return cost


def _operators(t: Tables, o: IdleGaps) -> list[str]:
    cost = _cost(t, o)
    listed = ", ".join(f"{name} ({duration(ns / t.steps.num)} a step)" for name, ns in cost.most_common(MAX_NAMED))
    return [f"Inside {listed}."]


def _claimed(t: Tables, o: IdleGaps) -> Iterator[tuple[int, int]]:
    """Yield the operators that filled the pieces, each with its ns: silent ones, and of many others the outermost.

    Of these only those count that can compute.
    """
    for intervals, operators in t.silent_operators:
        claimed = covered(o.pieces, intervals.start, intervals.end)
        yield from ((row, ns) for row, ns in zip(operators.tolist(), claimed.tolist(), strict=True) if ns)
    many = intersect(o.pieces, t.filled_by_operators)
    can_compute, threads = t.computing_operators, t.trace.events.thread
    for thread in t.threads:
        own = layers(t.trace, can_compute[threads[can_compute] == thread])
        if not own.rows:
            continue
        rows = own.rows[0]
        claimed = covered(many, t.trace.events.start[rows], t.trace.events.end[rows])
        yield from zip(rows[claimed > 0].tolist(), claimed[claimed > 0].tolist(), strict=True)
