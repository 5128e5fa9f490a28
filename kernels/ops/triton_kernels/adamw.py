"""AdamW over a list of tensors in one launch for each kind of tensor: a table of addresses, cut into chunks."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagnose.kernels.ops.adamw import step_by_formula
from diagnose.kernels.ops.triton_kernels.layout import ELEMENTS

__all__ = ["Prepared", "step"]

CHUNK = 16_384  # elements that one program updates: a wave of programs takes 17 million, so the last one costs little
MAX_TABLES = 4  # of addresses on the device, for gradients that alternate between places
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
    Prepared(params, firsts, seconds).run(
        grads, grad_scale, number, lr, beta1, beta2, weight_decay, eps, maximize
    )  # fmt: skip


class Prepared:
    """Parameters and their states, looked at once for many steps: sorted by kind, their addresses written down."""

    def __init__(self, params: Sequence[Tensor], firsts: Sequence[Tensor], seconds: Sequence[Tensor]) -> None:
        kinds = defaultdict(list)
        for place, row in enumerate(zip(params, firsts, seconds, strict=True)):
            param, first, second = row
            dense = torch.empty_like(param).stride() == param.stride()
            alike = first.stride() == second.stride() == param.stride() and first.dtype == second.dtype
            known = param.dtype in DTYPES and first.dtype in DTYPES
            if param.numel():
                kinds[param.device, param.dtype, first.dtype, dense and alike and known].append((place, *row))
        self._kinds = [
            (_Launch if known else _ByFormula)(*(list(column) for column in zip(*rows, strict=True)))
            for (*_, known), rows in kinds.items()
        ]

    def run(self, grads: Sequence[Tensor], grad_scale: Tensor | None, *numbers: Any) -> None:
        """Run a step: the gradients in the order of the parameters, then what ``adamw_step`` takes as numbers."""
        for kind in self._kinds:
            kind.run(grads, grad_scale, *numbers)


class _ByFormula:
    """Parameters that no program is for, such as those in float64."""

    def __init__(self, places: list[int], *columns: list[Tensor]) -> None:
        self._places, self._columns = places, columns

    def run(self, grads: Sequence[Tensor], grad_scale: Tensor | None, *numbers: Any) -> None:
        params, firsts, seconds = self._columns
        step_by_formula(params, [grads[place] for place in self._places], firsts, seconds, grad_scale, *numbers)


class _Launch:
    """Dense parameters of one device and dtype: one launch."""

    def __init__(self, places: list[int], params: list[Tensor], firsts: list[Tensor], seconds: list[Tensor]) -> None:
        self._places, self._params, self._strides = places, params, list(map(Tensor.stride, params))
        self._device, self._dtypes = params[0].device, (DTYPES[params[0].dtype], DTYPES[firsts[0].dtype])
        self._kept = [[tensor.data_ptr() for tensor in column] for column in (params, firsts, seconds)]
        self._chunks = _chunks(tuple(param.numel() for param in params), self._device)
        self._tables: dict[tuple[int, ...], tuple[Tensor, bool]] = {}  # by the gradients' addresses

    def run(
        self, grads: Sequence[Tensor], grad_scale: Tensor | None, number: int, lr: float, beta1: float, beta2: float,
        weight_decay: float, eps: float, maximize: bool,
    ) -> None:  # fmt: skip
        mine = [grads[place] for place in self._places]
        if list(map(Tensor.stride, mine)) != self._strides:
            mine = [
                grad if grad.stride() == param.stride() else torch.empty_like(param).copy_(grad)
                for param, grad in zip(self._params, mine, strict=True)
            ]
        table, aligned = self._table(tuple(map(Tensor.data_ptr, mine)))
        sizes, owners, starts = self._chunks
        scale = table if grad_scale is None else grad_scale.to(self._device)
        with torch.cuda.device_of(self._params[0]):
            adamw_kernel[(len(owners),)](
                table, sizes, owners, starts, scale, len(mine), lr, beta1, beta2, weight_decay, eps,
                1 - beta1**number, (1 - beta2**number) ** 0.5, grad_scale is not None, maximize, *self._dtypes, aligned,
                CHUNK, ELEMENTS,
            )  # fmt: skip

    def _table(self, addresses: tuple[int, ...]) -> tuple[Tensor, bool]:
        """Return the table of addresses on the device, and whether all allow reads of 128 bits.

        Gradients mostly come back to where they were: the last few tables are kept.
        """
        found = self._tables.get(addresses)
        if found is None:
            params, firsts, seconds = self._kept
            column = [*params, *addresses, *firsts, *seconds]
            table = _moved(torch.tensor(column, dtype=torch.int64), self._device)
            found = table, all(address % 16 == 0 for address in column)
            if len(self._tables) == MAX_TABLES:
                del self._tables[next(iter(self._tables))]
            self._tables[addresses] = found
        return found


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
