"""Which expressions of samples make rows of one length by filling them up with a number at either end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.capture.dataflow.structure import runs_at_start
from diagnose.capture.samples.cuts import Made

__all__ = ["Paddings"]

MIN_PADDED = 0.1  # of a row's length
MAX_BYTES = 4 << 20  # of what is looked at
MAX_LOOKS = 4096  # at arrays of floating-point numbers, of one expression


class _Numbers(NamedTuple):
    """An array of floating-point numbers that may be padded along one dimension."""

    array: npt.NDArray[Any]
    axis: int


class Paddings:
    """Looks at what expressions have made at the end of each batch, when it has been filled."""

    def __init__(self) -> None:
        self._made: list[tuple[int, Any]] = []  # of this batch, by expression
        self._ends: dict[tuple[int, int], list[tuple[int, int]]] = {}  # by expression and length: runs at both ends
        self._looks: dict[int, int] = defaultdict(int)

    def add_integers(self, number: int, made: Any) -> None:
        """Take notice of what an expression has made: lists and arrays of integers may be padded."""
        self._made.append((number, made))

    def add_numbers(self, made: Made, *, of_batch: bool) -> None:
        """Take notice of an array of floating-point numbers: it is padded only if something shorter is put into it.

        Of integers any number at an end is a padding; measured data may be the same at its ends.
        """
        array = _floats(made.result)
        if array is None or not array.size or array.nbytes > MAX_BYTES or self._looks[made.number] >= MAX_LOOKS:
            return
        axis = _longer_axis(array, _parts((made.args, made.named)))
        if axis < 0 and (array == array.flat[0]).all():  # to be filled
            axis = {1: 0, 2: int(of_batch), 3: 1 if of_batch else -1}.get(array.ndim, -1)
        if axis >= 0:
            self._looks[made.number] += 1
            self._made.append((made.number, _Numbers(array, axis)))

    def end_batch(self) -> None:
        """Look at the rows of a batch."""
        rows: dict[tuple[int, int], list[npt.NDArray[Any]]] = defaultdict(list)
        for number, made in self._made:
            if isinstance(made, _Numbers):
                self._add((number, made.array.shape[made.axis]), *_ends(made))
            elif (found := _rows(made)) is not None:
                self._ends.setdefault((number, found.shape[1]), [])  # in the order in which they were made
                rows[number, found.shape[1]].append(found)
        self._made.clear()
        for key, parts in rows.items():
            both = np.concatenate(parts)
            self._add(key, runs_at_start(both), runs_at_start(both[:, ::-1]))

    def _add(self, key: tuple[int, int], start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]) -> None:
        self._ends.setdefault(key, []).extend(zip(start.tolist(), end.tolist(), strict=True))

    def found(self) -> dict[int, int]:
        """Return the expressions that first made padded rows, and how long these are.

        Rows of which one number fills an end of each, of different length: those of one length may be padded or not.
        """
        first: dict[int, int] = {}
        for (number, length), runs in self._ends.items():
            is_padded = any(
                min(ends) >= MIN_PADDED * length and len(set(ends)) > 1 and min(ends) < length
                for ends in zip(*runs, strict=True)
            )
            if is_padded:
                first.setdefault(length, number)
        return {number: length for length, number in first.items()}


def _rows(made: Any) -> npt.NDArray[Any] | None:
    """Return rows of integers, a single one of a list or of what has one dimension; None for anything else."""
    if type(made) is list:
        made = np.array(made) if made and all(type(each) is int for each in made) else None
    elif type(made).__module__ == "torch":
        made = made.numpy()
    if not isinstance(made, np.ndarray) or made.dtype.kind not in "iu" or made.ndim not in (1, 2) or not made.size:
        return None
    return made.reshape(-1, made.shape[-1])


def _floats(made: Any) -> npt.NDArray[Any] | None:
    """Return an array of floating-point numbers that shares the memory of an array or tensor; None for others."""
    try:
        if type(made).__module__ == "torch":
            made = made.detach().numpy()
    except Exception:  # of a type or device that NumPy does not have, or no tensor
        return None
    return made if isinstance(made, np.ndarray) and made.dtype.kind == "f" and made.ndim else None


def _parts(held: Any) -> Iterator[Any]:
    """Yield what arguments hold, with the members of lists, tuples and mappings."""
    if isinstance(held, dict):
        held = tuple(held.values())
    if isinstance(held, list | tuple):
        for each in held:
            yield from _parts(each)
    elif isinstance(getattr(held, "shape", None), tuple):
        yield held


def _longer_axis(array: npt.NDArray[Any], parts: Iterator[Any]) -> int:
    """Return the one dimension along which an array is longer than what it was made of, -1 if there is none.

    Of a batch these are its samples, which lack the first dimension.
    """
    for part in parts:
        shape = tuple(part.shape)
        if 0 < len(shape) == array.ndim - 1:
            shape = (len(array), *shape)
        longer = [i for i, (mine, its) in enumerate(zip(array.shape, shape, strict=False)) if mine != its]
        if len(shape) == array.ndim and len(longer) == 1 and 0 < shape[longer[0]] < array.shape[longer[0]]:
            return longer[0]
    return -1


def _ends(made: _Numbers) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return how many places at the start and at the end of each row hold one number throughout.

    A row is one sample: of a dimension that is not the first, each of the first has one.
    """
    whole = np.moveaxis(made.array, made.axis, -1)
    samples = whole.reshape(len(made.array) if made.axis else 1, -1, whole.shape[-1])
    runs = []
    for each in (samples, samples[:, :, ::-1]):
        differs = (each != each[0, 0, 0]).any(1)
        runs.append(np.where(differs.any(1), differs.argmax(1), differs.shape[1]))
    return runs[0], runs[1]
