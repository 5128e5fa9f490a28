"""Times and shares as every report writes them, so that one number reads the same everywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

NAMES = frozenset({"Python", "Adam", "Adagrad", "Adadelta", "Adamax", "Muon", "Rprop", "Adafactor"})


def lower_first(title: str) -> str:
    """Return a title as it goes on within a sentence; names keep their capital."""
    first = title.split(" ", 1)[0].removesuffix("'s")
    return title if first in NAMES or first != first.capitalize() else title[0].lower() + title[1:]


def upper_first(title: str) -> str:
    """Return a title as a sentence begins; the name of an operator or of code keeps its letters."""
    first = title.split(" ", 1)[0].removesuffix("'s")
    return title[:1].upper() + title[1:] if first.replace("-", "").isalpha() else title


def duration(ns: float | None) -> str:
    """Return a time given in ns with three digits and the unit that suits it: µs, ms or s."""
    if ns is None or not math.isfinite(ns):
        return "–"
    if ns == 0:
        return "0 ms"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= 0.9995 * size:
            value = ns / size
            digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
            three_digits = f"{value:,.{digits}f}"
            return f"{three_digits} {unit}"
    return f"{ns:.0f} ns"


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share as a percentage, of one digit after the point, never rounding something to nothing or to all."""
    if share is None or not math.isfinite(share):
        return "–"
    least = 10.0**-digits
    if 0 < share < least / 200:
        return f"<{least:g} %"
    if 1 - least / 200 <= share < 1:
        return f">{100 - least:g} %"
    return f"{100 * share:.{digits}f} %"


def growth(share: float | None, digits: int = 1) -> str:
    """Return by what share something became longer: "100 %" is twice as long; no whole bounds it."""
    if share is None or share <= 0.5:
        return percent(share, digits)
    return f"{100 * share:.{digits}f} %" if math.isfinite(share) else percent(share, digits)


def enumeration(words: Sequence[str]) -> str:
    """Return "a", "a and b", "a, b and c"."""
    *front, last = words
    return f"{', '.join(front)} and {last}" if front else last


def plural(count: float, noun: str) -> str:
    """Return "1 step", "12 steps", "2 copies": a count as it is rounded, and its noun."""
    shown = f"{count:,.0f}"
    if shown == "1":
        return f"1 {noun}"
    if noun.endswith("y"):
        return f"{shown} {noun[:-1]}ies"
    return f"{shown} {noun}{'es' if noun.endswith('ch') else 's'}"


def size_words(num_bytes: float) -> str:
    """Return "16 bytes", "8.2 kB", "18.9 MB" or "1.20 GB"."""
    if num_bytes < 1e3:
        return plural(num_bytes, "byte")
    if num_bytes < 1e5:
        return f"{num_bytes / 1e3:.1f} kB"
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"
