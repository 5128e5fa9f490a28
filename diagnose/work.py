"""What an operator has to do at least, from its input shapes and types: operations, and bytes to and from memory.

Every input is counted as read once and every output as written once: caches and fusion within the operator can save
no more than that. Operators whose shapes do not tell the work (a convolution's stride is not among them) have none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import NamedTuple, TypeAlias

from diagnose.devices import Precision

__all__ = ["Work", "is_pointwise", "output_size", "work_of"]

Shape: TypeAlias = tuple[int, ...]


class Work(NamedTuple):
    """The least that an operator does."""

    flop: float  # operations of matrix units; 0 where memory alone counts
    bytes: float
    precision: Precision  # by the type of its inputs


class Tensor(NamedTuple):
    """One tensor among an operator's inputs."""

    shape: Shape
    type: str

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Return the bytes of all elements."""
        return self.size * _BYTES[self.type]


_BYTES = {
    "double": 8, "long int": 8, "long": 8, "float": 4, "int": 4, "c10::BFloat16": 2, "c10::Half": 2, "half": 2,
    "short": 2, "bool": 1, "unsigned char": 1, "signed char": 1, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
    "c10::Float8_e4m3fnuz": 1, "c10::complex<float>": 8,
}  # fmt: skip
_PRECISION: Mapping[str, Precision] = {
    "float": "fp32", "c10::BFloat16": "f16", "c10::Half": "f16", "half": "f16",
    "c10::Float8_e4m3fn": "fp8", "c10::Float8_e5m2": "fp8", "c10::Float8_e4m3fnuz": "fp8",
}  # fmt: skip
# Operators that read each element and write one, whatever they compute; with and without a trailing underscore.
_POINTWISE = frozenset({
    "add", "sub", "rsub", "mul", "div", "pow", "neg", "abs", "exp", "log", "log1p", "sqrt", "rsqrt", "reciprocal",
    "sin", "cos", "tanh", "sigmoid", "relu", "gelu", "silu", "leaky_relu",
    "hardtanh", "hardswish", "elu", "softplus", "clamp",
    "clamp_min", "clamp_max", "erf", "square", "where", "maximum", "minimum", "addcmul", "addcdiv", "lerp", "copy",
    "threshold_backward", "gelu_backward", "silu_backward", "tanh_backward", "sigmoid_backward",
    "native_dropout_backward", "masked_fill", "bitwise_not", "logical_not", "logical_and", "bitwise_and",
    "masked_scale", "_to_copy",
})  # fmt: skip
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf"})


def is_pointwise(op: str) -> bool:
    """Tell whether an operator computes each element of its output from the same element of its inputs."""
    name = op.removeprefix("aten::").removesuffix("_")
    return op.startswith("aten::") and (name in _POINTWISE or name in _COMPARISONS)


def output_size(shapes: str, types: str) -> int:
    """Return the number of elements of a pointwise operator's output, 0 where its shapes do not tell."""
    tensors = _tensors(shapes, types)
    shape = _broadcast([tensor.shape for tensor in tensors]) if tensors else None
    return prod(shape) if shape else 0


def work_of(op: str, shapes: str, types: str) -> Work | None:
    """Return the work of an operator from the texts of its input shapes and types, None where they do not tell it."""
    tensors = _tensors(shapes, types)
    if not tensors:
        return None
    if is_pointwise(op):
        return _pointwise(op, tensors)
    formula = _FORMULAS.get(op)
    try:
        return formula(tensors) if formula else None
    except (IndexError, ValueError, KeyError):  # not the shapes that this operator has
        return None


def _tensors(shapes: str, types: str) -> list[Tensor]:
    """Return the tensors with at least one dimension, in order; none where a text is not what a profiler writes."""
    try:
        dims, kinds = json.loads(shapes), json.loads(types)
    except ValueError:
        return []
    if not isinstance(dims, list) or not isinstance(kinds, list):
        return []
    given = [(dim, kind) for dim, kind in zip(dims, kinds, strict=False) if kind in _BYTES and dim]
    if not all(isinstance(dim, list) and all(isinstance(n, int) for n in dim) for dim, _ in given):
        return []
    return [Tensor(tuple(dim), kind) for dim, kind in given]


def _broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """Return the shape that the given ones have together, None where they do not fit."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    sizes = [{n for n in column if n != 1} for column in zip(*padded, strict=True)]
    return tuple(next(iter(column), 1) for column in sizes) if all(len(column) <= 1 for column in sizes) else None


def _pointwise(op: str, tensors: Sequence[Tensor]) -> Work | None:
    shape = _broadcast([tensor.shape for tensor in tensors])
    if shape is None:
        return None
    name = op.removeprefix("aten::")
    if name == "copy_":  # the destination is written, not read
        return Work(0, sum(tensor.bytes for tensor in tensors[:2]), "fp32")
    each = max(_BYTES[tensor.type] for tensor in tensors)
    each = 1 if name.removesuffix("_") in _COMPARISONS else each
    each = _BYTES[tensors[0].type] if name.endswith("_") else each
    return Work(0, sum(tensor.bytes for tensor in tensors) + prod(shape) * each, "fp32")


def _product(batch: int, m: int, k: int, n: int, tensor: Tensor) -> Work:
    """Return the work of ``batch`` products of m × k with k × n."""
    size = _BYTES[tensor.type]
    return Work(2.0 * batch * m * k * n, float(batch * (m * k + k * n + m * n) * size), _PRECISION[tensor.type])


def _mm(tensors: Sequence[Tensor]) -> Work:
    (m, k), (other, n) = tensors[0].shape, tensors[1].shape
    if k != other:
        raise ValueError("the inner sizes differ")
    return _product(1, m, k, n, tensors[0])


def _bmm(tensors: Sequence[Tensor]) -> Work:
    (batch, m, k), (_, other, n) = tensors[0].shape, tensors[1].shape
    if k != other:
        raise ValueError("the inner sizes differ")
    return _product(batch, m, k, n, tensors[0])


def _linear(tensors: Sequence[Tensor]) -> Work:
    (*rows, k), (n, other) = tensors[0].shape, tensors[1].shape
    if k != other:
        raise ValueError("the inner sizes differ")
    return _product(1, prod(rows), k, n, tensors[0])


def _attention(tensors: Sequence[Tensor], *, heads: int, first: int = 0, products: int = 2) -> Work:
    """Return the work of attention over all pairs; ``heads`` is the dimension of the heads, 1 or 2.

    A causal mask halves it, but shapes do not tell whether there is one: this is the most it can be.
    """
    q, k, v = (tensor.shape for tensor in tensors[first : first + 3])
    batch, length, num_heads, width = q[0], q[3 - heads], q[heads], q[3]
    pairs = batch * num_heads * length * k[3 - heads]
    size = _BYTES[tensors[first].type]
    moved = (2 * prod(q) + prod(k) + prod(v)) * size * (products / 2)
    return Work(2.0 * pairs * (width + v[3]) / 2 * products, moved, _PRECISION[tensors[first].type])


def _in_and_out(tensors: Sequence[Tensor]) -> Work:
    """Return the work of an operator that reads its first input once and writes as much."""
    return Work(0, 2.0 * tensors[0].bytes, "fp32")


_FORMULAS: Mapping[str, Callable[[Sequence[Tensor]], Work]] = {
    "aten::mm": _mm,
    "aten::addmm": lambda tensors: _mm(tensors[1:]),
    "aten::bmm": _bmm,
    "aten::baddbmm": lambda tensors: _bmm(tensors[1:]),
    "aten::linear": _linear,
    "aten::_flash_attention_forward": lambda tensors: _attention(tensors, heads=2),
    "aten::_efficient_attention_forward": lambda tensors: _attention(tensors, heads=2),
    "aten::_scaled_dot_product_flash_attention": lambda tensors: _attention(tensors, heads=1),
    "aten::_scaled_dot_product_efficient_attention": lambda tensors: _attention(tensors, heads=1),
    "aten::_scaled_dot_product_cudnn_attention": lambda tensors: _attention(tensors, heads=1),
    # Backward: the products of the forward again, and two for each of them.
    "aten::_flash_attention_backward": lambda tensors: _attention(tensors, heads=2, first=1, products=5),
    "aten::_efficient_attention_backward": lambda tensors: _attention(tensors, heads=2, first=1, products=5),
    "aten::_softmax": _in_and_out,
    "aten::_log_softmax": _in_and_out,
    "aten::native_layer_norm": _in_and_out,
}
