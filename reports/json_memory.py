"""Memory as JSON holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.reports.json_values import Json, ms, text, where_to_dict

if TYPE_CHECKING:
    from diagnose.model.charts import Memory, MemoryByLine

__all__ = ["memory_by_line_to_dict", "memory_to_dict"]


def memory_to_dict(m: Memory) -> dict[str, Json]:
    """Return the memory of a device over the steady steps."""
    return {
        "device": text(m.device),
        "peak_allocated_bytes": m.peak_allocated,
        "peak_reserved_bytes": m.peak_reserved,
        "capacity_bytes": m.capacity,
        "device_used_bytes": m.device_used,
        "other_processes_bytes": m.other_processes,
        "outside_allocator_bytes": m.outside_allocator,
        "retries": m.retries,
        "by_category_bytes": dict(m.by_category),
        "by_place": [{**where_to_dict(where), "bytes": size} for where, size in m.by_place],
    }


def memory_by_line_to_dict(m: MemoryByLine) -> dict[str, Json]:
    """Return what lines keep for the backward pass and leave to later steps."""
    return {
        "device": text(m.device),
        "peak_bytes": m.peak_bytes,
        "kept_bytes": m.kept_bytes,
        "kept": [
            {
                **where_to_dict(one.where),
                "bytes": one.num_bytes,
                "recompute_ms": None if one.recompute_ns is None else ms(one.recompute_ns),
            }
            for one in m.kept
        ],
        "left": [{**where_to_dict(one.where), "values": one.num_values, "bytes": one.num_bytes} for one in m.left],
    }
