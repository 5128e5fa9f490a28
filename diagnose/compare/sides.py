"""One side of a comparison: a diagnosis, and its kernels where there is a trace behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from diagnose.errors import InputError
from diagnose.model.diagnosis import Diagnosis
from diagnose.pipeline.rank import build_tables
from diagnose.pipeline.run import examine
from diagnose.reports.json_reading import from_json, is_report
from diagnose.trace_reader import open_captures

__all__ = ["KernelUse", "Side", "open_side"]

LARGEST_REPORT_MB = 64.0  # reports are some hundred kB; a larger JSON file is a trace, and not to be read at once


@dataclass(frozen=True, slots=True)
class KernelUse:
    """One kernel over the steady steps."""

    calls: float  # per step
    time_ns: float  # per step


@dataclass(frozen=True, slots=True)
class Side:
    """What is compared."""

    name: str
    diagnosis: Diagnosis
    kernels: Mapping[str, KernelUse] = field(default_factory=dict)  # by name; empty for a report


def open_side(path: str | Path) -> Side:
    """Read a report in JSON, a trace, or a capture folder.

    Raises:
        InputError: it is none of them.
    """
    report = _as_report(Path(path))
    if report is not None:
        return _with_step(Side(str(path), report))
    captures = open_captures([path])
    diagnosis = examine(captures, draw=False)
    slowest = max(captures, key=lambda c: build_tables(c, c.trace).steps.step_ns) if len(captures) > 1 else captures[0]
    t = build_tables(slowest, slowest.trace)
    if t.device_id < 0:
        return _with_step(Side(str(path), diagnosis))
    names, inverse = np.unique(t.trace.events.name[t.tasks.row], return_inverse=True)
    time = np.bincount(inverse, (t.tasks.end - t.tasks.start).astype(np.float64))
    calls = np.bincount(inverse)
    uses = {
        t.trace.names[int(name)]: KernelUse(float(calls[i]) / t.steps.num, float(time[i]) / t.steps.num)
        for i, name in enumerate(names.tolist())
    }
    return _with_step(Side(str(path), diagnosis, uses))


def _with_step(side: Side) -> Side:
    """Return the side, whose step has a length to compare.

    Raises:
        InputError: it has none, as where the file holds no time or all of it passed at once.
    """
    if not (math.isfinite(side.diagnosis.step_ns) and side.diagnosis.step_ns > 0):
        raise InputError(f"{side.name} holds no step with a length, so there is nothing to compare. Record it again.")
    return side


def _as_report(path: Path) -> Diagnosis | None:
    """Return the diagnosis that a JSON file holds, None where it is something else."""
    if path.suffix.lower() != ".json" or not path.is_file() or path.stat().st_size > LARGEST_REPORT_MB * 1e6:
        return None
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}). Check its permissions.") from None
    return from_json(text, source=str(path)) if is_report(text) else None
