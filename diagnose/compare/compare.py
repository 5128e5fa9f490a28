"""What differs between two diagnoses: the step, where it goes, what was found, and the kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from diagnose.compare.sides import Side
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.statistics import speed_up

__all__ = ["Change", "Comparison", "compare", "step_times"]

WORTH_SAYING = 0.005  # of the longer step: smaller differences of a part are not listed
LEAST_STEPS = 3  # fewer have no spread to speak of


@dataclass(frozen=True, slots=True)
class Change:
    """One part of the step, before and after; ns per step."""

    name: str
    before_ns: float
    after_ns: float
    note: str = ""

    @property
    def by_ns(self) -> float:
        """Return by how much it grew."""
        return self.after_ns - self.before_ns


@dataclass(frozen=True, slots=True)
class Comparison:
    """What became of a step; every list holds the largest differences first."""

    before: Side
    after: Side
    ratio: float  # of the median steps, after over before
    interval: tuple[float, float]  # 95 %, from the spread of the steps
    measured: Literal["unprofiled", "recorded"]  # which step times were compared
    parts: tuple[Change, ...]  # of the partition, compute and idle among them
    causes: tuple[Change, ...]  # of idle, by rule; without a device of the host's time
    findings: tuple[Change, ...]
    kernels: tuple[Change, ...]
    verdicts: tuple[str, str]

    @property
    def is_slower(self) -> bool:
        """Tell whether the step is longer for certain."""
        return self.interval[0] > 1.0

    @property
    def is_faster(self) -> bool:
        """Tell whether the step is shorter for certain."""
        return self.interval[1] < 1.0


def compare(before: Side, after: Side) -> Comparison:
    """Compare two sides."""
    a, b = before.diagnosis, after.diagnosis
    measured, times = step_times(a, b)
    inverse = speed_up([times[1]], [times[0]], noise=0.0)  # the later step over the earlier one
    least = WORTH_SAYING * max(a.step_ns, b.step_ns)
    return Comparison(
        before=before,
        after=after,
        ratio=inverse.ratio,
        interval=(inverse.low, inverse.high),
        measured=measured,
        parts=_changes(_parts(a), _parts(b), least),
        causes=_changes(_causes(a), _causes(b), least),
        findings=_changes(_lost(a), _lost(b), least),
        kernels=_kernels(before, after, least),
        verdicts=(a.verdict, b.verdict),
    )


def step_times(
    a: Diagnosis, b: Diagnosis
) -> tuple[Literal["unprofiled", "recorded"], tuple[Sequence[float], Sequence[float]]]:
    """Return the step times to compare (ns): unprofiled ones where both have enough, for recording has a price."""
    plain = tuple(tuple(float(n) for n in d.source.unprofiled_step_ns if n > 0) for d in (a, b))
    if min(map(len, plain)) >= LEAST_STEPS:
        return "unprofiled", (plain[0], plain[1])
    each = [tuple(float(n) for n in d.step_times_ns if n > 0) for d in (a, b)]
    recorded = [times if len(times) >= LEAST_STEPS else (d.step_ns,) for times, d in zip(each, (a, b), strict=True)]
    return "recorded", (recorded[0], recorded[1])


def _parts(d: Diagnosis) -> Mapping[str, float]:
    if d.partition is None:
        return {}
    p = d.partition
    shares = {
        "compute": p.compute,
        "exposed communication": p.exposed_communication,
        "exposed copies": p.exposed_copy,
        "idle": p.idle,
    }
    return {name: share * d.step_ns for name, share in shares.items()}


def _causes(d: Diagnosis) -> Mapping[str, float]:
    return {rule: share * d.step_ns for rule, share in (d.idle_by_cause or d.host_by_cause).items()}


def _lost(d: Diagnosis) -> Mapping[str, float]:
    return {f.rule: f.lost_ns for f in d.findings if np.isfinite(f.lost_ns)}


def _changes(before: Mapping[str, float], after: Mapping[str, float], least: float) -> tuple[Change, ...]:
    names = dict.fromkeys([*before, *after])
    found = [Change(name, before.get(name, 0.0), after.get(name, 0.0)) for name in names]
    return tuple(sorted((c for c in found if abs(c.by_ns) >= least), key=lambda c: -abs(c.by_ns)))


def _kernels(before: Side, after: Side, least: float) -> tuple[Change, ...]:
    if not before.kernels or not after.kernels:
        return ()
    found = []
    for name in dict.fromkeys([*before.kernels, *after.kernels]):
        a, b = before.kernels.get(name), after.kernels.get(name)
        note = (
            "appeared"
            if a is None
            else "vanished"
            if b is None
            else ""
            if np.isclose(a.calls, b.calls)
            else f"{a.calls:.0f} to {b.calls:.0f} calls a step"
        )
        found.append(Change(name, a.time_ns if a else 0.0, b.time_ns if b else 0.0, note))
    return tuple(sorted((c for c in found if abs(c.by_ns) >= least), key=lambda c: -abs(c.by_ns)))
