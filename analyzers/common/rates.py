"""How fast the collectives of one rank move their bytes, as NCCL's tests count it (bus bandwidth)."""

from __future__ import annotations

from typing import NamedTuple

from diagnose.ranks.collectives import BUS_FACTORS, collectives_of
from diagnose.tables import Tables
from diagnose.text.numbers import duration

__all__ = ["SlowRate", "slow_rate"]

MIN_BYTES = 1 << 20  # smaller ones take their start-up, whatever the link is
# PCIe 3.0 with 16 lanes carries 10 GB/s between two GPUs, xGMI and NVLink 25 to 450; between hosts 25 Gbit/s carry 3.
SLOW_GBPS = 5.0
UNEVEN = "all_to_all"  # one rank's record does not show what the others send: its rate is not of the link


class SlowRate(NamedTuple):
    """Large collectives that move less than the links of one host carry."""

    bus_gbps: float
    evidence: str


def slow_rate(t: Tables) -> SlowRate | None:
    """Return the rate of the large collectives together, None where it is usual or not known."""
    found = collectives_of(t)
    moved = took = 0.0
    largest = (0, 0, "")
    rows = zip(found.collectives.kind.tolist(), found.collectives.length.tolist(), strict=True)
    for kind, length in ((found.kinds[kind], length) for kind, length in rows):
        group = found.groups[kind.group]
        num = len(group.members) or group.size
        num_bytes = max(kind.num_bytes, kind.num_bytes_out)
        if kind.name not in BUS_FACTORS or kind.name == UNEVEN or num < 2 or num_bytes < MIN_BYTES or length <= 0:
            continue
        moved += num_bytes * BUS_FACTORS[kind.name] * (num - 1) / num
        took += length
        largest = max(largest, (num_bytes, length, kind.name))
    if not took or moved / took >= SLOW_GBPS:
        return None
    num_bytes, length, name = largest
    text = (
        f"Collectives of 1 MB and more move {moved / took:.1f} GB/s (bus bandwidth), such as {name} of "
        f"{num_bytes / 1e6:.1f} MB in {duration(length)}; PCIe 3.0 with 16 lanes carries 10. Either this rank waits "
        "for a later one, or the bytes go through host memory or a slow network."
    )
    return SlowRate(moved / took, text)
