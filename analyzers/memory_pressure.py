"""Memory is nearly full: the allocator gives back and takes again.

What it looks for
    Allocations that only succeeded after the allocator had emptied its cache (retries), or a peak of reserved memory of
    97 % of the device or more; where NVML was sampled, also 99 % in use by its count, which includes the CUDA context,
    communicators and other processes.

Why it costs
    A retry waits for all queued work, frees cached blocks and allocates from the driver again: milliseconds each. The
    next longer sequence is out of memory.

What to do
    Need less at the peak: an allocator that fragments less, blocks that are computed again in the backward pass, a
    smaller batch with accumulation. Each change states which batch then fits, and what it costs a step, where the
    recording shows both.

How sure
    High: the allocator counts retries itself. What they cost is booked under allocator-stall.
"""

from __future__ import annotations

from diagnose.analyzers.common.held_values import held_values
from diagnose.analyzers.common.memory import GROWING, driver_evidence, forward_ns
from diagnose.model.diagnosis import Finding
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables
from diagnose.tables.roofline import gpu_spec
from diagnose.text.numbers import plural

META = RuleMeta(
    id="memory-pressure",
    kind="state",
    order=50,
    changes=("expandable-segments", "checkpoint-blocks"),
    needs=("memory events",),
    also=(
        "accumulate-gradients",
        "offload-activations",
        "fused-loss",
        "eight-bit-optimizer",
        "offload-optimizer",
        "shard-optimizer",
        "shard-model",
        "split-layers",
        "find-memory",
        "find-batch-size",
        "group-lengths",
    ),
)
MIN_RESERVED_SHARE = 0.97  # of the device: the driver and the context take the rest
MIN_USED_SHARE = 0.99  # of the device, by the driver's count: nothing else comes on top


def find(t: Tables) -> list[Finding]:
    """State how full it is."""
    memory = t.memory
    if memory is None or not memory.capacity:
        return []
    reserved = memory.peak_reserved or memory.peak_allocated
    retries = memory.retries or 0
    total = max(memory.device_total or 0, memory.capacity)
    is_full = reserved >= MIN_RESERVED_SHARE * memory.capacity or (memory.device_used or 0) >= MIN_USED_SHARE * total
    if not retries and not is_full:
        return []
    spec = gpu_spec(t)
    held = ", ".join(f"{name} {size / 1e9:.2f} GB" for name, size in list(memory.by_category.items())[:4])
    return [
        Finding(
            rule=META.id,
            title=f"Memory is full: {plural(retries, 'allocation')} had to empty the cache first"
            if retries
            else "Memory is full but for a few per cent",
            lost_ns=0.0,
            count=max(retries, 1),
            evidence=(
                f"{reserved / 1e9:.2f} GB of {memory.capacity / 1e9:.2f} GB are reserved at the peak; "
                f"then {memory.peak_allocated / 1e9:.2f} GB are allocated: {held}.",
                *driver_evidence(memory),
                *held_values(t),
            ),
            where=tuple(where for where, _ in memory.by_place[:3]),
            facts={
                "by_category": dict(memory.by_category),
                "world_size": t.trace.world_size,
                "allocated": memory.peak_allocated,
                "capacity": memory.capacity - (memory.outside_allocator or 0),
                "growing": sum(memory.by_category.get(name, 0) for name in GROWING),
                "forward_ns": forward_ns(t),
                "link_gb_s": spec.pcie if spec else 0.0,
                "optimizer": t.capture.info.optimizer.name if t.capture.info else None,
            },
        )
    ]
