"""The old name of ``_module_matching``, deprecated: pickles of patched models name its functions."""

from diagnose.kernels._module_matching import (
    _builtin_rms_norm,
    _cross_entropy,
    _gelu,
    _layer_norm,
    _rms_norm,
    _softmax,
    _swiglu,
)

__all__ = ["_builtin_rms_norm", "_cross_entropy", "_gelu", "_layer_norm", "_rms_norm", "_softmax", "_swiglu"]
