"""The baseline file of the gate: the JSON report of one run, and in ``runs`` the step times of every run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from diagnose.compare.runs import RunTimes
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.records import decode
from diagnose.reports.json import to_dict

__all__ = ["baseline_text", "read_runs"]

MAX_RUNS = 100
REMEDY = "Write it again with diagnose gate --update."

Times: TypeAlias = list[Annotated[float, Meta(ge=0, le=1e12)]]


class _Run(msgspec.Struct):
    step_times_ms: Times
    unprofiled_step_ms: Times = []  # msgspec gives every record its own


class _Baseline(msgspec.Struct):
    runs: Annotated[list[_Run], Meta(max_length=MAX_RUNS)] = []


def baseline_text(diagnosis: Diagnosis, runs: Sequence[RunTimes]) -> str:
    """Return the text of a baseline file: a report that every reader of reports takes, with the runs added."""
    times = [
        {"step_times_ms": _ms(run.recorded), "unprofiled_step_ms": _ms(run.unprofiled)} for run in runs[-MAX_RUNS:]
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
