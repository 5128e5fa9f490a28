"""Operators that do in one pass over memory what models write as several; each file is one, its first lines a page."""

from diagnose.kernels.ops.gelu import gelu
from diagnose.kernels.ops.scaffold import using
from diagnose.kernels.ops.softmax import softmax

__all__ = ["gelu", "softmax", "using"]
