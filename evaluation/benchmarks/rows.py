"""A benchmark's table: one row a comparison, and whether its bar holds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

__all__ = ["NOT_ON_A_GPU", "Row", "in_turns", "missed", "one_thread", "table", "timed", "turns"]

NOT_ON_A_GPU = "not yet measured on a GPU"


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison: what it replaces, what it gives, and whether a bar holds (None: there is none)."""

    what: str
    before: str
    after: str
    gain: str
    holds: bool | None = None


def turns(runs: Sequence[Callable[[], float]], rounds: int, *, dropped: int = 0) -> list[tuple[float, ...]]:
    """Return the times of each run, seconds; they take turns, and the first ``dropped`` rounds do not count."""
    taken = [[run() for run in runs] for _ in range(rounds + dropped)]
    return list(zip(*taken[dropped:], strict=True))


def in_turns(runs: Sequence[Callable[[], float]], rounds: int, *, dropped: int = 0) -> list[float]:
    """Return the medians of ``turns``."""
    return list(map(statistics.median, turns(runs, rounds, dropped=dropped)))


def timed(call: Callable[[], object]) -> Callable[[], float]:
    """Return what runs ``call`` and returns the seconds that it took."""

    def run() -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return run


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread within the block."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def table(rows: Sequence[Row]) -> str:
    """Return the rows as Markdown."""
    marks = {True: "yes", False: "**no**", None: "–"}
    lines = ["| what | before | after | gain | bar held |", "|---|---|---|---|---|"]
    lines += [f"| {r.what} | {r.before} | {r.after} | {r.gain} | {marks[r.holds]} |" for r in rows]
    return "\n".join(lines)


def missed(rows: Sequence[Row]) -> bool:
    """Return whether a bar was missed."""
    return any(row.holds is False for row in rows)
