"""AdamW over a list of tensors in one launch for each kind of tensor: a table of addresses, cut into chunks."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagnose.kernels.ops.adamw import step_by_formula
from diagnose.kernels.ops.triton_kernels.layout import ELEMENTS

__all__ = ["step"]

CHUNK = 65_536  # elements that one program updates; a table of chunks stays small for billions of parameters
DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@triton.jit
def _pointer(table_ptr, place, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    pointer = tl.load(table_ptr + place).to(tl.pointer_type(DTYPE))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def _loaded(pointer, at, size, MASKED: tl.constexpr):
    if MASKED:
        return tl.load(pointer + at, mask=at < size).to(tl.float32)
    return tl.load(pointer + at).to(tl.float32)  # without a mask, neighbours are read 128 bits at once


@triton.jit
def _stored(pointer, value, at, size, MASKED: tl.constexpr):
    if MASKED:
        tl.store(pointer + at, value.to(pointer.dtype.element_ty), mask=at < size)
    else:
        tl.store(pointer + at, value.to(pointer.dtype.element_ty))


@triton.jit
def _update(
    param_ptr, grad_ptr, m_ptr, v_ptr, at, size, scale, lr, beta1, beta2, decay, eps, bias1, root_bias2,
    MASKED: tl.constexpr,
):  # fmt: skip
    # p = p (1 - lr decay) - lr / bias1 m / (sqrt(v) / sqrt(bias2) + eps)
    p = _loaded(param_ptr, at, size, MASKED)
    grad = _loaded(grad_ptr, at, size, MASKED) * scale
    m = _loaded(m_ptr, at, size, MASKED)
    v = _loaded(v_ptr, at, size, MASKED)
    m = m + (1.0 - beta1) * (grad - m)
    v = v * beta2 + (1.0 - beta2) * grad * grad
    p = p * (1.0 - lr * decay) - (lr / bias1) * m / (tl.sqrt(v) / root_bias2 + eps)
    _stored(param_ptr, p, at, size, MASKED)
    _stored(m_ptr, m, at, size, MASKED)
    _stored(v_ptr, v, at, size, MASKED)


@triton.jit
def adamw_kernel(
    table_ptr, size_ptr, owner_ptr, start_ptr, scale_ptr, count, lr, beta1, beta2, decay, eps, bias1, root_bias2,
    SCALE: tl.constexpr, MAXIMIZE: tl.constexpr, PARAM: tl.constexpr, STATE: tl.constexpr, ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    owner = tl.load(owner_ptr + tl.program_id(0))
    first = tl.multiple_of(tl.load(start_ptr + tl.program_id(0)), CHUNK)
    size = tl.load(size_ptr + owner)
    param_ptr = _pointer(table_ptr, owner, PARAM, ALIGNED)
    grad_ptr = _pointer(table_ptr, owner + count, PARAM, ALIGNED)
    m_ptr = _pointer(table_ptr, owner + 2 * count, STATE, ALIGNED)
    v_ptr = _pointer(table_ptr, owner + 3 * count, STATE, ALIGNED)
    scale = 1.0
    if SCALE:
        scale = tl.load(scale_ptr).to(tl.float32)
    if MAXIMIZE:
        scale = -scale
    for start in range(0, tl.minimum(CHUNK, size - first).to(tl.int32), BLOCK):
        at = first + start + tl.arange(0, BLOCK)
        if first + start + BLOCK <= size:
            _update(
                param_ptr, grad_ptr, m_ptr, v_ptr, at, size, scale, lr, beta1, beta2, decay, eps, bias1, root_bias2,
                False,
            )  # fmt: skip
        else:
            _update(
                param_ptr, grad_ptr, m_ptr, v_ptr, at, size, scale, lr, beta1, beta2, decay, eps, bias1, root_bias2,
                True,
            )  # fmt: skip


def step(
    params: Sequence[Tensor], grads: Sequence[Tensor], firsts: Sequence[Tensor], seconds: Sequence[Tensor],
    grad_scale: Tensor | None, number: int, lr: float, beta1: float, beta2: float, weight_decay: float, eps: float,
    maximize: bool,
) -> None:  # fmt: skip
    numbers = (number, lr, beta1, beta2, weight_decay, eps, maximize)
    kinds = defaultdict(list)
    for row in zip(params, grads, firsts, seconds, strict=True):
        param, _, first, second = row
        dense = torch.empty_like(param).stride() == param.stride()
        alike = first.stride() == second.stride() == param.stride() and first.dtype == second.dtype
        known = param.dtype in DTYPES and first.dtype in DTYPES
        if param.numel():
            kinds[param.device, param.dtype, first.dtype, dense and alike and known].append(row)
    for (device, *_, known), rows in kinds.items():
        run: Callable[..., None] = _launch if known else step_by_formula
        scale = None if grad_scale is None else grad_scale.to(device)
        run(*(list(column) for column in zip(*rows, strict=True)), scale, *numbers)


def _launch(params, grads, firsts, seconds, scale, number, lr, beta1, beta2, weight_decay, eps, maximize):
    grads = [
        grad if grad.stride() == param.stride() else torch.empty_like(param).copy_(grad)
        for param, grad in zip(params, grads, strict=True)
    ]
    device = params[0].device
    addresses = tuple(tensor.data_ptr() for column in (params, grads, firsts, seconds) for tensor in column)
    table = _on_device(addresses, device)
    sizes, owners, starts = _chunks(tuple(param.numel() for param in params), device)
    with torch.cuda.device_of(params[0]):
        adamw_kernel[(len(owners),)](
            table, sizes, owners, starts, table if scale is None else scale, len(params), lr, beta1, beta2,
            weight_decay, eps, 1 - beta1**number, (1 - beta2**number) ** 0.5, scale is not None, maximize,
            DTYPES[params[0].dtype], DTYPES[firsts[0].dtype], all(address % 16 == 0 for address in addresses),
            CHUNK, ELEMENTS,
        )  # fmt: skip


@functools.lru_cache(maxsize=16)
def _on_device(addresses: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the table of addresses, kept while they stay: gradients mostly come back to where they were."""
    return _moved(torch.tensor(addresses, dtype=torch.int64), device)


@functools.lru_cache(maxsize=16)
def _chunks(sizes: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tensors' sizes, and for each chunk its tensor and its first element."""
    on_host = torch.tensor(sizes, dtype=torch.int64)
    counts = (on_host + CHUNK - 1) // CHUNK
    owners = torch.repeat_interleave(torch.arange(len(sizes)), counts)
    before = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    starts = (torch.arange(len(owners)) - before) * CHUNK
    return _moved(on_host, device), _moved(owners, device), _moved(starts, device)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
