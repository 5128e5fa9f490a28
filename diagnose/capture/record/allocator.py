"""What torch's caching allocator counts, before and after the recorded windows."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["allocator_counters", "allocator_map", "counted_between"]

_COUNTERS = {
    "retries": "num_alloc_retries",
    "out_of_memory": "num_ooms",
    "allocated_peak_bytes": "allocated_bytes.all.peak",
    "reserved_peak_bytes": "reserved_bytes.all.peak",
    "inactive_split_bytes": "inactive_split_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
}
_SINCE_START = ("retries", "out_of_memory")  # counted from the begin of the process


def allocator_counters() -> dict[str, int]:
    """Return the counters of the current CUDA device, and its memory; empty while CUDA is not in use."""
    cuda = _cuda()
    if cuda is None:
        return {}
    try:
        stats, (free, whole) = cuda.memory_stats(), cuda.mem_get_info()
    except Exception:  # another allocator, as of cudaMallocAsync or a plugin, counts nothing
        return {}
    found = {ours: int(stats[theirs]) for ours, theirs in _COUNTERS.items() if theirs in stats}
    return found | {"free_bytes": int(free), "capacity_bytes": int(whole)} if found else {}


def allocator_map() -> dict[str, int]:
    """Return what the allocator's snapshot of the current CUDA device shows of free memory; empty without CUDA.

    Memory that is free in pieces between blocks in use serves no request that is larger than the largest piece.
    """
    cuda = _cuda()
    if cuda is None:
        return {}
    try:
        device = cuda.current_device()
        segments = [one for one in cuda.memory_snapshot() if one["device"] == device]
        free = [b["size"] for one in segments for b in one["blocks"] if b["state"] == "inactive"]
    except Exception:  # another allocator keeps no map
        return {}
    if not segments:
        return {}
    largest = max(free, default=0)
    return {"segments": len(segments), "free_pieces_bytes": sum(free), "largest_free_piece_bytes": largest}


def _cuda() -> Any:  # a module, which may not be there
    """Return torch.cuda where it is in use, None otherwise."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def counted_between(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the later counters, those that only grow less what they were before."""
    return {name: value - before.get(name, 0) * (name in _SINCE_START) for name, value in after.items()}
