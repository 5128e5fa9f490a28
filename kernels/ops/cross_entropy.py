"""Cross entropy that never writes the softmax of the logits to memory, nor, with the last layer, all the logits.

What it cures
    `memory-pressure` and `unfused-elementwise` at the end of language models: ``F.cross_entropy`` keeps a copy of the
    logits' size, in float32 under autocast, and the logits of a large vocabulary are the largest tensor of the step.

When it does not help
    A few classes: then the loss costs nothing either way. On a CPU, where the plain formula takes two to six times as
    long as ``F.cross_entropy``. Where `torch.compile` sees the loss, unless the logits have 16 bits.

Cost
    ``cross_entropy``: one read of the logits forward, one read and one write backward; keeps the logits and one number
    a row. ``linear_cross_entropy``: the logits of ``chunk`` rows and their gradient at a time; keeps the gradients of
    the hidden states and of the weight, which are calculated beside the loss by as many matrix products as without it
    (not yet measured on a GPU). The weight's gradient is summed in float32: with 16 bits, twice its memory meanwhile.

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

import torch
from torch import Tensor
from torch.nn import functional as F  # its usual name
from torch.utils.checkpoint import checkpoint

from diagnose.kernels.ops._linear_loss import linear_loss
from diagnose.kernels.ops._losses import rows_losses, sum_of_losses, widened
from diagnose.kernels.ops.custom_op import checked, sharded, transforming

__all__ = ["cross_entropy", "linear_cross_entropy"]

REDUCTIONS = ("mean", "sum", "none")


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
    if sharded(logits, target):
        rows = widened(logits) if logits.dim() < 3 else widened(logits).movedim(-1, 1)  # as torch's has the classes
        return F.cross_entropy(
            rows, target, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction
        )
    if reduction == "none" or transforming():  # which batches the rows' losses, not their sum
        loss = rows_losses(logits, target, ignore_index, float(label_smoothing))[0]
        return _reduced(loss, target, ignore_index, reduction)
    return sum_of_losses(logits, target, ignore_index, float(label_smoothing), reduction == "mean")[0]  # type: ignore[no-any-return]


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
    if sharded(hidden, weight, target):
        logits = F.linear(hidden, weight, bias)
        return cross_entropy(
            logits, target, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction
        )
    if reduction == "none" or transforming():
        losses = _losses_in_chunks(hidden, weight, target, bias, chunk, ignore_index, float(label_smoothing))
        return _reduced(losses, target, ignore_index, reduction)
    device = hidden.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        hidden, weight, bias = hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    wants = [torch.is_grad_enabled() and part is not None and part.requires_grad for part in (hidden, weight, bias)]
    numbers = (chunk, ignore_index, float(label_smoothing), reduction == "mean")
    return linear_loss(hidden, weight, bias, target, *numbers, *wants)[0]  # type: ignore[no-any-return]


def _losses_in_chunks(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, chunk: int, ignored: int, smoothing: float
) -> Tensor:
    """Return the loss of each row, the logits of a chunk of rows in memory, also in the backward pass."""

    def losses(rows: Tensor, wanted: Tensor) -> Tensor:
        return rows_losses(F.linear(rows, weight, bias), wanted, ignored, smoothing)[0]  # type: ignore[no-any-return]

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
