"""Sides made of literals: a diagnosis with so many ms a step, and runs with so many ms each."""

from __future__ import annotations

import pytest

from diagnose.compare.sides import RunTimes, side_of
from diagnose.model.diagnosis import Diagnosis, Finding, Partition, Queue, Source, Where

MS = 1_000_000
QUEUE = Queue(0.8, 0.2, 4.0, 9.0, 0.1, 200.0, 0.1, 50_000)


def _diagnosis(step_ms, causes=None, *, spread=0.02, num=20, place=None, unprofiled_ms=(), **source):
    """Of a step of which ``causes`` (ms) are idle and the rest is compute; step times differ by ``spread``."""
    causes = causes or {}
    idle = sum(causes.values())
    where = (Where(place, 7),) if place else ()
    return Diagnosis(
        verdict="gaps" if idle > 0.2 * step_ms else "kernel-bound",
        headline="A step.",
        dominant=next(iter(causes), None),
        step_ns=step_ms * MS,
        step_times_ns=tuple(int(step_ms * MS * (1 + spread * (i % 3 - 1))) for i in range(num)),
        queue=QUEUE,
        partition=Partition(1 - idle / step_ms, 0.0, 0.0, idle / step_ms),
        idle_by_cause={rule: ms / step_ms for rule, ms in causes.items()},
        findings=tuple(Finding(rule, f"About {rule}", ms * MS, where=where) for rule, ms in causes.items()),
        prescriptions=(),
        trust=(),
        source=Source("trace.json", unprofiled_step_ns=tuple(int(ms * MS) for ms in unprofiled_ms), **source),
    )


def _runs(*steps_ms, unprofiled=False):
    """Runs of five equal steps each."""
    each = [(ms * MS,) * 5 for ms in steps_ms]
    return [RunTimes(times if unprofiled else (), times) for times in each]


def _side(step_ms, causes=None, *, runs_ms=None, kernels=None, **more):
    """A side of three runs around ``step_ms``, or of those named."""
    each = _runs(*(runs_ms or (0.99 * step_ms, step_ms, 1.01 * step_ms)))
    return side_of(f"{step_ms} ms", _diagnosis(step_ms, causes, **more), each, kernels)


def _write_reports(folder, name, *steps_ms, **more):
    """Write a report of one run for each step length, and return their names."""
    paths = []
    for i, ms in enumerate(steps_ms):
        path = folder / f"{name}{i + 1}.json"
        path.write_text(_diagnosis(ms, **more).to_json())
        paths.append(path.name)
    return paths


@pytest.fixture(name="diagnosis")
def _a_diagnosis():
    return _diagnosis


@pytest.fixture(name="side")
def _a_side():
    return _side


@pytest.fixture
def reports(tmp_path, monkeypatch):
    """Write reports of one run each into the working folder; returns their names."""
    monkeypatch.chdir(tmp_path)
    return lambda name, *steps_ms, **more: _write_reports(tmp_path, name, *steps_ms, **more)
