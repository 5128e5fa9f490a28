"""Numbers and source locations as text."""

from __future__ import annotations

import math
from itertools import pairwise

from diagnose.model.diagnosis import Prescription, Where
from diagnose.model.forecast import Waterfall
from diagnose.text.numbers import duration, percent
from diagnose.text.plain_text import middle

__all__ = [
    "MAX_LOSSES",
    "duration",
    "path_tail",
    "percent",
    "place",
    "plural",
    "ranks",
    "recording_cost",
    "saving",
    "size",
    "summed",
]

MAX_LOSSES = 100  # of each side of a trial, in the JSON and in the charts
MIN_SAVING_SHARE = 0.01  # of the step: less on its own is no gain worth a line
MIN_SAVING_NS = 1_000  # of a step: less is not measurable


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
        left = f"all but {percent(overhead)} taken out" if overhead > 0 else "taken out"
        return f"{percent(removed + max(overhead, 0.0))} longer while recorded, {left}"
    return f"{percent(overhead)} longer while recorded" if overhead > 0 else "no longer while recorded"


def saving(prescription: Prescription, step_ns: float = 0.0, waterfall: Waterfall | None = None) -> str:
    """Return "saves 1.20 to 3.40 ms a step", or "" where the prescription claims none.

    What saves less than 1 % of the step on its own is shown with what it saves behind the changes before it.
    """
    least, most = prescription.saves_ns
    whole = prescription.mean_step_ns
    if whole is not None and most > 0:
        return f"saves {_range(least, most)} of the run's mean step of {duration(whole)}"
    small = math.isfinite(step_ns) and most < MIN_SAVING_SHARE * step_ns
    if prescription.basis == "replay" and (most < MIN_SAVING_NS or small):
        behind = _behind(prescription.id, waterfall)
        after = f"; saves {duration(behind)} a step after the changes before it" if behind else ""
        return f"no gain on its own: other work is the bottleneck{after}"
    if not math.isfinite(most) or most <= 0 or small:
        return ""
    return f"saves {_range(least, most)} a step"


def _range(least: float, most: float) -> str:
    if not math.isfinite(least) or least <= 0:
        return f"up to {duration(most)}"
    low, high = duration(least), duration(most)
    return high if low == high else f"{low} to {high}"


def _behind(change: str, waterfall: Waterfall | None) -> float:
    """Return what the replay of one change after the other gains by this one, 0 where it is not among them."""
    chain = waterfall.forecasts if waterfall else ()
    for before, after in pairwise(chain):
        if after.ids[-1] == change:
            return before.step_ns - after.step_ns
    return 0.0


def plural(count: float, noun: str) -> str:
    """Return "1 step", "12 steps"."""
    return f"{count:,.0f} {noun}{'' if count == 1 else 's'}"


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
