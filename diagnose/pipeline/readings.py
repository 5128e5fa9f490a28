"""What NVML read while the recorded steps ran, laid over them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diagnose.model.arrays import Floats
from diagnose.model.charts import Readings
from diagnose.model.events import Trace
from diagnose.tables import Tables
from diagnose.tables.nvml_readings import gpu_rows
from diagnose.tables.steps import find_steps

__all__ = ["readings"]

MAX_POINTS = 1_000  # of a series: a chart is about as many pixels wide


def readings(t: Tables, recorded: Trace | None = None) -> tuple[Readings, ...]:
    """Return the series of the device that fall into the recorded steps.

    ``recorded`` is the trace as it was recorded, where the cost of recording was taken out of ``t``: readings have
    the time of the clock, and so have its steps.
    """
    gpu = next((gpu for gpu in gpu_rows(t) if gpu.index == t.device_id), None)
    trace = recorded if recorded is not None else t.trace
    if gpu is None or not trace.epoch_ns:
        return ()
    steps = find_steps(trace)
    if not steps.marked or steps.num != t.steps.num:
        return ()
    time = np.array(gpu.time_ns, np.int64) - trace.epoch_ns
    at = np.searchsorted(steps.start, time, side="right") - 1
    inside = (at >= 0) & (time < steps.end[np.maximum(at, 0)])
    length = np.maximum(steps.end - steps.start, 1)[np.maximum(at, 0)]
    position = at + (time - steps.start[np.maximum(at, 0)]) / length
    kept = np.flatnonzero(inside)
    kept = kept[np.unique(np.linspace(0, len(kept) - 1, min(len(kept), MAX_POINTS)).astype(np.intp))]
    found = (
        ("GPU utilisation", "%", gpu.utilisation, 1.0, 100.0),
        ("SM clock", "MHz", gpu.sm_mhz, 1.0, gpu.max_sm_mhz),
        ("Power", "W", gpu.power_w, 1.0, gpu.power_limit_w),
        ("Memory in use", "GB", gpu.memory_used_bytes, 1e-9, (gpu.memory_total_bytes or 0) / 1e9 or None),
    )
    series = [
        Readings(name, unit, _points(position, kept.tolist(), values, per), limit)
        for name, unit, values, per, limit in found
    ]
    return tuple(s for s in series if s.points)


def _points(
    position: Floats, kept: Sequence[int], values: Sequence[float | None], per: float
) -> tuple[tuple[float, float], ...]:
    """Return the readings that the board answered."""
    known = ((i, values[i]) for i in kept if i < len(values))
    return tuple((round(float(position[i]), 3), round(value * per, 3)) for i, value in known if value is not None)
