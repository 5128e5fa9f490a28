"""Captures without one kind of record, as if it had not been asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec
import numpy as np
import numpy.typing as npt

from diagnose.model.capture import Capture
from diagnose.model.events import Kind, Trace
from diagnose.model.records import NvmlRecord

__all__ = ["STRIPPED", "without_kinds"]


def without_kinds(trace: Trace, *kinds: Kind) -> Trace:
    """Return the trace without the events of some kinds; calls that queued them stay."""
    events = trace.events
    keep = ~np.isin(events.kind, kinds)
    if keep.all():
        return trace
    place = np.cumsum(keep) - 1
    cause = np.where((events.cause >= 0) & keep[events.cause], place[events.cause], -1)
    return replace(trace, events=replace(events, cause=cause.astype(np.int32)).rows(keep))


def _without_columns(trace: Trace, *columns: str) -> Trace:
    if all((getattr(trace.events, column) == -1).all() for column in columns):
        return trace
    none: npt.NDArray[np.int32] = np.full(len(trace.events), -1, np.int32)
    return replace(trace, events=replace(trace.events, **dict.fromkeys(columns, none)))


def _in_both(capture: Capture, change: Callable[[Trace], Trace]) -> Capture:
    trace, named = change(capture.trace), capture.attribution
    other = None if named is None else change(named)
    return capture if trace is capture.trace and other is named else replace(capture, trace=trace, attribution=other)


def _without_shapes(capture: Capture) -> Capture:
    return _in_both(capture, lambda t: _without_columns(t, "shapes", "types", "values"))


def _without_stacks(trace: Trace) -> Trace:
    events = trace.events
    detail = np.where(events.kind == Kind.OP, -1, events.detail).astype(np.int32)
    if (detail != events.detail).any():
        trace = replace(trace, events=replace(events, detail=detail))
    return without_kinds(trace, Kind.PYTHON)


def _without_collections(capture: Capture) -> Capture:
    """Return the capture without the profiler's records and the sampler, which notes them as well."""
    less = _in_both(capture, lambda t: without_kinds(t, Kind.GC))
    return less if less.samples is None else replace(less, samples=None)


def _without_readings(capture: Capture) -> Capture:
    if capture.info is None or capture.info.nvml == NvmlRecord():
        return capture
    return replace(capture, info=msgspec.structs.replace(capture.info, nvml=NvmlRecord()))


DEVICE = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.SYNC)
STRIPPED: Mapping[str, Callable[[Capture], Capture]] = {
    "shapes": _without_shapes,
    "stacks": lambda c: _in_both(c, _without_stacks),
    "garbage collections": _without_collections,
    "device records": lambda c: _in_both(c, lambda t: without_kinds(t, *DEVICE)),
    "samples of the threads": lambda c: c if c.samples is None else replace(c, samples=None),
    "memory events": lambda c: _in_both(c, lambda t: without_kinds(t, Kind.MEMORY)),
    "NVML samples": _without_readings,
    "steps of the whole run": lambda c: c if c.run is None else replace(c, run=None),
}
"""By what is missing: the capture without it, itself where it has none."""
