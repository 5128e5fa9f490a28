"""The allocator reserves far more memory than it uses.

What it looks for
    At least 60% of the memory reserved at the peak, with a third or more of it never allocated.

Why it costs
    It costs nothing until an allocation fails although enough memory is free.

What to do
    Set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, and round sequence lengths to a few sizes.

How sure
    Medium: a cache that an earlier phase filled looks the same. Needs memory events.
"""

from __future__ import annotations

from diagnose.model.diagnosis import Finding
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables

META = RuleMeta(
    id="memory-fragmentation",
    kind="state",
    order=60,
    changes=("expandable-segments",),
    needs=("memory events",),
    also=("find-memory", "group-lengths"),
)


def find(t: Tables) -> list[Finding]:
    """State how much is held for nothing, and how it lies, where the capture has the allocator's map."""
    memory, held = t.memory, t.capture.known.memory
    if memory is None or not memory.capacity or not memory.peak_reserved:
        return []
    unused = memory.peak_reserved - memory.peak_allocated
    if memory.peak_reserved < 0.6 * memory.capacity or unused < memory.peak_reserved / 3:
        return []
    free, largest = held.free_pieces_bytes or 0, held.largest_free_piece_bytes or 0
    text = (
        f"After the steps {free / 1e9:.2f} GB are free inside {held.segments} segments; the largest free piece has "
        f"{largest / 1e9:.2f} GB."
    )
    return [
        Finding(
            rule=META.id,
            title=f"{unused / 1e9:.1f} GB of memory are reserved and never used in these steps",
            lost_ns=0.0,
            count=1,
            evidence=(
                f"{memory.peak_reserved / 1e9:.2f} GB of {memory.capacity / 1e9:.2f} GB are reserved, "
                f"{memory.peak_allocated / 1e9:.2f} GB allocated at the peak.",
                *([text] if largest else []),
            ),
            confidence="medium",
        )
    ]
