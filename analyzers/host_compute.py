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

from collections import Counter

from diagnose.analyzers.common.idle_findings import Idle, Occurrences, idle_finding
from diagnose.model.diagnosis import Finding
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
)
MAX_NAMED = 3


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle in which the launching thread was silent inside an operator."""
    return intersect(left, host_compute(t))


def find(t: Tables) -> list[Finding]:
    """Name the operators that filled the idle time."""
    title = "An operator computes on the host while the device waits"
    return idle_finding(t, Idle(META.id, title, probe="middle", evidence=_operators))


def _operators(t: Tables, o: Occurrences) -> list[str]:
    cost = Counter[str]()
    for stretches, operators in silent_operators(t):
        claimed = covered(o.pieces, stretches.start, stretches.end)
        for row, ns in zip(operators.tolist(), claimed.tolist(), strict=True):
            cost[t.name(row)] += ns
    listed = ", ".join(f"{name} ({ns / t.steps.num / 1e6:.2f} ms a step)" for name, ns in cost.most_common(MAX_NAMED))
    return [f"Inside {listed}."]
