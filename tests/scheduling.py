"""Which tests one process runs, one after the other, and in which order: what takes longest comes first.

A file's tests share what they started. So do the files whose tests have a fixture of SHARED: it takes seconds to make,
and every process would make its own. The order follows from what files took in an earlier run (durations.json, which
``scripts/test_durations --write`` writes): no process is left with a long file at the end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

__all__ = ["DURATIONS", "SHARED", "idle_s", "seconds_of", "sorted_units", "unit_of"]

TESTS = Path(__file__).parent
DURATIONS = TESTS / "durations.json"
SHARED = {"recorded": "recorded", "captured": "captured", "browser": "show"}  # and what tests take, which has it
TAKES = {name: re.compile(rf"def test_\w+\([^)]*\b{taken}\b") for name, taken in SHARED.items()}
FEW_LEFT = 2  # tests: a process that has no more is given the next unit, as xdist does


@cache
def unit_of(place: str) -> str:
    """Return the unit of a file, given as its path below tests: a fixture's name, or the file itself."""
    path = TESTS / place
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return next((name for name, takes in TAKES.items() if takes.search(text)), place)


@cache
def seconds_of(unit: str) -> float:
    """Return how long the files of a unit took; those that took less than a second count for nothing."""
    took: dict[str, float] = json.loads(DURATIONS.read_text(encoding="utf-8"))
    return sum(seconds for place, seconds in took.items() if unit_of(place) == unit)


def sorted_units(units: Iterable[str], is_first: Callable[[str], bool] = lambda _unit: False) -> list[str]:
    """Return units in the order in which they are handed out: some first, then by how long they took."""
    return sorted(units, key=lambda unit: (not is_first(unit), -seconds_of(unit)))


def idle_s(units: Sequence[Sequence[float]], num_processes: int) -> tuple[float, float]:
    """Return how long processes take for units of tests, handed out in this order, and how long they idle at the end.

    Args:
        units: of each unit the seconds of its tests.
    """
    waiting = list(reversed(units))
    left: list[list[float]] = [[] for _ in range(num_processes)]
    ended = [0.0] * num_processes

    def fill(process: int) -> None:
        if waiting and len(left[process]) <= FEW_LEFT:
            left[process] += waiting.pop()

    for process in [*range(num_processes)] * 2:  # each begins with two units
        fill(process)
    while any(left):
        process = min((p for p in range(num_processes) if left[p]), key=lambda p: ended[p] + left[p][0])
        ended[process] += left[process].pop(0)
        fill(process)
    return max(ended), sum(max(ended) - end for end in ended)
