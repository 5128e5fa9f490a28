"""The old name of ``diagnose.kernels.ops.custom_op``, deprecated (docs/json.md)."""

import warnings

from diagnose.kernels.ops.custom_op import (
    FLOATING,
    Implementation,
    Operator,
    checked,
    operator,
    same_shape,
    sharded,
    transforming,
    using,
)

__all__ = [
    "FLOATING",
    "Implementation",
    "Operator",
    "checked",
    "operator",
    "same_shape",
    "sharded",
    "transforming",
    "using",
]

warnings.warn(
    "diagnose.kernels.ops.scaffold is now diagnose.kernels.ops.custom_op; "
    "the old name goes after two minor releases and half a year.",
    DeprecationWarning,
    stacklevel=2,
)
