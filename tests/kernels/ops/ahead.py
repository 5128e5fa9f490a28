"""Compiles Triton programs for a GPU that is not there; run on its own, since Triton must not interpret.

Usage: ahead.py CAPABILITY…

Prints for each program its name, its target, the bytes of machine code, and whether it reads 128 bits at once.
"""

from __future__ import annotations

import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from diagnose.kernels.ops.triton_kernels import adamw, cross_entropy, gelu, norms, pairs, rotary, scale, softmax

BLOCK = {"BLOCK": 1024}


def programs():
    """Yield each program once in every form that its constants give it, as far as the forms differ in code."""
    for tanh in (False, True):
        yield gelu.forward_kernel, {"TANH": tanh, **BLOCK}
        yield gelu.backward_kernel, {"TANH": tanh, **BLOCK}
        yield pairs.bias_gelu_kernel, {"BACKWARD": tanh, "TANH": tanh, **BLOCK}
        yield rotary.rotate_kernel, {"INTERLEAVED": tanh, "BACK": tanh, **BLOCK}
    yield scale.scale_kernel, BLOCK
    yield pairs.swiglu_kernel, BLOCK
    yield pairs.swiglu_backward_kernel, BLOCK
    for one_block in (True, False):
        row = {**BLOCK, "ONE_BLOCK": one_block}
        yield softmax.forward_kernel, row
        yield softmax.backward_kernel, row
        for center in (True, False):
            norm = {"WEIGHT": True, "BIAS": center, "CENTER": center, **row}
            yield norms.forward_kernel, {"EPS": 1e-5, "RESIDUAL": True, **norm}
            yield norms.backward_kernel, {"GRAD_H": True, **norm}
    yield norms.columns_kernel, {"BIAS": True, "CENTER": True, "ROWS": 16, "COLUMNS": 128}
    yield cross_entropy.forward_kernel, {"IGNORED": -100, "SMOOTHING": 0.1, **BLOCK}
    yield cross_entropy.backward_kernel, {"IGNORED": -100, "SMOOTHING": 0.1, **BLOCK}
    for aligned in (True, False):
        forms = {"SCALE": aligned, "MAXIMIZE": aligned, "ALIGNED": aligned, "CHUNK": 65_536}
        yield adamw.adamw_kernel, {**forms, "PARAM": tl.bfloat16, "STATE": tl.float32, **BLOCK}


INTEGERS = {"target_ptr", "table_ptr", "size_ptr", "owner_ptr", "start_ptr"}
STATISTICS = {"mean_ptr", "rstd_ptr", "lse_ptr", "loss_ptr", "dweight_ptr", "dbias_ptr", "scale_ptr"}
STATISTICS |= {"cos_ptr", "sin_ptr"}
NUMBERS = {"factor", "lr", "beta1", "beta2", "decay", "eps", "bias1", "root_bias2"}


def kind(name, kernel):
    """Return the type of a program's argument, by its name."""
    if name in INTEGERS:
        return "*i64"
    if name in STATISTICS or (name == "grad_ptr" and kernel is cross_entropy.backward_kernel):
        return "*fp32"
    if name.endswith("_ptr"):
        return "*bf16"
    return "fp32" if name in NUMBERS else "i32"


def compiled(kernel, constants, capability):
    if "COMPUTE" in kernel.arg_names:
        constants = {**constants, "COMPUTE": tl.float32}
    signature = {name: "constexpr" if name in constants else kind(name, kernel) for name in kernel.arg_names}
    places = {name: (place,) for place, name in enumerate(kernel.arg_names)}
    sixteens = {places[name]: [["tt.divisibility", 16]] for name, type_ in signature.items() if type_[0] in "*i"}
    source = ASTSource(kernel, signature, {places[name]: value for name, value in constants.items()}, sixteens)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32))


def main() -> None:
    for capability in map(int, sys.argv[1:]):
        for kernel, constants in programs():
            ptx = (binary := compiled(kernel, constants, capability)).asm["ptx"]
            target = ptx.split(".target ")[1].split()[0].rstrip(",")
            name = f"{kernel.fn.__module__.rsplit('.', 1)[-1]}.{kernel.fn.__name__}"
            print(name, target, len(binary.asm["cubin"]), "wide" if ".global.v4.b32" in ptx else "narrow")


if __name__ == "__main__":
    main()
