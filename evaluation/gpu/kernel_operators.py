"""Operators against torch's, torch.compile's and Liger's, for gpu/kernels.py."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from kernel_measures import COMPILE_S, GPU, Left, Row, apart, bar, device_ms, kept, peak_mb, wall_ms
from op_subjects import SUBJECTS, Function, Subject, tensors, with_target, with_weight
from op_timing import DEVICE, both_directions, copy_ms
from ops import BANDWIDTH_BAR, COMPILE_BAR
from torch import Tensor
from torch.nn import functional as F

from diagnose.kernels import ops as mine

SIZE = 2**26 if GPU else 2**12
WIDTHS = (4_096, 65_536, 16_384) if GPU else (64, 256)  # what walks through its rows before what holds them barely
CLASSES = (8_192, 131_072) if GPU else (32, 128)
LINEAR = (8_192, 2_048, 32_768) if GPU else (64, 16, 128)  # rows, features, classes
CHUNKS = (2_048, 4_096, 1_024) if GPU else (16,)
FEW_ROWS = 8
CLOSE = 0.02  # relative, in 16 bits
OTHERS = ("torch.compile", "Liger")
BY_NAME = {subject.name: subject for subject in SUBJECTS}


@functools.cache
def liger() -> Any:
    """Return the module of Liger's operators.

    Raises:
        ImportError: it is not installed.
    """
    import liger_kernel.ops

    return liger_kernel.ops


@functools.cache
def _zeros(num: int, dtype: torch.dtype) -> Tensor:
    return torch.zeros(num, dtype=dtype, device=DEVICE)


def _liger_layer_norm(x: Tensor, weight: Tensor) -> Tensor:
    bias = _zeros(weight.numel(), weight.dtype)  # which it asks for
    return liger().LigerLayerNormFunction.apply(x, weight, bias, 1e-5)  # type: ignore[no-any-return]


def _liger_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return liger().LigerCrossEntropyFunction.apply(logits, target, None)[0]  # type: ignore[no-any-return]


LIGER: dict[str, Function] = {
    "softmax": lambda x: liger().LigerSoftmaxFunction.apply(x),  # noqa: PLW0108  # imported when it is called
    "rms_norm": lambda x, w: liger().LigerRMSNormFunction.apply(x, w, 1e-6, 0.0, "llama", False),
    "add_rms_norm": lambda x, r, w: liger().LigerFusedAddRMSNormFunction.apply(x, r, w, 1e-6, 0.0, "llama", False),
    "layer_norm": _liger_layer_norm,
    "cross_entropy": _liger_cross_entropy,  # which calculates the gradient in its forward pass
}


def _torch_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    h = x + residual
    return F.rms_norm(h, weight.shape, weight, 1e-6), h


def rows(left: Left) -> Iterator[Row]:
    """Yield the operators over rows at each width."""
    for width in WIDTHS:
        for subject in (
            replace(BY_NAME["softmax"], make=tensors(1, width)),
            replace(BY_NAME["rms_norm"], make=with_weight(1, width)),
            replace(BY_NAME["add_rms_norm"], make=with_weight(2, width), builtin=_torch_add_rms_norm),
            replace(BY_NAME["layer_norm"], make=with_weight(1, width)),
        ):
            yield from compared(subject, width, torch.bfloat16, left)


def pointwise(left: Left) -> Iterator[Row]:
    """Yield GELU, bias and GELU, and cross entropy."""
    loss = BY_NAME[next(name for name in BY_NAME if name.startswith("cross_entropy"))]
    for classes in CLASSES:
        subject = replace(loss, name="cross_entropy", make=with_target(classes))
        yield from compared(subject, classes, torch.bfloat16, left)
    bias = replace(BY_NAME["bias_gelu"], builtin=lambda x, b: F.gelu(x + b))
    gelu = Subject("gelu (erf)", tensors(1), F.gelu, F.gelu, mine.gelu, 2, 3)
    for subject, dtype in (
        (bias, torch.bfloat16),
        (bias, torch.float32),
        (gelu, torch.bfloat16),
        (gelu, torch.float32),
    ):
        yield from compared(subject, 1_024, dtype, left)


def compared(subject: Subject, width: int, dtype: torch.dtype, left: Left) -> Iterator[Row]:
    """Yield the times of each way to calculate a subject, whether ours is right, and the bars."""
    common = {"operator": subject.name, "columns": width, "dtype": str(dtype).removeprefix("torch.")}
    name, found = f"{subject.name}, {width}, {common['dtype']}", {}
    for way, function in _ways(subject):
        row: Row = {**common, "way": way}
        with kept(row):
            if left() < (COMPILE_S if way == "torch.compile" else 2.0):
                row["error"] = "left out: the time was over"
            else:
                row.update(_times(subject, function, dtype))
                found[way] = row
        yield row
    if "ours" not in found:
        return
    check: Row = {**common, "way": "ours, apart from float32"}
    with kept(check):
        check["error_of_result"], check["error_of_gradients"] = _errors(subject, width, dtype)
        worst = max(check["error_of_result"], check["error_of_gradients"])
        yield bar(f"{name}: within {CLOSE} of float32", float(worst <= CLOSE), 1.0)
    yield check
    yield bar(f"{name}: share of a copy's bandwidth", found["ours"]["share"], BANDWIDTH_BAR)
    if subject.name == "cross_entropy":
        yield bar(f"{name}: the same, forward", found["ours"]["forward_share"], BANDWIDTH_BAR)
    for other in OTHERS:
        if other in found:
            yield bar(f"{name}: {other} / ours", found[other]["both_ms"] / found["ours"]["both_ms"], COMPILE_BAR)


def _ways(subject: Subject) -> Iterator[tuple[str, Function]]:
    yield "ours", _ours(subject.ours)
    yield "torch", subject.builtin or subject.written
    torch._dynamo.reset()
    yield "torch.compile", torch.compile(subject.written, fullgraph=True, dynamic=False)
    if subject.name in LIGER:
        yield "Liger", LIGER[subject.name]


def _ours(function: Function) -> Function:
    """Return ours in the implementation that is meant: never the plain formula on a GPU."""

    def run(*arguments: Any) -> Any:
        with mine.using("triton" if GPU else "eager"):
            return function(*arguments)

    return run


def _times(subject: Subject, function: Function, dtype: torch.dtype) -> Row:
    given = subject.make(SIZE, dtype, DEVICE)
    one = copy_ms(SIZE, dtype, 15) / 2  # of one read or write; beside each, so that clocks are alike
    forward, how = device_ms(lambda: function(*given))
    both, how_both = device_ms(both_directions(function, given))
    return {
        "forward_ms": forward,
        "both_ms": both,
        "copy_ms": 2 * one,
        "forward_share": one * subject.forward / forward,
        "backward_share": one * subject.backward / max(both - forward, 1e-9),
        "share": one * (subject.forward + subject.backward) / both,
        "timed": how if how == how_both else f"{how}, {how_both}",
    }


def _errors(subject: Subject, width: int, dtype: torch.dtype) -> tuple[float, float]:
    """Return how far ours is from the expression written out in float32, for a few rows; result and gradients."""
    torch.manual_seed(0)
    given = subject.make(FEW_ROWS * width, dtype, DEVICE)
    wide = [a.detach().float().requires_grad_() if a.is_floating_point() else a for a in given]
    answers = []
    for function, inputs in ((_ours(subject.ours), given), (subject.written, wide)):
        made = function(*inputs)
        parts = made if isinstance(made, tuple) else (made,)
        torch.manual_seed(1)
        slopes = [torch.randn(part.shape, device=DEVICE).to(dtype).to(part.dtype) for part in parts]
        grads = torch.autograd.grad(parts, [a for a in inputs if a.requires_grad], slopes)
        answers.append((parts, grads))
    (parts, grads), (right, slopes) = answers
    return (
        max(apart(a.detach(), b.detach()) for a, b in zip(parts, right, strict=True)),
        max(apart(a, b) for a, b in zip(grads, slopes, strict=True)),
    )


def linear(left: Left) -> Iterator[Row]:
    """Yield time and memory of the last layer and its loss, forward and backward."""
    num, features, classes = LINEAR
    dtype = torch.bfloat16
    torch.manual_seed(0)
    hidden = torch.randn(num, features, dtype=dtype, device=DEVICE, requires_grad=True)
    weight = (0.02 * torch.randn(classes, features, dtype=dtype, device=DEVICE)).requires_grad_()
    target = torch.randint(classes, (num,), device=DEVICE)
    right: tuple[Tensor, ...] | None = None
    found: dict[str, Row] = {}
    for way, function in _linear_ways(hidden, weight, target):
        row: Row = {"operator": "linear_cross_entropy", "sizes": f"{num} × {features} × {classes}", "way": way}
        call = functools.partial(_gradients, function, (hidden, weight))
        with kept(row):
            if left() < (COMPILE_S if "compile" in way else 3.0):
                row["error"] = "left out: the time was over"
            else:
                right = right or _right(hidden, weight, target)
                row["error_of_gradients"] = max(apart(a, b) for a, b in zip(call(), right, strict=True))
                row["both_ms"], row["timed"] = device_ms(call)
                row["wall_ms"], row["peak_mb"] = wall_ms(call), peak_mb(call)
                found[way] = row
        yield row
    ours = found.get("linear_cross_entropy")
    for other in ("torch.compile", "Liger", "F.linear_cross_entropy, chunks"):
        if ours and other in found:
            what = f"linear_cross_entropy: {other} / ours"
            yield bar(f"{what}, device", found[other]["both_ms"] / ours["both_ms"], COMPILE_BAR)
            yield bar(f"{what}, wall clock", found[other]["wall_ms"] / ours["wall_ms"], COMPILE_BAR)
            if GPU:
                yield bar(f"{what}, memory", found[other]["peak_mb"] / ours["peak_mb"], COMPILE_BAR)


def _linear_ways(hidden: Tensor, weight: Tensor, target: Tensor) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    def torchs() -> Tensor:
        return F.cross_entropy(F.linear(hidden, weight), target)

    for chunk in CHUNKS:
        name = "linear_cross_entropy" + ("" if chunk == CHUNKS[0] else f", chunk={chunk}")
        yield name, _ours(functools.partial(mine.linear_cross_entropy, hidden, weight, target, chunk=chunk))
    yield "F.linear, F.cross_entropy", torchs
    yield "F.linear, cross_entropy", _ours(lambda: mine.cross_entropy(F.linear(hidden, weight), target))
    if (own := getattr(F, "linear_cross_entropy", None)) is not None:  # of the newest versions
        yield "F.linear_cross_entropy", lambda: own(hidden, weight, target)
        if (chunked := getattr(torch.nn, "LinearCrossEntropyOptions", None)) is not None:
            yield "F.linear_cross_entropy, chunks", lambda: own(hidden, weight, target, options=chunked())
    yield "Liger", lambda: liger().LigerFusedLinearCrossEntropyFunction.apply(hidden, weight, target)[0]
    torch._dynamo.reset()
    yield "torch.compile", torch.compile(torchs, fullgraph=True, dynamic=False)


def _gradients(function: Callable[[], Tensor], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(function(), inputs)


def _right(hidden: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients in float32, calculated as plainly as can be."""
    wide = [part.detach().float().requires_grad_() for part in (hidden, weight)]
    return torch.autograd.grad(F.cross_entropy(F.linear(*wide), target), wide)
