"""What an operator has to do at least, from its inputs: operations, and bytes to and from memory.

Every input is counted as read once and every output as written once: caches and fusion within the operator can save
no more than that. Operators whose inputs do not determine the work have none: a convolution without recorded stride, a
list of tensors of unknown type, an index whose result depends on values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from diagnose.model.shapes import MAX_ELEMENTS, Shape, num_elements
from diagnose.perf_model.matmul_cost import PRODUCTS, OpCost, compiled_product
from diagnose.perf_model.op_inputs import BYTES, Inputs, element_bytes, inputs

__all__ = ["OpCost", "cost_of", "is_pointwise", "output_size", "reads_values"]

# Operators that read each element and write one, whatever they compute; with and without a trailing underscore.
_POINTWISE = frozenset({
    "add", "sub", "rsub", "mul", "div", "pow", "neg", "abs", "exp", "log", "log1p", "sqrt", "rsqrt", "reciprocal",
    "sin", "cos", "tanh", "sigmoid", "relu", "gelu", "silu", "leaky_relu", "sign", "floor", "round", "expm1", "mish",
    "hardtanh", "hardswish", "hardsigmoid", "elu", "softplus", "clamp", "log_sigmoid_forward",
    "clamp_min", "clamp_max", "erf", "square", "where", "maximum", "minimum", "addcmul", "addcdiv", "lerp", "copy",
    "threshold_backward", "gelu_backward", "silu_backward", "tanh_backward", "sigmoid_backward", "elu_backward",
    "leaky_relu_backward", "hardtanh_backward", "hardswish_backward", "softplus_backward",
    "native_dropout_backward", "masked_fill", "bitwise_not", "logical_not", "logical_and", "logical_or",
    "bitwise_and", "bitwise_or", "masked_scale", "_to_copy",
})  # fmt: skip
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf"})
# Operators that read their first input and return what is far smaller.
_REDUCTIONS = (
    "sum", "mean", "amax", "amin", "max", "min", "aminmax", "argmax", "argmin", "prod", "var", "std", "var_mean",
    "std_mean", "norm", "linalg_vector_norm", "all", "any", "count_nonzero",
)  # fmt: skip
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
    return op.startswith("aten::") and (name in _POINTWISE or name in _COMPARISONS)


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
    each = 1 if name.removesuffix("_") in _COMPARISONS else each
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


def _written(given: Inputs) -> OpCost:
    return _moving(given.tensors[0].bytes)


def _times(given: Inputs, *, count: int) -> OpCost:
    """Return the work of moving ``count`` tensors of the first one's size."""
    return _moving(count * given.tensors[0].bytes)


def _dropout(given: Inputs) -> OpCost:
    return _moving(2 * given.tensors[0].bytes + given.tensors[0].size)  # and the mask, a byte each


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
    **{f"aten::{name}": partial(_times, count=1) for name in _REDUCTIONS},
    **{f"aten::{name}": partial(_times, count=2) for name in _IN_AND_OUT},
    **{f"aten::{name}": partial(_times, count=3) for name in _BACKWARD},
    "aten::fill_": _written,
    "aten::zero_": _written,
    "aten::native_dropout": _dropout,
    "aten::index_select": _index_select,
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::gather": _gather,
    "aten::scatter_add_": _scatter,
    "aten::index_add_": _scatter,
    "aten::scatter_": _scatter,
    "aten::index_put_": _index_put,
    "aten::_index_put_impl_": _index_put,
    "aten::max_pool2d_with_indices": _written,
    "aten::max_pool2d_with_indices_backward": _pooling_backward,
}
