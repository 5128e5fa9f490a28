"""Finds positions of a batch that are padding in every row: inputs of integers whose last columns hold one number.

Tensors are kept while the attribution window is open and read behind it: reading one on a device would wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from diagnose.model.records import PaddingRecord

__all__ = ["PaddedInputs"]

MAX_CALLS = 500  # in a window: more are not looked at
MAX_NUMBERS = 1 << 20  # of an input: a batch of 2,000 texts of 512 tokens
MIN_ROWS, MIN_POSITIONS = 2, 16  # of an input; shorter ones are features and no texts


class PaddedInputs:
    """The inputs of outermost modules that may be padded."""

    def __init__(self) -> None:
        self._calls: list[tuple[str, int, int, list[Any]]] = []

    def note(self, module: Any, given: tuple[Any, ...], began_ns: int, ended_ns: int) -> None:
        """Keep the inputs of a call that may be padded; times are those of the wall clock."""
        if len(self._calls) < MAX_CALLS and (tensors := [each for each in _tensors(given) if _may_be_padded(each)]):
            self._calls.append((type(module).__name__, began_ns, ended_ns, tensors))

    def records(self) -> tuple[PaddingRecord, ...]:
        """Return the calls by module, with the positions that inputs have and use; what was kept is let go."""
        calls, self._calls = self._calls, []
        found: dict[str, list[tuple[int, int, int, int, int]]] = {}
        for module, began, ended, tensors in calls:
            positions = max(int(tensor.shape[1]) for tensor in tensors)
            rows = [length for tensor in tensors if tensor.shape[1] == positions for length in _lengths(tensor)]
            used = max(map(max, rows), default=positions)
            different = max((len(set(each)) for each in rows), default=0)
            found.setdefault(module, []).append((began, ended, positions, used, different))
        records = []
        for module, each in found.items():
            columns = zip(
                ("began_ns", "ended_ns", "positions", "used", "lengths"), zip(*each, strict=True), strict=True
            )
            records.append(PaddingRecord(module=module, **dict(columns)))
        return tuple(record for record in records if record.used != record.positions)


def _tensors(given: Any) -> Iterator[Any]:
    """Yield the tensors among a call's arguments, of lists and dictionaries too."""
    import torch

    for each in given.values() if isinstance(given, dict) else given:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, tuple | list | dict):
            yield from _tensors(each)


def _may_be_padded(tensor: Any) -> bool:
    import torch

    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.dim() != 2:
        return False
    if tensor.is_floating_point() or tensor.is_complex() or tensor.numel() > MAX_NUMBERS:
        return False
    return int(tensor.shape[0]) >= MIN_ROWS and int(tensor.shape[1]) >= MIN_POSITIONS


def _lengths(tensor: Any) -> Iterator[list[int]]:
    """Yield each row's number of columns before its last ones that hold one number, the same in all rows.

    Nothing where all columns hold it, or none can be read.

    What is the same everywhere, as the mask of full rows or the types of tokens, shows nothing.
    """
    import torch

    try:
        values = tensor.detach().cpu()
        columns = torch.arange(1, values.shape[1] + 1)
        rows = ((values != values[0, -1]) * columns).amax(1).tolist()
    except Exception:  # its memory was given back, or a subclass refuses
        return
    if any(rows):
        yield rows
