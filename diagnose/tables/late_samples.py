"""Samples whose time is not that of their line: loading seen where nothing is loaded, a loop's head in the optimizer.

The process that samples reads the clock, then frames. Where it loses its core between the two, the line is of up to
some ms later: one of the next batch lies in the optimizer's step. Of few samples in a short piece it may be the only
one.
"""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Mask
from diagnose.model.events import Kind
from diagnose.model.intervals import contains
from diagnose.tables import Tables, shared_table
from diagnose.tables.names import LOADER_NEXT, OPTIMIZER_STEP
from diagnose.text.patterns import lazy_pattern

__all__ = ["is_loop_head", "late_samples"]

# Of a function's samples, those outside of loading: more are no accident. Of 120 samples on two busy cores one was.
MAX_LATE_SHARE = 0.05
MIN_WITHIN = 2  # of its samples within loading, for one outside: a training loop fetches batches as well
_OF_DATASETS = frozenset({"__getitem__", "__getitems__"})  # which little else has: these need none within
_LOOP_HEAD = lazy_pattern(r"^for\b.+\bin\b.+:\s*(#.*)?$")  # which calls the iterator, and nothing else


def is_loop_head(code: str | None) -> bool:
    """Return whether a line of source is a loop's head, which fetches what other lines make."""
    return _LOOP_HEAD.match((code or "").strip()) is not None


@shared_table
def late_samples(t: Tables) -> Mask:
    """Return which of the sampler's rows were read later than their time shows, of those that this is known of."""
    samples = t.capture.samples
    if samples is None or not t.trace.epoch_ns:
        return np.zeros(0, bool)
    functions = sorted({(file, function) for file, _, function in samples.places})
    number = {each: i for i, each in enumerate(functions)}
    of_place = np.array([number[file, function] for file, _, function in samples.places] + [-1], np.int64)
    seen, time = of_place[samples.place], samples.time_ns - t.trace.epoch_ns
    start, end = t.steps.window
    watched = (seen >= 0) & (time >= start) & (time < end)
    loading = contains(t.covering(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP)), time)
    within, outside = (np.bincount(seen[watched & part], minlength=len(functions)) for part in (loading, ~loading))
    of_datasets = np.array([function in _OF_DATASETS for _, function in functions], bool)
    loads = (within >= MIN_WITHIN) | (of_datasets & loading.any())
    loads &= outside <= np.maximum(MAX_LATE_SHARE * (within + outside), 1)
    heads = [is_loop_head(t.capture.lines.get((file, line))) for file, line, _ in samples.places]
    at_head = np.array([*heads, False], bool)[samples.place]
    late: Mask = watched & ~loading & np.append(loads, False)[seen]
    late |= watched & at_head & contains(t.covering(t.calls(OPTIMIZER_STEP, Kind.ANNOTATION, Kind.OP)), time)
    return late
