"""What matrix products, convolutions and attention have to do at least: operations, and bytes to and from memory.

A multiplication with an addition counts as two operations, as data sheets count them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import isqrt
from typing import NamedTuple, TypeAlias

from diagnose.model.shapes import Shape, num_elements
from diagnose.perf_model.gpu_specs import Precision
from diagnose.perf_model.op_inputs import BYTES, Inputs, Tensor

__all__ = ["PRODUCTS", "OpCost", "compiled_product", "is_convolution", "output_of_convolution"]


class OpCost(NamedTuple):
    """The least that an operator does."""

    flop: float  # operations of matrix units; 0 where memory alone counts
    bytes: float
    precision: Precision  # by the type of its inputs


Formula: TypeAlias = Callable[[Inputs], OpCost]

_PRECISION: Mapping[str, Precision] = {
    "float": "fp32", "c10::BFloat16": "f16", "c10::Half": "f16", "half": "f16",
    "c10::Float8_e4m3fn": "fp8", "c10::Float8_e5m2": "fp8", "c10::Float8_e4m3fnuz": "fp8",
}  # fmt: skip


def _product(batch: int, m: int, k: int, n: int, tensor: Tensor) -> OpCost:
    """Return the work of ``batch`` products of m × k with k × n."""
    size = BYTES[tensor.type]
    return OpCost(2.0 * batch * m * k * n, float(batch * (m * k + k * n + m * n) * size), _PRECISION[tensor.type])


def _mm(given: Inputs, first: int = 0) -> OpCost:
    left, right = given.tensors[first], given.tensors[first + 1]
    (m, k), (other, n) = left.shape, right.shape
    _same(k, other)
    return _product(1, m, k, n, left)


def _bmm(given: Inputs, first: int = 0) -> OpCost:
    left, right = given.tensors[first], given.tensors[first + 1]
    (batch, m, k), (_, other, n) = left.shape, right.shape
    _same(k, other)
    return _product(batch, m, k, n, left)


def _mv(given: Inputs, first: int = 0) -> OpCost:
    left = given.tensors[first]
    (m, k), (other,) = left.shape, given.tensors[first + 1].shape
    _same(k, other)
    return _product(1, m, k, 1, left)


def _linear(given: Inputs) -> OpCost:
    left = given.tensors[0]
    (*rows, k), (n, other) = left.shape, given.tensors[1].shape
    _same(k, other)
    return _product(1, num_elements(rows), k, n, left)


def _same(k: int, other: int) -> None:
    if k != other:
        raise ValueError("the inner sizes differ")


def compiled_product(given: Inputs) -> OpCost:
    """Return the work of a product template of inductor: two inputs and the output, m × k, k × n and m × n elements.

    Raises:
        ValueError: those are not its arguments.
    """
    left, right, out = given.tensors
    if len(right.shape) == 2:
        inner = isqrt(left.size * right.size // max(out.size, 1))
        if inner * inner * out.size != left.size * right.size:
            raise ValueError("the sizes are not those of one product")
    else:
        inner = left.shape[-1]
        _same(inner, right.shape[-2])
    return OpCost(2.0 * out.size * inner, float(left.bytes + right.bytes + out.bytes), _PRECISION[left.type])


class _Convolution(NamedTuple):
    """Where an operator has its arguments; -1 where it has none of them."""

    stride: int
    padding: int
    dilation: int
    transposed: int = -1


_FORWARD = {
    "aten::cudnn_convolution": _Convolution(3, 2, 4),
    "aten::miopen_convolution": _Convolution(4, 3, 5),
    "aten::miopen_depthwise_convolution": _Convolution(4, 3, 5),
    "aten::cudnn_convolution_relu": _Convolution(3, 4, 5),
    "aten::cudnn_convolution_add_relu": _Convolution(5, 6, 7),
    "aten::_convolution": _Convolution(3, 4, 5, 6),
    "aten::convolution": _Convolution(3, 4, 5, 6),
    "aten::thnn_conv2d": _Convolution(4, 5, -1),
    "aten::_slow_conv2d_forward": _Convolution(4, 5, -1),
    "aten::_conv_depthwise2d": _Convolution(4, 5, 6),
    "aten::conv_depthwise3d": _Convolution(4, 5, 6),
}


def _convolution(given: Inputs, where: _Convolution) -> OpCost:
    if where.transposed >= 0 and given.flag(where.transposed) is not False:
        if given.flag(where.transposed) is None:
            raise ValueError("it may be a transposed one")
        return _transposed(given)
    image, weight = given.tensor(0), given.tensor(1)
    kernel = weight.shape[2:]
    stride, padding = given.numbers(where.stride), given.numbers(where.padding)
    dilation = given.numbers(where.dilation) if where.dilation >= 0 else [1]
    sizes = zip(image.shape[2:], kernel, *(_each(v, len(kernel)) for v in (stride, padding, dilation)), strict=True)
    out = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)
    return _with_output(image, weight, out)


def _each(values: list[int], rank: int) -> list[int]:
    return values * rank if len(values) == 1 else values


def _with_output(image: Tensor, weight: Tensor, out: Shape) -> OpCost:
    """Return the work of a convolution whose output has the spatial size ``out``."""
    filters, each = weight.shape[0], num_elements(weight.shape[1:])
    written = image.shape[0] * filters * num_elements(out)
    moved = image.bytes + weight.bytes + written * BYTES[image.type]
    return OpCost(2.0 * written * each, float(moved), _PRECISION[image.type])


def is_convolution(op: str) -> bool:
    """Return whether an operator is the forward of a convolution that may lack its stride."""
    return op in _FORWARD


def output_of_convolution(given: Inputs, after: Inputs) -> OpCost | None:
    """Return the work of a convolution whose output is the first input of what runs after it, None where it is not.

    It is one if batch and filters fit and an integer stride and a padding of less than the kernel lead to its size.
    """
    if len(given.at) < 2 or given.at[0] is None or given.at[1] is None or not after.tensors:
        return None
    image, weight, out = given.at[0], given.at[1], after.tensors[0].shape
    rank = len(weight.shape)
    if len(image.shape) != rank or len(out) != rank or out[:2] != (image.shape[0], weight.shape[0]) or rank < 3:
        return None
    fits = all(_is_output(*sizes) for sizes in zip(image.shape[2:], weight.shape[2:], out[2:], strict=True))
    return _with_output(image, weight, out[2:]) if fits else None


def _is_output(size: int, kernel: int, out: int) -> bool:
    paddings = range(kernel)
    return any((size + 2 * p - kernel) // s + 1 == out for p in paddings for s in (1, 2, 3, 4, kernel))


def _transposed(given: Inputs) -> OpCost:
    """Return the work of a transposed convolution: each element of its input meets all of the kernel."""
    image, weight = given.tensor(0), given.tensor(1)
    each = num_elements(weight.shape[1:])
    return OpCost(2.0 * image.size * each, float(image.bytes + weight.bytes), _PRECISION[image.type])


def _convolution_backward(given: Inputs) -> OpCost:
    """Return the work of the gradients that are computed, each of which costs as much as the forward."""
    above, image, weight = (given.tensor(i) for i in range(3))
    if given.flag(7) is None or len(given.values) < 11:
        raise ValueError("neither kind nor gradients were recorded")
    each = 2.0 * num_elements(weight.shape[1:]) * (image.size if given.flag(7) else above.size)
    wanted = [text.strip() == "True" for text in given.values[10].strip("[]").split(",")]
    moved = above.bytes * sum(wanted[:2]) + (image.bytes + weight.bytes) * sum(wanted[:2])
    return OpCost(each * sum(wanted[:2]), float(moved), _PRECISION[image.type])


def _one_gradient(given: Inputs, above: int, weight: int) -> OpCost:
    """Return the work of one gradient of a convolution, by an operator of its own as older releases had."""
    gradient, other = given.tensors[above], given.tensors[weight]
    return OpCost(
        2.0 * gradient.size * num_elements(other.shape[1:]),
        float(gradient.bytes + other.bytes),
        _PRECISION[gradient.type],
    )


class _Attention(NamedTuple):
    """Where an attention operator has its arguments."""

    heads: int  # the dimension of the heads, 1 or 2
    causal: int  # index of the flag, or of the kind of mask
    first: int = 0  # index of the query
    backward: bool = False


_ATTENTION = {
    "aten::_flash_attention_forward": _Attention(2, 8),
    "aten::_efficient_attention_forward": _Attention(2, 9),
    "aten::_scaled_dot_product_flash_attention": _Attention(1, 4),
    "aten::_scaled_dot_product_efficient_attention": _Attention(1, 6),
    "aten::_scaled_dot_product_cudnn_attention": _Attention(1, 6),
    "aten::_cudnn_attention_forward": _Attention(1, 10),
    "aten::_flash_attention_backward": _Attention(2, 11, 1, backward=True),
    "aten::_efficient_attention_backward": _Attention(2, 14, 1, backward=True),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Attention(1, 14, 1, backward=True),
    "aten::_cudnn_attention_backward": _Attention(1, 14, 1, backward=True),
}


_CAUSAL = ("True", "1", "2")  # a flag, or efficient attention's kind of mask


def _attention(given: Inputs, where: _Attention) -> OpCost:
    """Return the work of attention; without a causal flag, of all pairs, which is the most it can be.

    The backward makes the scores again and four more products of the same size: five where the forward has two.
    """
    q, k, v = (given.tensor(where.first + i) for i in range(3))
    batch, width = q.shape[0], q.shape[3]
    length, others = q.shape[3 - where.heads], k.shape[3 - where.heads]
    causal = where.causal < len(given.values) and given.values[where.causal] in _CAUSAL
    pairs = length * (length + 1) // 2 if causal and length == others else length * others
    products = 5 if where.backward else 2
    flop = batch * q.shape[where.heads] * pairs * (width + v.shape[3]) * products
    moved = (2 * q.bytes + k.bytes + v.bytes) * (2 if where.backward else 1)
    return OpCost(float(flop), float(moved), _PRECISION[q.type])


PRODUCTS: Mapping[str, Formula] = {
    "aten::mm": _mm,
    "aten::_scaled_mm": _mm,
    "aten::addmm": partial(_mm, first=1),
    "aten::_addmm_activation": partial(_mm, first=1),
    "aten::bmm": _bmm,
    "aten::baddbmm": partial(_bmm, first=1),
    "aten::mv": _mv,
    "aten::addmv": partial(_mv, first=1),
    "aten::linear": _linear,
    **{name: partial(_convolution, where=where) for name, where in _FORWARD.items()},
    "aten::cudnn_convolution_transpose": _transposed,
    "aten::miopen_convolution_transpose": _transposed,
    "aten::convolution_backward": _convolution_backward,
    "aten::cudnn_convolution_backward_input": partial(_one_gradient, above=0, weight=1),
    **{name: partial(_attention, where=where) for name, where in _ATTENTION.items()},
}
