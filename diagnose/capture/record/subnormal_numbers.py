"""Finds tensors in the host's memory that hold subnormal numbers, with which a CPU computes many times as slowly.

Memory is read as it is: an operator of torch would be recorded.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from diagnose.model.limits import MIN_NUMBERS
from diagnose.model.records import SubnormalRecord

__all__ = ["subnormal_tensors"]

MAX_NUMBERS = 1 << 20  # of a tensor that are looked at, evenly spread: 2 ms
MAX_TENSORS = 2_000
MIN_SUBNORMAL_SHARE = 0.001  # of its numbers: one in a vector of eight slows all eight down
SMALLEST_NORMAL = 0x00800000  # the bits of 2**-126
_UNSIGNED = 0x7FFFFFFF


def subnormal_tensors(modules: Iterable[Any]) -> tuple[SubnormalRecord, ...]:
    """Return parameters, gradients and buffers of modules that hold subnormal numbers; none without NumPy."""
    if "numpy" not in sys.modules:
        return ()
    try:
        found = [record for name, tensor in _tensors(modules) if (record := _record(name, tensor)) is not None]
    except Exception:  # modules and tensors of the script's own classes
        return ()
    return tuple(sorted(found, key=lambda each: -each.share))


def _tensors(modules: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    seen = set[int]()
    for module in modules:
        for name, parameter in module.named_parameters():
            yield from _once(seen, f"parameter {name}", parameter)
            if parameter.grad is not None:
                yield from _once(seen, f"gradient of {name}", parameter.grad)
        for name, buffer in module.named_buffers():
            yield from _once(seen, f"buffer {name}", buffer)


def _once(seen: set[int], name: str, tensor: Any) -> Iterator[tuple[str, Any]]:
    if id(tensor) not in seen and len(seen) < MAX_TENSORS:
        seen.add(id(tensor))
        yield name, tensor


def _record(name: str, tensor: Any) -> SubnormalRecord | None:
    import numpy as np
    import torch

    usable = tensor.dtype is torch.float32 and tensor.device.type == "cpu" and tensor.is_contiguous()
    if not usable or tensor.numel() < MIN_NUMBERS:
        return None
    memory = (ctypes.c_uint32 * tensor.numel()).from_address(tensor.data_ptr())
    bits = np.frombuffer(memory, np.uint32)[:: max(tensor.numel() // MAX_NUMBERS, 1)] & _UNSIGNED
    share = float(((bits > 0) & (bits < SMALLEST_NORMAL)).mean())
    return SubnormalRecord(name=name, shape=tuple(tensor.shape), share=share) if share >= MIN_SUBNORMAL_SHARE else None
