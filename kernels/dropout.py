"""Draws dropout masks on a CPU from 16-bit numbers.

What it cures
    `dropout-draws`: on CPUs where MKL does not draw, torch draws a dropout's mask number by number on one core, for
    `F.dropout` and for what `scaled_dot_product_attention` drops of its weights.

When it does not help
    On a GPU, and within what torch.compile compiles: both make masks of their own. For fewer than 16,384 elements
    torch's functions are used, whose calls take less; also under transforms of `torch.func`, whose ``randomness``
    counts, and for DTensors.

Cost
    None: the mask takes the memory that torch's takes.

Numerics
    Other elements are dropped than by torch with the same seed, as many and as independent of each other. The share is
    rounded to a multiple of 1/65536, and what stays is scaled by the rounded share, so that means are kept exactly.

Example::

    from diagnose.kernels.dropout import use_fast_dropout

    use_fast_dropout()  # at the top of a script: nn.Dropout, nn.MultiheadAttention and libraries draw masks by it
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["attention_with_dropout", "fast_dropout", "use_fast_dropout"]

LEVELS = 1 << 16
MIN_ELEMENTS = 1 << 14
# Which the functions here may be put in the place of.
_torch_dropout, _torch_attention = functional.dropout, functional.scaled_dot_product_attention


def use_fast_dropout() -> Callable[[], None]:
    """Put both functions in the place of those of ``torch.nn.functional``; return what undoes that.

    A name that was bound before, by ``from torch.nn.functional import dropout``, stays torch's.
    """
    before = functional.dropout, functional.scaled_dot_product_attention
    functional.dropout, functional.scaled_dot_product_attention = fast_dropout, attention_with_dropout

    def undo() -> None:
        functional.dropout, functional.scaled_dot_product_attention = before

    return undo


def fast_dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Do what ``torch.nn.functional.dropout`` does, with the same arguments; ``input`` has any shape and layout.

    Raises:
        ValueError: ``p`` is not within 0 to 1, as torch says.
    """
    if not training or not _is_drawn(input, p, input.numel()):
        return _torch_dropout(input, p, training, inplace)
    mask = _mask(input, round(p * LEVELS))
    return input.mul_(mask) if inplace else input * mask


def attention_with_dropout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Do what ``torch.nn.functional.scaled_dot_product_attention`` does, with the same arguments and shapes.

    It is torch's own where nothing is dropped. Where weights are dropped torch has no fused attention on a CPU either.

    Raises:
        RuntimeError: an explicit mask is given together with ``is_causal``, as torch says; or shapes do not fit.
    """
    num = query.numel() // max(query.shape[-1], 1) * key.shape[-2] if query.dim() > 1 and key.dim() > 1 else 0
    if not _is_drawn(query, dropout_p, num) or (is_causal and attn_mask is not None):
        options = {"enable_gqa": True} if enable_gqa else {}
        return _torch_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **options)
    if enable_gqa:
        key, value = (each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value))
    scores = query * (scale if scale is not None else 1 / math.sqrt(query.shape[-1])) @ key.transpose(-2, -1)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = scores.softmax(-1)
    if attn_mask is not None:  # a row of which nothing is attended to is 0, as torch has it
        weights = weights.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0)
    return fast_dropout(weights, dropout_p) @ value


def _is_drawn(input: Tensor, p: float, num: int) -> bool:
    """Return whether a mask of so many elements is drawn here: of torch's draws only long ones take longer."""
    is_plain = input.device.type == "cpu" and input.is_floating_point() and input.layout is torch.strided
    is_share = 0 < p < 1 and 0 < round(p * LEVELS) < LEVELS
    if not (is_plain and is_share and num >= MIN_ELEMENTS and type(input) in (Tensor, torch.nn.Parameter)):
        return False
    return not torch.compiler.is_compiling() and not torch._C._functorch.peek_interpreter_stack()


def _mask(input: Tensor, dropped: int) -> Tensor:
    """Return 0 for each element that is dropped and the scale for the others, in the input's type and strides."""
    num = input.numel()
    draws = torch.empty((num + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
    numbers = draws.view(torch.int16)[:num]
    mask = torch.empty_like(input, requires_grad=False).detach()
    torch.ge(numbers, dropped - LEVELS // 2, out=mask.as_strided((num,), (1,)))
    return mask.mul_(LEVELS / (LEVELS - dropped))
