"""The tensors that an operator was given, read from the texts of its "Input Dims", "Input type", "Concrete Inputs"."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from diagnose.model.shapes import Shape, num_elements

BYTES: Mapping[str, int] = {
    "double": 8, "long int": 8, "long": 8, "float": 4, "int": 4, "c10::BFloat16": 2, "c10::Half": 2, "half": 2,
    "short": 2, "short int": 2, "bool": 1, "unsigned char": 1, "signed char": 1, "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1, "c10::Float8_e4m3fnuz": 1, "c10::complex<float>": 8,
}  # fmt: skip
# Lists of tensors are recorded without their type: the kernel's template arguments hold it.
_LISTS = r"multi_tensor_apply_kernel|CatArrayBatchedCopy"
_SIZED = r"OpaqueType<(\d+)u?l?>|(c10::BFloat16|c10::Half|\bfloat\b|\bdouble\b)"


class Tensor(NamedTuple):
    """One tensor among an operator's inputs."""

    shape: Shape
    type: str

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return num_elements(self.shape)

    @property
    def bytes(self) -> int:
        """Return the bytes of all elements."""
        return self.size * BYTES[self.type]


class Inputs(NamedTuple):
    """An operator's inputs; the three are parallel, with an entry for each argument where the file has it."""

    at: tuple[Tensor | None, ...]  # tensors with at least one dimension and a known type
    lists: tuple[tuple[Shape, ...], ...]  # shapes of the tensors of each TensorList, empty for any other argument
    values: tuple[str, ...]  # scalars and lists as text, such as "[2, 2]" or "False"

    @property
    def tensors(self) -> list[Tensor]:
        """Return the tensors without what stands between them."""
        return [tensor for tensor in self.at if tensor is not None]

    def tensor(self, index: int) -> Tensor:
        """Return the tensor that is the argument ``index``.

        Raises:
            ValueError: that argument is none.
        """
        found = self.at[index] if index < len(self.at) else None
        if found is None:
            raise ValueError("no tensor there")
        return found

    def numbers(self, index: int) -> list[int]:
        """Return the whole numbers of the argument ``index``: of a list, or of one number.

        Raises:
            ValueError: the file does not have it.
        """
        value = json.loads(self.values[index]) if index < len(self.values) else None
        listed = value if isinstance(value, list) else [value]
        found = [n for n in listed if isinstance(n, int)]
        if len(found) < len(listed):
            raise ValueError("no whole numbers there")
        return found

    def flag(self, index: int) -> bool | None:
        """Return the truth value of the argument ``index``, None where the file does not have it."""
        text = self.values[index] if index < len(self.values) else ""
        return {"True": True, "False": False}.get(text)


@lru_cache(maxsize=4096)  # several rules ask for the same operators
def inputs(shapes: str, types: str, values: str = "") -> Inputs | None:
    """Return the inputs in the texts, None where they are not what a profiler writes."""
    try:
        dims, kinds, given = (json.loads(text) for text in (shapes, types, values or "[]"))
        if not (isinstance(dims, list) and isinstance(kinds, list) and isinstance(given, list)):
            return None
        each = [(dim, kind) for dim, kind in zip(dims, kinds, strict=False)]
        return Inputs(
            tuple(Tensor(_shape(dim), kind) if dim and kind in BYTES else None for dim, kind in each),
            tuple(
                tuple(map(_shape, dim)) if kind == "TensorList" and isinstance(dim, list) else () for dim, kind in each
            ),
            tuple(map(str, given)),
        )
    except (ValueError, TypeError):  # a type that is a list is no key
        return None


def _shape(dim: object) -> Shape:
    found = tuple(n for n in dim if isinstance(n, int)) if isinstance(dim, list) else ()
    if not isinstance(dim, list) or len(found) < len(dim):
        raise ValueError("no shape")
    return found


def element_bytes(kernel: str) -> int:
    """Return the bytes of an element of a kernel's lists of tensors, 0 where its name does not show them."""
    if not re.search(_LISTS, kernel):
        return 0
    found = re.search(_SIZED, kernel)
    if found is None:
        return 0
    return int(found[1]) if found[1] else BYTES[found[2]]
