"""What an operator has to do at least, from its inputs: operations, and bytes to and from memory.

Every input is counted as read once and every output as written once: caches and fusion within the operator can save
no more than that. Operators whose inputs do not determine the work have none: a convolution without recorded stride, a
list of tensors of unknown type, an index whose result depends on values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isqrt
from typing import NamedTuple, TypeAlias

from diagnose.model.operators import COMPARISONS, POINTWISE, REDUCTIONS
from diagnose.model.shapes import MAX_ELEMENTS, Shape, num_elements
from diagnose.perf_model.gpu_specs import Precision
from diagnose.perf_model.op_inputs import BYTES, Inputs, Tensor, element_bytes, inputs

# What matrix products, convolutions and attention have to do at least: operations, and bytes to and from memory.
#
# A multiplication with an addition counts as two operations, as data sheets count them.


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
    given_sizes = (each * len(kernel) if len(each) == 1 else each for each in (stride, padding, dilation))
    sizes = zip(image.shape[2:], kernel, *given_sizes, strict=True)
    out = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)
    return _with_output(image, weight, out)


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
    fits = (
        any((size + 2 * p - kernel) // s + 1 == length for p in range(kernel) for s in (1, 2, 3, 4, kernel))
        for size, kernel, length in zip(image.shape[2:], weight.shape[2:], out[2:], strict=True)
    )
    return _with_output(image, weight, out[2:]) if all(fits) else None


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


def _one_gradient(given: Inputs) -> OpCost:
    """Return the work of one gradient of a convolution, by an operator of its own as older releases had."""
    gradient, other = given.tensors[:2]
    flop = 2.0 * gradient.size * num_elements(other.shape[1:])
    return OpCost(flop, float(gradient.bytes + other.bytes), _PRECISION[gradient.type])


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
    "aten::cudnn_convolution_backward_input": _one_gradient,
    **{name: partial(_attention, where=where) for name, where in _ATTENTION.items()},
}


_MOVES = frozenset({"copy", "_to_copy", "masked_scale"})  # these read each element and write one as well
# Operators that read their first input once and write as much.
_IN_AND_OUT = (
    "_softmax", "_log_softmax", "native_layer_norm", "native_group_norm", "native_batch_norm", "cudnn_batch_norm",
    "miopen_batch_norm", "_fused_rms_norm", "cumsum", "flip", "roll",
)  # fmt: skip
# Operators that read the gradient of the output and the output or the input, and write the gradient of the input.
_BACKWARD = (
    "_softmax_backward_data", "_log_softmax_backward_data", "native_layer_norm_backward", "native_group_norm_backward",
    "native_batch_norm_backward", "cudnn_batch_norm_backward", "miopen_batch_norm_backward",
    "_fused_rms_norm_backward",
)  # fmt: skip
# Lists of tensors that an optimizer reads, and those that it writes, of as many as are not empty.
_FUSED_OPTIMIZERS = {"_fused_adam_": (4, 3), "_fused_adamw_": (4, 3), "_fused_sgd_": (3, 2), "_fused_adagrad_": (3, 2)}
_FOREACH = "aten::_foreach_"
_TEMPLATE = "triton_tem_"
_COMPILED = ("triton_poi_", "triton_per_", "triton_red_")


def is_pointwise(op: str) -> bool:
    """Return whether an operator computes each element of its output from the same element of its inputs."""
    name = op.removeprefix("aten::").removesuffix("_")
    return op.startswith("aten::") and (name in POINTWISE or name in _MOVES)


def output_size(shapes: str, types: str) -> int:
    """Return the number of elements of a pointwise operator's output, 0 where its shapes do not determine it."""
    given = inputs(shapes, types)
    tensors = given.tensors if given else []
    shape = _broadcast([tensor.shape for tensor in tensors]) if tensors else None
    return num_elements(shape) if shape else 0


def reads_values(op: str) -> bool:
    """Return whether an operator's work follows from its numbers and flags too, not from shapes alone."""
    return (op in PRODUCTS and ("conv" in op or "attention" in op)) or op in _BY_VALUE or op.startswith("triton_")


def cost_of(op: str, shapes: str, types: str, values: str = "", kernel: str = "") -> OpCost | None:
    """Return the work of an operator from the texts of its inputs, None where they do not determine it.

    ``kernel`` is the name of a kernel of it: lists of tensors are recorded without their type.
    """
    formula = _formula(op, kernel)
    given = inputs(shapes, types, values) if formula else None
    if formula is None or given is None:
        return None
    try:
        work = formula(given)
    except (ArithmeticError, IndexError, ValueError, KeyError, TypeError):  # not the inputs that this operator has
        return None
    return work if work.bytes <= MAX_ELEMENTS else None  # a size among its numbers that no memory has


def _formula(op: str, kernel: str) -> Callable[[Inputs], OpCost] | None:
    if is_pointwise(op):
        return partial(_pointwise, op)
    if op.startswith(_FOREACH):
        return partial(_foreach, op, element_bytes(kernel))
    if op.removeprefix("aten::") in _FUSED_OPTIMIZERS:
        return partial(_fused_optimizer, op, element_bytes(kernel))
    if op == "aten::cat":
        return partial(_concatenation, element_bytes(kernel))
    if op.startswith(_COMPILED):
        return partial(_compiled, reduces=not op.startswith("triton_poi_"))
    return compiled_product if op.startswith(_TEMPLATE) and "mm" in op else _FORMULAS.get(op)


def _moving(count: float) -> OpCost:
    return OpCost(0, float(count), "fp32")


def _broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """Return the shape that the given ones have together, None where they do not fit."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    sizes = [{n for n in column if n != 1} for column in zip(*padded, strict=True)]
    return tuple(next(iter(column), 1) for column in sizes) if all(len(column) <= 1 for column in sizes) else None


def _pointwise(op: str, given: Inputs) -> OpCost:
    tensors = given.tensors
    shape = _broadcast([tensor.shape for tensor in tensors])
    if shape is None:
        raise ValueError("the shapes do not fit")
    name = op.removeprefix("aten::")
    if name == "copy_":  # the destination is written, not read
        return _moving(sum(tensor.bytes for tensor in tensors[:2]))
    each = max(BYTES[tensor.type] for tensor in tensors)
    each = 1 if name.removesuffix("_") in COMPARISONS else each
    each = BYTES[tensors[0].type] if name.endswith("_") else each
    return _moving(sum(tensor.bytes for tensor in tensors) + num_elements(shape) * each)


def _foreach(op: str, each: int, given: Inputs) -> OpCost:
    """Return the work over lists of tensors: all are read, and as much as the first one is written."""
    sizes = [sum(map(num_elements, shapes)) for shapes in given.lists if shapes]
    if not sizes or not each:
        raise ValueError("the lists or their type were not recorded")
    written = 0 if op.startswith(f"{_FOREACH}norm") else sizes[0]
    read = sum(sizes[1:]) if op.startswith((f"{_FOREACH}copy_", f"{_FOREACH}zero_")) else sum(sizes)
    return _moving((read + written) * each)


def _fused_optimizer(op: str, each: int, given: Inputs) -> OpCost:
    read, written = _FUSED_OPTIMIZERS[op.removeprefix("aten::")]
    sizes = [sum(map(num_elements, shapes)) for shapes in given.lists[:read] if shapes]
    if not sizes or not each:
        raise ValueError("the lists or their type were not recorded")
    return _moving((sum(sizes) + sizes[0] * min(written, len(sizes) - 1)) * each)


def _concatenation(each: int, given: Inputs) -> OpCost:
    if not given.lists[0] or not each:
        raise ValueError("the list or its type was not recorded")
    return _moving(2 * sum(map(num_elements, given.lists[0])) * each)


def _compiled(given: Inputs, *, reduces: bool) -> OpCost:
    """Return the work of a kernel of inductor: it is given its inputs and outputs, then how many elements it visits.

    Of a tensor that is larger than that it touches a part. One number for a plain loop, or two; a reduction has two.
    """
    *_, rows, columns = (int(value) if value.isdigit() else 1 for value in ("", *given.values))
    sizes = {tensor.size for tensor in given.tensors}
    visited = rows * columns if reduces or (columns not in sizes and rows * columns in sizes) else columns
    if visited <= 1:
        raise ValueError("the numbers of elements were not recorded")
    return _moving(sum(min(tensor.size, visited) * BYTES[tensor.type] for tensor in given.tensors))


def _times(given: Inputs, *, count: int) -> OpCost:
    """Return the work of moving ``count`` tensors of the first one's size."""
    return _moving(count * given.tensors[0].bytes)


def _index_select(given: Inputs) -> OpCost:
    table, chosen, (dim,) = given.tensor(0), given.tensor(2), given.numbers(1)
    taken = chosen.size * (table.size // max(table.shape[dim], 1))
    return _moving(chosen.bytes + 2 * taken * BYTES[table.type])


def _embedding_backward(given: Inputs) -> OpCost:
    above, chosen, (rows,) = given.tensor(0), given.tensor(1), given.numbers(2)
    return _moving(above.bytes + chosen.bytes + rows * above.shape[-1] * BYTES[above.type])


def _gather(given: Inputs) -> OpCost:
    table, chosen = given.tensor(0), given.tensor(2)
    return _moving(chosen.bytes + 2 * chosen.size * BYTES[table.type])


def _scatter(given: Inputs) -> OpCost:
    """Return the work of adding or writing elements at places: each place is read and written."""
    table, chosen, source = given.tensor(0), given.tensor(2), given.tensor(3)
    return _moving(chosen.bytes + source.bytes + 2 * source.size * BYTES[table.type])


def _index_put(given: Inputs) -> OpCost:
    """Return the work of writing or adding values at indices: each place is read and written, each value read."""
    values = given.tensor(2)
    return _moving(3 * values.bytes + sum(map(num_elements, given.lists[1])) * BYTES["long int"])


def _pooling_backward(given: Inputs) -> OpCost:
    above, image = given.tensor(0), given.tensor(1)
    return _moving(above.bytes + above.size * BYTES["long int"] + image.bytes)


_BY_VALUE = frozenset({"aten::index_select", "aten::embedding_dense_backward"})
_FORMULAS: Mapping[str, Callable[[Inputs], OpCost]] = {
    **PRODUCTS,
    **{f"aten::{name}": partial(_times, count=1) for name in REDUCTIONS},
    **{f"aten::{name}": partial(_times, count=2) for name in _IN_AND_OUT},
    **{f"aten::{name}": partial(_times, count=3) for name in _BACKWARD},
    "aten::fill_": partial(_times, count=1),
    "aten::zero_": partial(_times, count=1),
    "aten::native_dropout": lambda given: _moving(2 * given.tensors[0].bytes + given.tensors[0].size),  # and the mask
    "aten::index_select": _index_select,
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::gather": _gather,
    "aten::scatter_add_": _scatter,
    "aten::index_add_": _scatter,
    "aten::scatter_": _scatter,
    "aten::index_put_": _index_put,
    "aten::_index_put_impl_": _index_put,
    "aten::max_pool2d_with_indices": partial(_times, count=1),
    "aten::max_pool2d_with_indices_backward": _pooling_backward,
}
