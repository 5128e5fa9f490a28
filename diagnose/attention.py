"""Attention written out as product, softmax, product: found by the shapes, and the tasks between the two products."""

from __future__ import annotations

import json
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.intervals import distinct
from diagnose.roofline import operators
from diagnose.tables import Tables

__all__ = ["WrittenOut", "written_out_attention"]

_SOFTMAX = ("aten::_softmax", "aten::_safe_softmax")
_PRODUCT = ("aten::bmm", "aten::baddbmm")
# Operators that stand between a product and the softmax at most: scaling, bias, mask, casts, dropout, copies.
_REACH = 6


class WrittenOut(NamedTuple):
    """One attention; indices into Tasks."""

    products: npt.NDArray[np.intp]  # of the two products
    between: npt.NDArray[np.intp]  # of softmax, scaling, mask, dropout
    scores: int  # number of scores, which go to memory and back
    softmax: int  # row of the softmax's operator


def written_out_attention(t: Tables) -> list[WrittenOut]:
    """Return each softmax that stands between a product that made its input and one that takes its output."""
    return t.once("written-out attention", lambda: _search(t))


def _search(t: Tables) -> list[WrittenOut]:
    ops = operators(t)
    launching = np.bincount(t.trace.events.name[ops[ops >= 0]])
    softmaxes = [n for n in np.flatnonzero(launching).tolist() if t.trace.names[n] in _SOFTMAX]
    if not softmaxes:
        return []
    found = []
    for stream in distinct(t.tasks.stream).tolist():
        tasks = np.flatnonzero((t.tasks.stream == stream) & (ops >= 0))
        # One entry for each operator, in the order of its first task.
        rows, first = np.unique(ops[tasks], return_index=True)
        in_order = rows[np.argsort(first, kind="stable")]
        order = in_order.tolist()
        for i in np.flatnonzero(np.isin(t.trace.events.name[in_order], softmaxes)).tolist():
            attention = _around(t, tasks, order, i)
            found += [attention] if attention else []
    return found


def _around(t: Tables, tasks: npt.NDArray[np.intp], order: list[int], i: int) -> WrittenOut | None:
    scores = prod(_first_shape(t, order[i], 0))
    before = next((j for j in range(i - 1, max(i - 1 - _REACH, -1), -1) if t.name(order[j]) in _PRODUCT), None)
    after = next((j for j in range(i + 1, min(i + 1 + _REACH, len(order))) if t.name(order[j]) in _PRODUCT), None)
    if before is None or after is None or scores == 0:
        return None
    first = 1 if t.name(order[before]) == "aten::baddbmm" else 0
    left, right = _first_shape(t, order[before], first), _first_shape(t, order[before], first + 1)
    made = left[0] * left[1] * right[2] if len(left) == len(right) == 3 else 0
    taken = prod(_first_shape(t, order[after], 1 if t.name(order[after]) == "aten::baddbmm" else 0))
    if not made == taken == scores:
        return None
    of = operators(t)[tasks]
    return WrittenOut(
        products=tasks[np.isin(of, (order[before], order[after]))],
        between=tasks[np.isin(of, order[before + 1 : after])],
        scores=scores,
        softmax=order[i],
    )


def _first_shape(t: Tables, row: int, index: int) -> tuple[int, ...]:
    """Return the shape of one input of an operator, empty where it was not recorded."""
    text = int(t.trace.events.shapes[row])
    try:
        shapes = json.loads(t.trace.names[text]) if text >= 0 else []
        return tuple(int(n) for n in shapes[index])
    except (ValueError, TypeError, IndexError):
        return ()
