"""A larger batch would fit, and the GPU waits for the CPU.

What it looks for
    A step with at least 10% of `launch-bound` time and at most half of the memory used at the peak.

Why it costs
    Launches take as long for a small batch as for a large one.

What to do
    Increase the batch size, and adapt the learning rate.

How sure
    Medium: a larger batch may train differently. Needs memory events.
"""

from __future__ import annotations

from dataclasses import replace

from diagnose.analyzers.common.advice import Advice, other_training, rounding
from diagnose.analyzers.common.memory import GROWING, driver_evidence
from diagnose.model.diagnosis import Finding
from diagnose.model.limits import MAX_TIMES, USABLE_SHARE
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables

META = RuleMeta(
    id="memory-headroom",
    kind="state",
    order=70,
    changes=("larger-batch",),
    also=("find-batch-size",),
    needs=("memory events",),
)
_LARGER = Advice(
    id="larger-batch",
    title="Use a larger batch: launching costs the same for it",
    numerics=other_training("a larger batch trains differently"),
    before="DataLoader(dataset, batch_size={batch})",
    after="DataLoader(dataset, batch_size={twice})  # and the learning rate that goes with it",
    needs="memory for the larger batch",
    when=lambda _, p: not p.server and p.trains is not False and p.has_loader is not False,
)
_ANY_INPUTS = replace(
    _LARGER,
    before="y = model(x)",
    after="y = model(x)   # twice as many samples, if they wait for each other",
    when=lambda _, p: not p.server and p.trains is not False,
)
ADVICE = (
    _LARGER,
    _ANY_INPUTS,
    replace(
        _ANY_INPUTS,
        numerics=rounding("kernels for another batch size round differently; compare the outputs"),
        needs="memory for the larger batch, and callers who can wait for it to fill",
        when=lambda _, p: not p.server,
    ),
)


def find(t: Tables) -> list[Finding]:
    """State how much larger the batch may be."""
    memory, (start, end) = t.memory, t.steps.window
    launching = t.causes.totals().get("launch-bound", 0)
    if memory is None or not memory.capacity or launching < 0.1 * (end - start):
        return []
    reserved = memory.peak_reserved or memory.peak_allocated
    growing = sum(memory.by_category.get(name, 0) for name in GROWING)
    outside = memory.outside_allocator or 0
    if reserved + outside > 0.5 * memory.capacity or not growing:
        return []
    times = 1 + (USABLE_SHARE * (memory.capacity - outside) - reserved) / growing
    much = f"{times:.0f}" if times < MAX_TIMES else f"over {MAX_TIMES}"
    return [
        Finding(
            rule=META.id,
            title=f"Memory has room for a batch {much} times as large",
            lost_ns=0.0,
            count=1,
            evidence=(
                f"{reserved / 1e9:.2f} GB of {memory.capacity / 1e9:.2f} GB are reserved at the peak; "
                f"{growing / 1e9:.2f} GB of what is allocated then grow with the batch.",
                *driver_evidence(memory),
            ),
            confidence="medium",
        )
    ]
