"""Cross entropy that never writes the softmax of the logits to memory, nor, with the last layer, all the logits.

What it cures
    `memory-pressure` and `unfused-elementwise` at the end of language models: ``F.cross_entropy`` keeps a copy of the
    logits' size, in float32 under autocast, and the logits of a large vocabulary are the largest tensor of the step.

When it does not help
    A few classes: then the loss costs nothing either way. On a CPU, where the plain formula takes two to six times as
    long as ``F.cross_entropy``. ``linear_cross_entropy`` runs four matrix products instead
    of three, so it is slower, not faster, where memory is no concern.

Cost
    ``cross_entropy``: one read of the logits forward, one read and one write backward; keeps the logits and one number
    a row. ``linear_cross_entropy``: the logits of ``chunk`` rows at a time, in both directions; keeps the hidden
    states, and adds to the weight's gradient once for each chunk.

Numerics
    Calculated and returned in float32 (float64 for float64), also for 16-bit logits, where ``F.cross_entropy`` rounds
    the loss to 16 bits. A target outside the classes that is not ``ignore_index`` is an error on the CPU; on a GPU,
    where looking would mean waiting, the Triton program makes the loss NaN.

Example::

    from diagnose.kernels.ops.cross_entropy import cross_entropy, linear_cross_entropy

    hidden, head = torch.randn(8, 64, requires_grad=True), torch.randn(1000, 64, requires_grad=True)
    target = torch.randint(1000, (8,))
    # before: loss = F.cross_entropy(hidden @ head.t(), target)
    loss = cross_entropy(hidden @ head.t(), target)
    loss = linear_cross_entropy(hidden, head, target, chunk=4)
    loss.backward()
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # its usual name
from torch.utils.checkpoint import checkpoint

from diagnose.kernels.ops.custom_op import checked, operator, transforming

__all__ = ["cross_entropy", "linear_cross_entropy"]

REDUCTIONS = ("mean", "sum", "none")
TARGETS = (torch.int64,)


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Return the cross entropy of ``logits`` (..., classes) and ``target`` (...), class numbers as int64.

    The classes are the last dimension, where ``F.cross_entropy`` has them second. Rows whose target is ``ignore_index``
    count for nothing; the mean over none is NaN, as in torch.

    Raises:
        TypeError: ``logits`` is no floating tensor, or ``target`` not int64.
        ValueError: the shapes do not fit; a number is out of its range; on a CPU, a target is no class.
    """
    _check_numbers(label_smoothing, reduction)
    checked("cross_entropy", logits=logits)
    if reduction == "none" or transforming():  # which batches the rows' losses, not their sum
        loss = _cross_entropy(logits, target, ignore_index, float(label_smoothing))[0]
        return _reduced(loss, target, ignore_index, reduction)
    return _cross_entropy_sum(logits, target, ignore_index, float(label_smoothing), reduction == "mean")[0]  # type: ignore[no-any-return]


def linear_cross_entropy(  # a layer's arguments, and a loss's
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    chunk: int = 2048,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Return ``cross_entropy(F.linear(hidden, weight, bias), target)`` with the logits of ``chunk`` rows in memory.

    ``hidden`` (..., features), ``weight`` (classes, features), ``target`` (...). The gradients of a loss that is
    reduced are calculated together with it, chunk by chunk, and kept until the backward pass; where ``reduction`` is
    "none", each chunk's logits are calculated again there. Follows autocast.

    Raises:
        TypeError: ``hidden`` or ``weight`` is no floating tensor, or ``target`` not int64.
        ValueError: the shapes do not fit; a number is out of its range; on a CPU, a target is no class.
    """
    _check_numbers(label_smoothing, reduction)
    checked("linear_cross_entropy", hidden=hidden, weight=weight, bias=bias)
    if weight.dim() != 2 or hidden.shape[-1:] != weight.shape[1:] or hidden.shape[:-1] != target.shape:
        raise ValueError(
            "linear_cross_entropy needs hidden (..., features), weight (classes, features) and target (...), not "
            f"{tuple(hidden.shape)}, {tuple(weight.shape)} and {tuple(target.shape)}."
        )
    if chunk < 1:
        raise ValueError(f"linear_cross_entropy needs chunk >= 1, not {chunk}.")

    if reduction == "none" or transforming():
        losses = _losses_in_chunks(hidden, weight, target, bias, chunk, ignore_index, float(label_smoothing))
        return _reduced(losses, target, ignore_index, reduction)
    device = hidden.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        hidden, weight, bias = hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    wants = [torch.is_grad_enabled() and part is not None and part.requires_grad for part in (hidden, weight, bias)]
    numbers = (chunk, ignore_index, float(label_smoothing), reduction == "mean")
    return _linear_cross_entropy(hidden, weight, bias, target, *numbers, *wants)[0]  # type: ignore[no-any-return]


def _losses_in_chunks(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, chunk: int, ignored: int, smoothing: float
) -> Tensor:
    """Return the loss of each row, the logits of a chunk of rows in memory, also in the backward pass."""

    def losses(rows: Tensor, wanted: Tensor) -> Tensor:
        return _cross_entropy(F.linear(rows, weight, bias), wanted, ignored, smoothing)[0]  # type: ignore[no-any-return]

    rows, wanted = hidden.flatten(0, -2) if hidden.dim() > 1 else hidden.unsqueeze(0), target.reshape(-1)
    parts = [
        losses(*part) if transforming() else checkpoint(losses, *part, use_reentrant=False, preserve_rng_state=False)
        for part in zip(torch.split(rows, chunk), torch.split(wanted, chunk), strict=True)
    ]
    return torch.cat(parts).reshape(target.shape)


def _check_numbers(label_smoothing: float, reduction: str) -> None:
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"cross_entropy needs label_smoothing within 0 and 1, not {label_smoothing}.")
    if reduction not in REDUCTIONS:
        raise ValueError(f"cross_entropy needs reduction in {', '.join(REDUCTIONS)}, not {reduction!r}.")


def _reduced(loss: Tensor, target: Tensor, ignored: int, reduction: str) -> Tensor:
    if reduction == "mean":
        return loss.sum() / (target != ignored).sum()
    return loss.sum() if reduction == "sum" else loss


def _check_target(operation: str, target: Tensor, beside: Tensor) -> None:
    checked(operation, target=target, dtypes=TARGETS)
    if target.device != beside.device:
        raise ValueError(
            f"{operation} needs all tensors on one device, not on {beside.device} and target on {target.device}."
        )


def _check(logits: Tensor, target: Tensor, *_: Any) -> None:
    checked("cross_entropy", logits=logits)
    _check_target("cross_entropy", target, logits)
    if logits.dim() == 0 or logits.shape[:-1] != target.shape:
        raise ValueError(
            f"cross_entropy needs target in the shape of logits without their last dimension, which are "
            f"{tuple(logits.shape)}, not {tuple(target.shape)}."
        )
    if logits.shape[-1] == 0 and target.numel():
        raise ValueError("cross_entropy needs logits of at least one class, not of none.")


def _eager(logits: Tensor, target: Tensor, ignored: int, smoothing: float) -> tuple[Tensor, Tensor]:
    wide = _wide(logits)
    kept = target != ignored
    index = torch.where(kept, target, 0)
    num = logits.shape[-1]
    _refuse_strangers(index, num)
    if num == 0:
        return wide.sum(-1), wide.new_zeros((*target.shape, 2))
    # The largest logit goes first: what is left is near zero, and no digits of it are lost to logits that are not.
    largest = wide.detach().amax(-1, keepdim=True)
    largest = torch.where(largest.isfinite(), largest, 0.0)
    shifted = wide - largest
    rest = shifted.exp().sum(-1).log()
    loss = rest - (1 - smoothing) * shifted.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    if smoothing:
        loss = loss - smoothing * shifted.mean(-1)
    return torch.where(kept, loss, 0.0).contiguous(), torch.stack((largest.squeeze(-1), rest), -1).contiguous()


def _refuse_strangers(index: Tensor, num: int) -> None:
    """Raise where a target is no class. Only looks at real numbers on the CPU, which are at hand without waiting."""
    if index.device.type != "cpu" or not index.numel() or transforming():
        return
    if type(index) is Tensor:  # no fake one
        least, most = (int(number) for number in index.aminmax())
        if least < 0 or most >= num:
            wrong = least if least < 0 else most
            raise ValueError(f"cross_entropy needs targets from 0 to {num - 1}, or ignore_index, not {wrong}.")


def _eager_backward(  # the schema's
    grad: Tensor, logits: Tensor, target: Tensor, lse: Tensor, ignored: int, smoothing: float
) -> Tensor:
    del lse  # calculated again, so that derivatives of this formula see where it comes from
    ignore = (target == ignored).unsqueeze(-1)
    index = target.unsqueeze(-1).masked_fill(ignore, 0)
    share = torch.softmax(_wide(logits), -1)
    hit = torch.full_like(index, smoothing - 1, dtype=share.dtype)
    even, factor = smoothing / max(logits.shape[-1], 1), grad.unsqueeze(-1)
    if transforming():  # which needs the values that in-place operators would overwrite
        share = torch.where(ignore, 0.0, (share.scatter_add(-1, index, hit) - even) * factor)
    elif share.numel():
        share = share.scatter_add_(-1, index, hit).sub_(even).mul_(factor).masked_fill_(ignore, 0.0)
    return share.to(logits.dtype).contiguous()


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _eager_sum(
    logits: Tensor, target: Tensor, ignored: int, smoothing: float, mean: bool
) -> tuple[Tensor, Tensor, Tensor]:
    losses, lse = _eager(logits, target, ignored, smoothing)
    factor = (target != ignored).sum().to(losses.dtype).reciprocal() if mean else losses.new_ones(())
    return losses.sum() * factor, lse, factor


def _fake(logits: Tensor, target: Tensor, ignored: int, smoothing: float) -> tuple[Tensor, Tensor]:
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return logits.new_empty(target.shape, dtype=dtype), logits.new_empty((*target.shape, 2), dtype=dtype)


def _fake_sum(
    logits: Tensor, target: Tensor, ignored: int, smoothing: float, mean: bool
) -> tuple[Tensor, Tensor, Tensor]:
    losses, lse = _fake(logits, target, ignored, smoothing)
    return losses.new_empty(()), lse, losses.new_empty(())


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:  # torch's names
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(inputs[0], inputs[1], output[1])
    ctx.numbers = inputs[2:]


def _backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    if grad is None:
        return None, None, None, None
    return _cross_entropy_backward(grad, *ctx.saved_tensors, *ctx.numbers), None, None, None


def _setup_sum(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(inputs[0], inputs[1], *output[1:])
    ctx.numbers = inputs[2:4]


def _backward_sum(ctx: Any, grad: Tensor | None, *_: Tensor | None) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 5
    logits, target, lse, factor = ctx.saved_tensors
    of_each = (grad * factor).expand(target.shape)
    return _cross_entropy_backward(of_each, logits, target, lse, *ctx.numbers), None, None, None, None


_cross_entropy = operator(
    "diagnose::cross_entropy",
    "(Tensor logits, Tensor target, int ignore_index, float label_smoothing) -> (Tensor, Tensor)",
    check=_check,
    eager=_eager,
    fake=_fake,
    program="cross_entropy:forward",
    rows=(0, 1),
)
_cross_entropy_backward = operator(
    "diagnose::cross_entropy_backward",
    "(Tensor grad, Tensor logits, Tensor target, Tensor lse, int ignore_index, float label_smoothing) -> Tensor",
    check=lambda grad, logits, target, *_: _check(logits, target),
    eager=_eager_backward,
    fake=lambda grad, logits, *_: logits.new_empty(logits.shape),
    program="cross_entropy:backward",
    rows=(0, 1, 2, 3),
    twice=True,
)
_cross_entropy_sum = operator(
    "diagnose::cross_entropy_sum",
    "(Tensor logits, Tensor target, int ignore_index, float label_smoothing, bool mean) -> (Tensor, Tensor, Tensor)",
    check=_check,
    eager=_eager_sum,
    fake=_fake_sum,
    program="cross_entropy:reduced",
)
_cross_entropy.register_autograd(_backward, setup_context=_setup)
_cross_entropy_sum.register_autograd(_backward_sum, setup_context=_setup_sum)


def _check_linear(hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *_: Any) -> None:
    checked("linear_cross_entropy", hidden=hidden, weight=weight, bias=bias)
    _check_target("linear_cross_entropy", target, hidden)
    if not hidden.dtype == weight.dtype == (weight if bias is None else bias).dtype:
        raise TypeError(
            f"linear_cross_entropy needs hidden, weight and bias in one dtype, not {hidden.dtype} and {weight.dtype}; "
            "convert one with .to()."
        )


def _linear(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, chunk: int, ignored: int, smoothing: float,
    mean: bool, with_hidden: bool, with_weight: bool, with_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the loss and its gradients; the logits of one chunk of rows, and their gradient, are in memory."""
    loss, dhidden, dweight, dbias = _fake_linear(
        hidden, weight, bias, target, chunk, ignored, smoothing, mean, with_hidden, with_weight, with_bias
    )
    for part in (loss, dweight, dbias):
        part.zero_()
    rows, wanted = hidden.reshape(-1, hidden.shape[-1]), target.reshape(-1)
    factor = (wanted != ignored).sum().to(loss.dtype).reciprocal() if mean else loss.new_ones(())
    with torch.autocast(hidden.device.type, enabled=False), torch.no_grad():
        for start in range(0, len(rows), chunk):
            part, its = rows[start : start + chunk], wanted[start : start + chunk]
            logits = F.linear(part, weight, bias)
            losses, lse = _cross_entropy(logits, its, ignored, smoothing)
            loss += losses.sum()
            if not (with_hidden or with_weight or with_bias):
                continue
            slope = _cross_entropy_backward(factor.expand(its.shape), logits, its, lse, ignored, smoothing)
            del logits
            if with_hidden:
                torch.mm(slope, weight, out=dhidden.view(-1, hidden.shape[-1])[start : start + chunk])
            if with_weight:
                dweight.addmm_(slope.t(), part)
            if with_bias:
                dbias += slope.sum(0)
    return loss * factor, dhidden, dweight, dbias


def _fake_linear(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, chunk: int, ignored: int, smoothing: float,
    mean: bool, with_hidden: bool, with_weight: bool, with_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    return (
        hidden.new_empty((), dtype=dtype),
        hidden.new_empty(hidden.shape if with_hidden else 0),
        weight.new_empty(weight.shape if with_weight else 0),
        weight.new_empty(weight.shape[:1] if with_bias else 0),
    )


def _linear_backward(
    grad: Tensor, dhidden: Tensor, dweight: Tensor, dbias: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(part * grad.to(part.dtype) for part in (dhidden, dweight, dbias))  # type: ignore[return-value]  # three


def _linear_backward_formula(
    grad: Tensor, dhidden: Tensor, dweight: Tensor, dbias: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None,
    target: Tensor, ignored: int, smoothing: float, mean: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the same from the logits, all at once, so that a second derivative sees where it comes from."""
    rows, wanted = hidden.reshape(-1, hidden.shape[-1]), target.reshape(-1)
    kept = (wanted != ignored).to(_wide(rows).dtype)
    of_each = (grad * (kept / kept.sum() if mean else kept)).expand(wanted.shape)
    logits = F.linear(rows, weight, bias)
    slope = _eager_backward(of_each, logits, wanted, logits, ignored, smoothing)
    return (
        (slope @ weight).reshape(hidden.shape) if dhidden.numel() else dhidden.clone(),
        slope.t() @ rows if dweight.numel() else dweight.clone(),
        slope.sum(0) if dbias.numel() else dbias.clone(),
    )


def _setup_linear(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # torch's names
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[1:], *inputs[:4])
    ctx.numbers, ctx.wants = inputs[5:8], inputs[8:]


def _backward_linear(ctx: Any, grad: Tensor | None, *_: Tensor | None) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 11
    found = _linear_cross_entropy_backward(grad, *ctx.saved_tensors, *ctx.numbers)
    slopes = [part if wanted else None for part, wanted in zip(found, ctx.wants, strict=True)]
    return (*slopes, *(None,) * 8)


_linear_cross_entropy = operator(
    "diagnose::linear_cross_entropy",
    "(Tensor hidden, Tensor weight, Tensor? bias, Tensor target, int chunk, int ignore_index, float label_smoothing,"
    " bool mean, bool with_hidden, bool with_weight, bool with_bias) -> (Tensor, Tensor, Tensor, Tensor)",
    check=_check_linear,
    eager=_linear,
    fake=_fake_linear,
)
_linear_cross_entropy_backward = operator(
    "diagnose::linear_cross_entropy_backward",
    "(Tensor grad, Tensor dhidden, Tensor dweight, Tensor dbias, Tensor hidden, Tensor weight, Tensor? bias,"
    " Tensor target, int ignore_index, float label_smoothing, bool mean) -> (Tensor, Tensor, Tensor)",
    check=lambda *_: None,
    eager=_linear_backward,
    fake=lambda grad, dhidden, dweight, dbias, *_: tuple(map(torch.empty_like, (dhidden, dweight, dbias))),
    twice=_linear_backward_formula,
)
_linear_cross_entropy.register_autograd(_backward_linear, setup_context=_setup_linear)
