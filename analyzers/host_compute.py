"""An operator runs on the CPU while the GPU waits.

What it looks for
    Idle time inside one operator that launches nothing for 1 ms or more. Also many short CPU operators that fill more
    than half of an interval.

Why it costs
    The GPU has no work until the operator returns.

What to do
    An operator runs on the device of its inputs, so move them to the GPU first. Or run it in the DataLoader's workers,
    or less often.

How sure
    High.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from diagnose.analyzers.common.advice import Advice, rounding
from diagnose.analyzers.common.idle_findings import IdleGaps, IdleRule, idle_finding, idle_gaps_of
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import Intervals, covered, intersect
from diagnose.model.locations import in_library
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.host import layers
from diagnose.tables.host_gaps import NEVER_COMPUTES, host_compute
from diagnose.text.numbers import duration

META = RuleMeta(
    id="host-compute",
    kind="idle",
    order=125,
    legend=Legend("an operator computed on the host"),
    changes=("compute-on-device",),
    cause="host-work",
    paced_by="dispatch",
)
_STAYS = ("aten::flatten_dense_tensors", "aten::unflatten_dense_tensors", "Optimizer.")  # of torch, where data are


ADVICE = (
    Advice(
        id="compute-on-device",
        title="Move {operator} to the device or into the loader's workers{there}",
        numerics=rounding("kernels of the device round differently; compare the loss of the first steps"),
        after="""device = next(model.parameters()).device
x = x.to(device, non_blocking=True)   # its inputs first; then the operator runs there
# or, if it only needs the sample: in the dataset's __getitem__, which DataLoader workers run ahead""",
        watch="A result that the host reads back waits for the device.",
        when=lambda f, _: (
            f.facts.get("operator") and not str(f.facts["operator"]).startswith(_STAYS) and not in_library(f.where)
        ),
        least=0.5,
        of="on_host",
    ),
)


_COMPUTES = r"^(?!autograd::|torch::|c10d::|aten::(_to_copy|to|copy_|clone|contiguous)\b)\w+::\w+$"


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle in which the launching thread was silent inside an operator."""
    return intersect(left, host_compute(t))


def find(t: Tables) -> list[Finding]:
    """Name the operators that filled the idle time."""
    o = idle_gaps_of(t, META.id)
    cost, on_host = Counter[str](), Counter[str]()
    events, launch = t.trace.events, t.tasks.launch[t.tasks.launch >= 0]
    by_thread = {each: np.sort(events.start[launch[events.thread[launch] == each]]) for each in t.threads}
    for row, ns in _claimed(t, o):
        name, begun = t.name(row), by_thread.get(int(events.thread[row]), launch[:0])
        cost[name] += ns
        # An operator that launches tasks itself runs on the device: it was slow to begin. Copies compute nothing.
        first, last = np.searchsorted(begun, (events.start[row], events.end[row]))
        if first == last and re.match(_COMPUTES, name) and not NEVER_COMPUTES.search(name):
            on_host[name] += ns
    longest = max(cost, key=lambda name: cost[name], default="")
    computing = max(on_host, key=lambda name: on_host[name], default="")
    named = computing or (longest if 2 * cost[longest] > cost.total() else "") or "An operator"
    facts = {"operator": computing, "on_host": min(on_host.total() / max(int(o.lost.sum()), 1), 1.0)}
    listed = ", ".join(f"{name} ({duration(ns / t.steps.num)} a step)" for name, ns in cost.most_common(3))
    title, text = f"{named} runs on the CPU while the GPU waits", f"Inside {listed}."
    return idle_finding(t, IdleRule(META.id, title, "middle", evidence=[text], facts=facts))


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
