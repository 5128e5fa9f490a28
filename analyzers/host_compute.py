"""An operator computes on the host while the device waits.

What it looks for
    Idle during which the launching thread was inside one operator for a millisecond or more without calling anything:
    no other operator, no launch, no call of the runtime. That is no dispatch, which takes microseconds; the operator
    itself was at work.

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

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleRule, Occurrences, idle_finding, occurrences
from diagnose.model.arrays import Ints
from diagnose.model.diagnosis import Facts, Finding
from diagnose.model.intervals import Intervals, covered, intersect
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.host_compute import host_compute, silent_operators

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
_COMPUTES = re.compile(r"^(?!autograd::|torch::|c10d::|aten::(_to_copy|to|copy_|clone|contiguous|empty)\b)\w+::\w+$")


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle in which the launching thread was silent inside an operator."""
    return intersect(left, host_compute(t))


def find(t: Tables) -> list[Finding]:
    """Name the operators that filled the idle time."""
    title = "An operator computes on the host while the device waits"
    o = occurrences(t, META.id)
    return idle_finding(t, IdleRule(META.id, title, probe="middle", evidence=_operators, facts=_facts(t, o)))


def _facts(t: Tables, o: Occurrences) -> Facts:
    """Return the operator that computes longest on the host alone, and its like's share of the time.

    An operator that launches device tasks itself runs on the device: it was slow to begin. Copies and annotations
    compute nothing.
    """
    launched: dict[int, Ints] = {}
    events, launch = t.trace.events, t.tasks.launch[t.tasks.launch >= 0]
    for thread in t.threads:
        launched[thread] = np.sort(events.start[launch[events.thread[launch] == thread]])
    cost, whole = Counter[str](), 0
    for stretches, operators in silent_operators(t):
        claimed = covered(o.pieces, stretches.start, stretches.end)
        whole += int(claimed.sum())
        for row, ns in zip(operators.tolist(), claimed.tolist(), strict=True):
            begun = launched.get(int(events.thread[row]), events.start[:0])
            first, last = np.searchsorted(begun, (events.start[row], events.end[row]))
            if ns and first == last and _COMPUTES.match(t.name(row)):
                cost[t.name(row)] += ns
    name = cost.most_common(1)[0][0] if cost else ""
    return {"operator": name, "on_host": sum(cost.values()) / whole if whole else 0.0}


def _operators(t: Tables, o: Occurrences) -> list[str]:
    cost = Counter[str]()
    for stretches, operators in silent_operators(t):
        claimed = covered(o.pieces, stretches.start, stretches.end)
        for row, ns in zip(operators.tolist(), claimed.tolist(), strict=True):
            cost[t.name(row)] += ns
    listed = ", ".join(f"{name} ({ns / t.steps.num / 1e6:.2f} ms a step)" for name, ns in cost.most_common(MAX_NAMED))
    return [f"Inside {listed}."]
