"""Attention written out as product, softmax, product: found by the shapes, and the tasks between the two products.

Where no shapes were recorded the order of the operators alone shows it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.model.intervals import among, grouped
from diagnose.model.shapes import Shape, num_elements
from diagnose.perf_model.op_inputs import inputs
from diagnose.tables import Tables
from diagnose.tables.op_launches import OperatorInputs, WrittenOut

__all__ = ["written_out_attention"]

_SOFTMAX = ("aten::_softmax", "aten::_safe_softmax")
_PRODUCT = ("aten::bmm", "aten::baddbmm")
# Operators that stand between a product and the softmax at most: scaling, bias, mask, casts, dropout, copies.
_REACH = 6


class _Stream(NamedTuple):
    """The operators whose tasks one stream ran, in the order of their first tasks."""

    inputs_of: OperatorInputs
    tasks: npt.NDArray[np.intp]  # of the stream, indices into Tasks
    ops: npt.NDArray[np.intp]  # parallel to tasks: the operator's row
    rows: list[int]  # of the operators
    leading: list[int]  # parallel to rows: the operator's first task

    def is_product(self, j: int) -> bool:
        """Return whether the operator ``rows[j]`` is a batched product."""
        return self.inputs_of.text(int(self.inputs_of.name[self.leading[j]])) in _PRODUCT

    def shape(self, j: int, index: int) -> Shape:
        """Return the shape of one input of the operator ``rows[j]``, (0,) where it was not recorded."""
        task = self.leading[j]
        found = inputs(
            self.inputs_of.text(int(self.inputs_of.shapes[task])), self.inputs_of.text(int(self.inputs_of.types[task]))
        )
        tensor = found.at[index] if found and index < len(found.at) else None
        return tensor.shape if tensor else (0,)

    def factors(self, j: int) -> tuple[Shape, Shape]:
        """Return the shapes of what the product ``rows[j]`` multiplies."""
        first = 1 if self.inputs_of.text(int(self.inputs_of.name[self.leading[j]])) == "aten::baddbmm" else 0
        return self.shape(j, first), self.shape(j, first + 1)


def written_out_attention(t: Tables) -> list[WrittenOut]:
    """Return each softmax that stands between a product that made its input and one that takes its output."""
    ops, inputs_of = t.operators, t.operator_inputs
    names = inputs_of.name[inputs_of.is_known if inputs_of.is_known.any() else inputs_of.name >= 0]
    softmaxes = [n for n in np.flatnonzero(np.bincount(names)).tolist() if inputs_of.texts[n] in _SOFTMAX]
    if not softmaxes:
        return []
    found = []
    for every in t.streams.values():
        tasks = every[ops[every] >= 0]
        rows, first, _ = grouped(ops[tasks])
        order = np.argsort(first, kind="stable")
        leading = tasks[first[order]]
        listed = _Stream(inputs_of, tasks, ops[tasks], rows[order].tolist(), leading.tolist())
        for i in np.flatnonzero(among(inputs_of.name[leading], softmaxes)).tolist():
            attention = _around(listed, i)
            found += [attention] if attention else []
    return found


def _around(s: _Stream, i: int) -> WrittenOut | None:
    """Look from the softmax ``s.rows[i]`` to both sides."""
    before = next((j for j in range(i - 1, max(i - 1 - _REACH, -1), -1) if s.is_product(j)), None)
    after = next((j for j in range(i + 1, min(i + 1 + _REACH, len(s.rows))) if s.is_product(j)), None)
    scores = num_elements(s.shape(i, 0))
    if before is None or after is None:
        return None
    if s.inputs_of.is_known.any():
        left, right = s.factors(before)
        made = left[0] * left[1] * right[2] if len(left) == len(right) == 3 else 0
        if scores == 0 or not made == num_elements(s.factors(after)[0]) == scores:
            return None
    return WrittenOut(
        products=s.tasks[among(s.ops, (s.rows[before], s.rows[after]))],
        between=s.tasks[among(s.ops, s.rows[before + 1 : after])],
        scores=scores,
        softmax=s.rows[i],
    )
