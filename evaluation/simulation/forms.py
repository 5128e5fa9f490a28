"""Runs of simulated machines in the form of another profiler, and whether the answers are those to Kineto's files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulation.cases import draw_case
from simulation.dialects import Dialect
from simulation.kineto import trace_of, write_run
from simulation.nsight import write_nsight
from simulation.rocpd import write_rocpd
from simulation.timeline import Run

__all__ = ["NSIGHT", "ROCPD", "Form"]

Drawn = tuple[int, Run, Dialect]
_NEEDS_FRAMES = frozenset({"gc-pause"})  # rules whose evidence, Python frames, no other form has


@dataclass(frozen=True, slots=True)
class Form:
    """What a profiler of one vendor's machines writes."""

    is_amd: bool
    suffix: str
    write_documents: Callable[[Sequence[Mapping[str, Any]], Path], None]

    def drawn(self, seed: int, indices: Iterable[int]) -> Iterator[Drawn]:
        """Yield the runs of the vendor's machines among these cases, with their numbers and dialects."""
        for index in indices:
            case = draw_case(seed, index)
            if (case.dialect.vendor == "amd") is self.is_amd:
                yield index, case.situation.recorded(), case.dialect

    def first(self, wanted: Callable[[Run, Dialect], bool], seed: int = 7) -> tuple[Run, Dialect]:
        """Return the first such run of a hundred cases."""
        return next((run, dialect) for _, run, dialect in self.drawn(seed, range(100)) if wanted(run, dialect))

    def write(self, run: Run, dialect: Dialect, path: Path) -> Path:
        """Write a run and return the file."""
        self.write_documents([trace_of(run, dialect, rank) for rank in range(len(run.ranks))], path)
        return path

    def differing(self, seed: int, indices: Iterable[int], folder: Path) -> tuple[list[tuple[object, ...]], int]:
        """Return the runs whose two forms get different answers, and how many were compared."""
        import diagnose

        found, num = list[tuple[object, ...]](), 0
        for index, run, dialect in self.drawn(seed, indices):
            num += 1
            kineto = folder / f"{index}"
            kineto.mkdir()
            one = diagnose.analyze_trace(*write_run(run, dialect, kineto))
            other = diagnose.analyze_trace(self.write(run, dialect, folder / f"{index}{self.suffix}"))
            same = (one.verdict, one.dominant) == (other.verdict, other.dominant)
            if not same and one.dominant not in _NEEDS_FRAMES:
                found.append((index, dialect.name, one.dominant, other.dominant))
        return found, num


NSIGHT = Form(is_amd=False, suffix=".sqlite", write_documents=write_nsight)
ROCPD = Form(is_amd=True, suffix=".db", write_documents=write_rocpd)
