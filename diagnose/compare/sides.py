"""One side of a comparison: the independent runs of it, and the diagnosis and kernels of one that stands for them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta

from diagnose.compare.setup import Setup, setup_of
from diagnose.errors import InputError
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.records import decode
from diagnose.model.statistics import mean_step
from diagnose.pipeline.exchange import read_received
from diagnose.pipeline.job import Workers, analyze_inputs
from diagnose.pipeline.run import analyze_captures
from diagnose.reports.json import to_dict
from diagnose.reports.json_reading import from_json, is_report
from diagnose.tables.stages import begin
from diagnose.text.progress import Progress
from diagnose.trace_reader import open_captures

# The step times of one run, as a comparison uses them.

MIN_MEAN_STEPS = 3  # whose mean stands for a run


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Step times of one process or one set of ranks, ns; none is 0."""

    unprofiled: tuple[float, ...]
    recorded: tuple[float, ...]  # at least one

    @classmethod
    def of(cls, diagnosis: Diagnosis) -> RunTimes:
        """Return the times of the run that was diagnosed."""
        recorded = _positive(diagnosis.step_times_ns)
        return cls(
            _positive(diagnosis.source.unprofiled_step_ns),
            recorded if len(recorded) >= MIN_MEAN_STEPS else (diagnosis.step_ns,),
        )

    @property
    def has_unprofiled(self) -> bool:
        """Return whether enough steps were timed without the profiler."""
        return len(self.unprofiled) >= MIN_MEAN_STEPS

    def steps(self, measure: str) -> tuple[float, ...]:
        """Return the times of ``unprofiled`` or ``recorded`` steps."""
        return self.unprofiled if measure == "unprofiled" else self.recorded


def _positive(times: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(ns) for ns in times if ns > 0)


# The baseline file of the gate: the JSON report of one run, and in ``runs`` the step times of every run.

MAX_BASELINE_RUNS = 100
REMEDY = "Write it again with diagnose gate --update."

Times: TypeAlias = list[Annotated[float, Meta(ge=0, le=1e12)]]


class _Run(msgspec.Struct):
    step_times_ms: Times
    unprofiled_step_ms: Times = []  # msgspec gives every record its own


class _Baseline(msgspec.Struct):
    runs: Annotated[list[_Run], Meta(max_length=MAX_BASELINE_RUNS)] = []


def baseline_text(diagnosis: Diagnosis, runs: Sequence[RunTimes]) -> str:
    """Return the text of a baseline file: a report that every reader of reports takes, with the runs added."""
    times = [
        {"step_times_ms": _ms(run.recorded), "unprofiled_step_ms": _ms(run.unprofiled)}
        for run in runs[-MAX_BASELINE_RUNS:]
    ]
    report = {**to_dict(diagnosis), "runs": times}
    return json.dumps(report, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def read_runs(text: bytes, *, source: str) -> tuple[RunTimes, ...]:
    """Return the runs that a baseline file holds, none for another report.

    Raises:
        InputError: a value is not what it can be.
    """
    each = decode(text, _Baseline, source=source, remedy=REMEDY).runs
    found = (RunTimes(_ns(run.unprofiled_step_ms), _ns(run.step_times_ms)) for run in each)
    return tuple(run for run in found if run.recorded)


def _ms(times_ns: Sequence[float]) -> list[float]:
    return [round(ns / 1e6, 6) for ns in times_ns]


def _ns(times_ms: Sequence[float]) -> tuple[float, ...]:
    return tuple(ns for ms in times_ms if (ns := float(round(ms * 1e6))) > 0)


MAX_KERNEL_NAMES = 3  # of captures in the name of a side

Measure: TypeAlias = Literal["unprofiled", "recorded"]


@dataclass(frozen=True, slots=True)
class KernelUse:
    """One kernel over the steady steps."""

    calls: float  # per step
    time_ns: float  # per step


@dataclass(frozen=True, slots=True)
class Side:
    """What is compared. ``diagnosis`` and ``kernels`` are those of the run with the middle step."""

    name: str
    diagnosis: Diagnosis
    runs: tuple[RunTimes, ...]  # independent ones; the ranks and steps of one capture are one run
    setups: tuple[Setup, ...]  # of each capture or report
    kernels: Mapping[str, KernelUse] = field(default_factory=dict)  # by name; empty for a report

    def run_steps(self, measure: Measure) -> list[float]:
        """Return the mean step of each run over whole periods, ns."""
        return [mean_step(run.steps(measure)) for run in self.runs]


def open_side(path: str | Path) -> Side:
    """Read a report in JSON, a baseline that the gate wrote, a trace, or a capture folder with the ranks it received.

    Raises:
        InputError: it is none of them.
    """
    report = _as_report(Path(path))
    if report is not None:
        return report
    captures = open_captures([path])
    received = read_received([path])
    if not received.ranks:
        diagnosis = analyze_captures(captures, draw=False)
    else:
        diagnosis = analyze_inputs([path], workers=Workers(1), progress=Progress(quiet=True), draw=False)
        if max(diagnosis.ranks, key=lambda rank: rank.step_ns).rank in received.ranks:
            return side_of(str(path), diagnosis)  # its trace, and with it its kernels, are elsewhere
    t = max((begin(capture, capture.trace) for capture in captures), key=lambda t: t.steps.step_ns)
    if t.device_id < 0:
        return side_of(str(path), diagnosis)
    names, inverse = np.unique(t.trace.events.name[t.tasks.row], return_inverse=True)
    time = np.bincount(inverse, (t.tasks.end - t.tasks.start).astype(np.float64))
    calls = np.bincount(inverse)
    uses = {
        t.trace.names[int(name)]: KernelUse(float(calls[i]) / t.steps.num, float(time[i]) / t.steps.num)
        for i, name in enumerate(names.tolist())
    }
    return side_of(str(path), diagnosis, kernels=uses)


def side_of(
    name: str, diagnosis: Diagnosis, runs: Sequence[RunTimes] = (), kernels: Mapping[str, KernelUse] | None = None
) -> Side:
    """Return the side of a diagnosis: the one run behind it, or the runs that a baseline holds.

    Raises:
        InputError: its step has no length, as where the file holds no time or all of it passed at once.
    """
    # As reports have whole nanoseconds.
    if not (math.isfinite(diagnosis.step_ns) and diagnosis.step_ns >= 1.0):
        raise InputError(f"{name} holds no step with a length, so there is nothing to compare. Record it again.")
    return Side(name, diagnosis, tuple(runs) or (RunTimes.of(diagnosis),), (setup_of(diagnosis),), kernels or {})


def join_sides(sides: Sequence[Side]) -> Side:
    """Return several captures as one side; a run that is given twice counts once."""
    if len(sides) == 1:
        return sides[0]
    measure = measure_of(*sides)
    middle = sorted(sides, key=lambda side: median(side.run_steps(measure)))[(len(sides) - 1) // 2]
    more = f" and {len(sides) - MAX_KERNEL_NAMES} more" if len(sides) > MAX_KERNEL_NAMES else ""
    return Side(
        name=", ".join(side.name for side in sides[:MAX_KERNEL_NAMES]) + more,
        diagnosis=middle.diagnosis,
        runs=tuple(dict.fromkeys(run for side in sides for run in side.runs)),
        setups=tuple(setup for side in sides for setup in side.setups),
        kernels=middle.kernels,
    )


def measure_of(*sides: Side) -> Measure:
    """Return which steps to compare: unprofiled ones where every run has enough, for recording has a price."""
    return "unprofiled" if all(run.has_unprofiled for side in sides for run in side.runs) else "recorded"


def _as_report(path: Path) -> Side | None:
    """Return the side that a JSON report is, None where the file is something else."""
    # Reports are some hundred kB; a larger JSON file is a trace, and not to be read at once.
    if path.suffix.lower() != ".json" or not path.is_file() or path.stat().st_size > 64.0 * 1e6:
        return None
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}). Check its permissions.") from None
    if not is_report(text):
        return None
    return side_of(str(path), from_json(text, source=str(path)), read_runs(text, source=str(path)))
