"""Operators by what they compute: names without namespace, overload and the mark of a change in place."""

from __future__ import annotations

COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite"})
# These compute each element of their output from the same element of each input.
POINTWISE = COMPARISONS | {
    "add", "sub", "rsub", "mul", "div", "pow", "neg", "abs", "exp", "log", "log1p", "sqrt", "rsqrt", "reciprocal",
    "sin", "cos", "tan", "tanh", "sigmoid", "relu", "gelu", "silu", "leaky_relu", "sign", "floor", "ceil", "round",
    "trunc", "exp2", "expm1", "log2", "mish", "hardtanh", "hardswish", "hardsigmoid", "elu", "softplus", "clamp",
    "clamp_min", "clamp_max", "erf", "erfc", "square", "where", "maximum", "minimum", "addcmul", "addcdiv", "lerp",
    "fmod", "remainder", "atan2", "threshold", "logsigmoid", "log_sigmoid_forward", "masked_fill", "bitwise_not",
    "logical_not", "logical_and", "logical_or", "bitwise_and", "bitwise_or", "threshold_backward", "gelu_backward",
    "silu_backward", "tanh_backward", "sigmoid_backward", "elu_backward", "leaky_relu_backward", "hardtanh_backward",
    "hardswish_backward", "softplus_backward", "native_dropout_backward",
    "acos", "acosh", "angle", "asin", "asinh", "atan", "atanh", "bitwise_left_shift", "bitwise_right_shift",
    "bitwise_xor", "celu", "clip", "copysign", "cosh", "deg2rad", "digamma", "erfinv", "float_power", "fmax", "fmin",
    "frac", "gcd", "hardshrink", "heaviside", "hypot", "i0", "igamma", "igammac", "isneginf", "isposinf", "lcm",
    "ldexp", "lgamma", "log10", "logaddexp", "logaddexp2", "logical_xor", "logit", "logit_backward", "mvlgamma",
    "nan_to_num", "nextafter", "polygamma", "positive", "rad2deg", "relu6", "selu", "sgn", "signbit", "sinc", "sinh",
    "softshrink", "special_entr", "special_erfcx", "special_i0e", "special_i1", "special_i1e", "special_log_ndtr",
    "special_ndtri", "special_xlog1py", "special_zeta", "true_divide", "xlogy",
}  # fmt: skip
# These read their first input and return what is far smaller.
REDUCTIONS = frozenset({
    "sum", "mean", "amax", "amin", "max", "min", "aminmax", "argmax", "argmin", "prod", "var", "std", "var_mean",
    "std_mean", "norm", "linalg_vector_norm", "all", "any", "count_nonzero",
})  # fmt: skip
