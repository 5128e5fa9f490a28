"""Kinds of operators that several analyses tell apart, by their names."""

from __future__ import annotations

from diagnose.dataflow.graph import plain_name
from diagnose.model.dataflow import Operator

__all__ = ["base_name", "is_copy", "is_pointwise", "is_product", "is_reduction"]

_PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "linear", "matmul", "_addmm"})
_REDUCTIONS = """
    sum mean amax amin max min prod norm linalg_vector_norm var std var_mean std_mean logsumexp any all softmax
    _softmax log_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data native_layer_norm
    native_layer_norm_backward native_group_norm nll_loss_forward nll_loss_backward cumsum argmax"""
_POINTWISE = """
    add sub rsub mul div neg abs pow square sqrt rsqrt exp exp2 expm1 log log1p log2 sin cos tan tanh erf erfc
    sigmoid logsigmoid relu gelu silu mish elu leaky_relu softplus hardtanh hardswish threshold clamp clamp_min
    clamp_max where masked_fill lerp addcmul addcdiv maximum minimum fmod remainder floor ceil round trunc sign
    reciprocal atan2 eq ne lt le gt ge logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not isnan
    isfinite tanh_backward sigmoid_backward gelu_backward silu_backward threshold_backward softplus_backward
    native_dropout native_dropout_backward bernoulli cat stack"""
_KINDS = {"pointwise": frozenset(_POINTWISE.split()), "reduction": frozenset(_REDUCTIONS.split())}
_COPIES = frozenset({"clone", "contiguous", "_to_copy", "copy"})


def base_name(one: Operator) -> str:
    """Return an operator's plain name without the mark of a change in place."""
    name = plain_name(one.name)
    return name[:-1] if name.endswith("_") and not name.startswith("__") else name


def is_product(one: Operator) -> bool:
    """Return whether an operator multiplies matrices."""
    return base_name(one) in _PRODUCTS


def is_pointwise(one: Operator) -> bool:
    """Return whether each element of the result depends on one element of each argument; joining counts."""
    return base_name(one) in _KINDS["pointwise"]


def is_reduction(one: Operator) -> bool:
    """Return whether an operator reduces or normalises along dimensions."""
    return base_name(one) in _KINDS["reduction"]


def is_copy(one: Operator) -> bool:
    """Return whether all an operator does is to copy or convert."""
    return base_name(one) in _COPIES
