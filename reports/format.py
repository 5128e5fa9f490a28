"""Numbers and source locations as text."""

from __future__ import annotations

from diagnose.model.charts import FlopUtilisation
from diagnose.model.diagnosis import Where
from diagnose.text.numbers import duration, growth, percent, plural
from diagnose.text.plain_text import middle

__all__ = [
    "MAX_LOSSES",
    "duration",
    "flops",
    "growth",
    "line_of",
    "path_tail",
    "percent",
    "place",
    "plural",
    "ranks",
    "recording_cost",
    "size",
    "summed",
]

MAX_LOSSES = 100  # of each side of a trial, in the JSON and in the charts


def line_of(where: Where) -> str:
    """Return "train.py:42" alone, the operator where the line is not known, or ""."""
    if not where.file:
        return middle(where.op or where.function or "", 50)
    name = where.file.rpartition("/")[2]
    return f"{name}:{where.line}" if where.line is not None and where.line > 0 else name


def path_tail(path: str, limit: int = 40) -> str:
    """Return the end of a path that is longer than ``limit`` characters, cut at folders where it can be."""
    if len(path) <= limit:
        return path
    tail = path[-(limit - 1) :]
    cut = tail.find("/")
    return "…" + (tail[cut:] if 0 <= cut < len(tail) - 1 else tail)


def place(where: Where, limit: int = 40) -> str:
    """Return "train.py:42 in step · aten::item" with the parts that are known, or ""."""
    parts = []
    if where.file:
        line = f":{where.line}" if where.line is not None and where.line > 0 else ""
        inside = f" in {where.function}" if where.function else ""
        parts.append(path_tail(where.file, limit) + line + inside)
        if where.library:
            parts.append(f"inside it {path_tail(where.library, limit + 20)}")
    elif where.function:
        parts.append(where.function)
    if where.op:
        parts.append(middle(where.op, limit))
    return " · ".join(parts)


def recording_cost(overhead: float | None, removed: float) -> str:
    """Return by how much recorded steps were longer, and what of it is left in the times; "" where it is not known."""
    if overhead is None:
        return ""
    if removed > 0:
        left = f"all but {growth(overhead)} taken out" if overhead > 0 else "taken out"
        return f"{growth(removed + max(overhead, 0.0))} longer while recorded, {left}"
    return f"{growth(overhead)} longer while recorded" if overhead > 0 else "no longer while recorded"


def ranks(world_size: int, given: int) -> str:
    """Return "4 ranks", or "1 of 300 ranks" where fewer traces than ranks were given."""
    total = plural(world_size, "rank")
    return total if max(given, 1) >= world_size else f"{max(given, 1)} of {total}"


def summed(shares: dict[str, float], keep: int) -> list[tuple[str, float]]:
    """Return the ``keep`` largest entries, largest first, and the rest as one entry named for their number."""
    ranked = sorted(((k, v) for k, v in shares.items() if v > 0), key=lambda item: (-item[1], item[0]))
    if len(ranked) <= keep + 1:
        return ranked
    rest = ranked[keep:]
    return [*ranked[:keep], (f"{len(rest)} smaller causes", sum(v for _, v in rest))]


def size(count: int) -> str:
    """Return bytes with three digits, in GB, MB or kB (powers of 1000)."""
    for unit, each in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= each:
            return f"{count / each:.3g} {unit}" if count < 1000 * each else f"{count / each:.0f} {unit}"
    return f"{count} B"


def flops(f: FlopUtilisation) -> str:
    """Return what the device computed against its peak, one line."""
    counted = "" if f.known_share > 0.995 else f"; counted for {percent(f.known_share)} of its compute time"
    return f"MFU {percent(f.share)}: {f.tflops:.3g} TFLOP/s over the step, of the {f.device}'s peak{counted}"
