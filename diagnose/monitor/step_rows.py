"""Step times of a long run, summed up: a row for every so many steps, which is all that is kept of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from diagnose.capture.steps.phases import PHASES, PhaseTimes


@dataclass(frozen=True, slots=True)
class Readings:
    """What is read once per row: memory of this process, and the latest of NVML. None where it is not known."""

    rss_mb: float | None = None
    allocated_mb: float | None = None  # by tensors on the current device
    reserved_mb: float | None = None  # by torch's allocator
    gpus: tuple[Mapping[str, object], ...] = ()  # of each GPU in use


@dataclass(frozen=True, slots=True)
class Row:
    """So many steps in a row, none of which a profiler was running in."""

    step: int  # number of the last one, from 1
    time_s: float  # unix
    steps: int  # that were timed
    mean_ns: float
    p50_ns: float
    p90_ns: float
    p99_ns: float
    max_ns: float
    phases: Mapping[str, int] = field(
        default_factory=dict
    )  # ns in all steps together; those that never came are missing
    epochs: int = 0  # steps in which an iteration of a DataLoader was begun
    epoch_ns: float = 0.0  # what these took beyond the median step, together
    readings: Readings = field(default_factory=Readings)
    skipped: int = 0  # steps between them that were not timed, as timing all would cost too much

    @property
    def covered(self) -> int:
        """Return the number of steps that the row stands for."""
        return self.steps + self.skipped

    @property
    def weight(self) -> float:
        """Return how many steps each timed one stands for."""
        return self.covered / self.steps

    @property
    def total_ns(self) -> float:
        """Return the time of all its steps; those that were not timed are taken for as long as the others."""
        return self.mean_ns * self.covered

    def phase_ns(self, name: str) -> float:
        """Return the time of a phase in all its steps, by the same rule."""
        return self.phases.get(name, 0) * self.weight

    def to_json(self) -> bytes:
        """Return the row as one line of JSON; msgspec takes a tenth of the time of ``asdict`` and json."""
        return msgspec.json.encode(self)


class Block:
    """Gathers the steps of one row."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._phases: list[PhaseTimes] = []
        self._epoch_steps: list[int] = []
        self.skipped = 0

    def __len__(self) -> int:
        return len(self._times)

    def add(self, took_ns: int, phases: PhaseTimes, *, begins_epoch: bool) -> None:
        """Take a step that is over; all sums are made once a row."""
        self._times.append(took_ns)
        self._phases.append(phases)
        if begins_epoch:
            self._epoch_steps.append(took_ns)

    def row(self, step: int, time_s: float, readings: Readings) -> Row:
        """Return the row; there is at least one step in it."""
        ordered = sorted(self._times)
        p50 = percentile(ordered, 50)
        sums = map(sum, zip(*self._phases, strict=True))
        return Row(
            step=step,
            time_s=round(time_s, 3),
            steps=len(ordered),
            mean_ns=sum(ordered) / len(ordered),
            p50_ns=p50,
            p90_ns=percentile(ordered, 90),
            p99_ns=percentile(ordered, 99),
            max_ns=float(ordered[-1]),
            phases={name: value for name, value in zip(PHASES, sums, strict=False) if value},
            epochs=len(self._epoch_steps),
            epoch_ns=sum(max(0.0, took - p50) for took in self._epoch_steps),
            readings=readings,
            skipped=self.skipped,
        )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of sorted values, between two of them in proportion."""
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def read_rows(text: str) -> list[Row]:
    """Read lines of ``Row.to_json``; one that a killed process has cut off, or that is no row, is left out."""
    rows = []
    for line in text.splitlines():
        with suppress(msgspec.DecodeError, UnicodeError):
            rows.append(msgspec.json.decode(line, type=Row))
    return rows
