"""Tensors that grow piece by piece, as a cache of keys and values does: no graph holds their length."""

from __future__ import annotations

import re

import numpy as np

from diagnose.model.arrays import Rows
from diagnose.model.events import Kind, Trace
from diagnose.model.intervals import distinct
from diagnose.model.shapes import Shape, num_elements
from diagnose.tables import Tables
from diagnose.tables.names import JOINS
from diagnose.tables.shapes import shapes_in
from diagnose.text.patterns import lazy_pattern

__all__ = ["ATTENTION", "grows"]

MIN_GROWING = 3  # steps, of which each needs more than the one before
MIN_JOINED = 3  # times that a piece is joined to what the time before gave
ATTENTION = lazy_pattern(r"^aten::_?scaled_dot_product|^aten::_(flash|efficient|cudnn)_attention")


def grows(t: Tables, trace: Trace) -> bool:
    """Return whether a tensor grows by equal pieces: within a step, or from each step to the next."""
    return _grows_by_cat(trace) or _grows_with_steps(t, trace)


def _grows_by_cat(trace: Trace) -> bool:
    """Return whether the result of joining two tensors is joined with a piece of the same size, several times over."""
    sizes: dict[tuple[Shape, int, Shape], set[int]] = {}
    for text in distinct(trace.events.shapes[_rows(trace, JOINS)]).tolist():
        given = shapes_in(trace.names[text])[:2]
        if len(given) < 2 or len(given[0]) != len(given[1]):
            continue
        grown, piece = given
        sides = [i for i, (a, b) in enumerate(zip(grown, piece, strict=True)) if a != b]
        if len(sides) == 1:
            at = sides[0]
            sizes.setdefault((piece, at, grown[:at] + grown[at + 1 :]), set()).add(grown[at])
    return any(
        sum(size + piece[at] in known for size in known) >= MIN_JOINED for (piece, at, _), known in sizes.items()
    )


def _grows_with_steps(t: Tables, trace: Trace) -> bool:
    """Return whether the largest tensor that is concatenated, or attended to, grows by as much in each step."""
    steps = t.steps if trace is t.trace else Tables(t.capture, trace).steps
    if steps.num < MIN_GROWING:
        return False
    for pattern in (JOINS, ATTENTION):
        rows = _rows(trace, pattern)
        step = np.searchsorted(steps.start, trace.events.start[rows], side="right") - 1
        rows, step = rows[step >= 0], step[step >= 0]
        elements = np.zeros(len(trace.names), np.int64)
        for text in distinct(trace.events.shapes[rows]).tolist():
            elements[text] = max(map(num_elements, shapes_in(trace.names[text])), default=0)
        largest = np.zeros(steps.num, np.int64)
        np.maximum.at(largest, step, elements[trace.events.shapes[rows]])
        rises = np.diff(largest)
        if largest[0] and rises[0] > 0 and (rises == rises[0]).all():
            return True
    return False


def _rows(trace: Trace, pattern: re.Pattern[str]) -> Rows:
    """Return the operators of a name whose inputs' shapes are recorded."""
    events = trace.events
    wanted = np.array([pattern.match(name) is not None for name in trace.names], bool)
    return np.flatnonzero((events.kind == Kind.OP) & (events.shapes >= 0) & wanted[events.name])
