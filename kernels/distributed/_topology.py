"""Which GPUs of a host have faster links between them than to the others, by NVML."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["link_groups", "link_levels"]

NVLINK = 0  # as near as two chips of one board, whose level NVML counts as 0
_P2P_OVER_NVLINK, _OK = 2, 0  # NVML_P2P_CAPS_INDEX_NVLINK and NVML_P2P_STATUS_OK; pynvml's other indices are tuples


def link_levels(nvml: Any, uuids: Sequence[str]) -> list[list[int | None]]:
    """Return how far each two GPUs are apart, None where the driver has no answer.

    0: NVLink or one board; 10: one PCIe switch; 20: several; 30: a host bridge; 40: the links of one NUMA node; 50:
    those between NUMA nodes (NVML's levels of the common ancestor).
    """
    handles = [_handle(nvml, uuid) for uuid in uuids]
    return [[NVLINK if a is b else _level(nvml, a, b) for b in handles] for a in handles]


def link_groups(levels: Sequence[Sequence[int | None]]) -> list[list[int]]:
    """Return the places of GPUs with the fastest links between them, in groups of one size; one group where none is.

    GPUs that NVLink joins, at least by way of others, are a group; without NVLink, those with anything better between
    them than the slowest link of the host.
    """
    num = len(levels)
    known = {level for row in levels for level in row if level is not None}
    if num < 2 or any(level is None for row in levels for level in row):
        return [list(range(num))]
    others = {levels[a][b] for a in range(num) for b in range(num) if a != b}
    limits = [NVLINK] if NVLINK in others else sorted(known - {max(known)}, reverse=True)
    for limit in limits:
        groups = _joined(levels, limit)
        if len(groups) > 1 and len({len(group) for group in groups}) == 1 and len(groups[0]) > 1:
            return groups
    return [list(range(num))]


def _joined(levels: Sequence[Sequence[int | None]], limit: int) -> list[list[int]]:
    """Return the groups whose members are joined by links of at most this level, at least by way of others."""
    groups: list[list[int]] = []
    for place, row in enumerate(levels):
        near = [g for g in groups if any((level := row[other]) is not None and level <= limit for other in g)]
        merged = sorted([place, *(other for group in near for other in group)])
        groups = [group for group in groups if group not in near] + [merged]
    return sorted(groups)


def _handle(nvml: Any, uuid: str) -> Any:
    """Return the handle of the GPU with this UUID, which torch writes without its "GPU-"."""
    names = (uuid, f"GPU-{uuid}", f"MIG-{uuid}")
    for form in (*names, *(name.encode() for name in names)):
        found = _ask(functools.partial(nvml.nvmlDeviceGetHandleByUUID, form))
        if found is not None:
            return found
    return None


def _level(nvml: Any, a: Any, b: Any) -> int | None:
    if a is None or b is None:
        return None
    if _ask(lambda: nvml.nvmlDeviceGetP2PStatus(a, b, _P2P_OVER_NVLINK)) == _OK:
        return NVLINK
    level = _ask(lambda: nvml.nvmlDeviceGetTopologyCommonAncestor(a, b))
    return None if level is None else int(level)


def _ask(question: Callable[[], Any]) -> Any:
    """Return the answer, None where the board or the driver has none."""
    try:
        return question()
    except Exception:  # "not supported" is an answer
        return None
