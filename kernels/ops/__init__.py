"""Operators that do in one pass over memory what models write as several; each file is one, its first lines a page."""

from diagnose.kernels.ops.adamw import FusedAdamW, adamw_step, clip_factor
from diagnose.kernels.ops.bias_gelu import bias_gelu
from diagnose.kernels.ops.cross_entropy import cross_entropy, linear_cross_entropy
from diagnose.kernels.ops.custom_op import using
from diagnose.kernels.ops.gelu import gelu
from diagnose.kernels.ops.norms import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from diagnose.kernels.ops.rotary import angles, rotary
from diagnose.kernels.ops.scale import scale
from diagnose.kernels.ops.softmax import softmax
from diagnose.kernels.ops.swiglu import swiglu

__all__ = [
    "FusedAdamW",
    "adamw_step",
    "add_layer_norm",
    "add_rms_norm",
    "angles",
    "bias_gelu",
    "clip_factor",
    "cross_entropy",
    "gelu",
    "layer_norm",
    "linear_cross_entropy",
    "rms_norm",
    "rotary",
    "scale",
    "softmax",
    "swiglu",
    "using",
]
