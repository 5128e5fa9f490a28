"""Which implementation of an operator runs: the Triton program on GPUs, the plain formula elsewhere."""

from __future__ import annotations

import functools
import importlib.util
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeAlias

from torch import Tensor

__all__ = ["Implementation", "chosen", "interpreting", "using"]

Implementation: TypeAlias = Literal["auto", "eager", "triton", "native"]

INSTALL = "the triton package is not installed; install it with `pip install 'torch-diagnose[triton]'`"

_forced: list[Implementation] = ["auto"]  # the innermost `using` is the last; shared by threads, as backward passes are


@contextmanager
def using(implementation: Implementation) -> Iterator[None]:
    """Let every operator run in one implementation within the block, on all threads: to compare, or to rule one out.

    ``auto`` is what runs outside: ``triton`` on GPUs where it is installed, ``eager`` elsewhere. ``triton`` on a CPU
    needs Triton's interpreter (``TRITON_INTERPRET=1`` before the start). ``native`` is the compiled library of
    ``diagnose.kernels.ops.native``, of those operators that it has.

    Raises:
        ValueError: no implementation has that name.
        RuntimeError: ``triton`` is asked for and not installed.
    """
    if implementation not in ("auto", "eager", "triton", "native"):
        raise ValueError(f'using() takes "auto", "eager", "triton" or "native", not {implementation!r}.')
    if implementation == "triton" and not _has_triton():
        raise RuntimeError(f"The operators have no Triton programs here: {INSTALL}.")
    _forced.append(implementation)
    try:
        yield
    finally:
        _forced.pop()


def chosen(name: str, tensors: Sequence[Tensor]) -> Implementation:
    """Return what runs operator ``name`` on these tensors.

    Raises:
        RuntimeError: Triton was asked for on a device that it cannot run on.
    """
    forced = _forced[-1]
    device = tensors[0].device.type if tensors else "cpu"
    if forced == "triton":
        if device != "cuda" and not interpreting():
            raise RuntimeError(
                f"{name} cannot run its Triton program on {device}; move the tensors to a GPU, or set "
                "TRITON_INTERPRET=1 before the start to interpret it."
            )
        return "triton"
    if forced != "auto":
        return forced
    if device != "cuda" or interpreting():
        return "eager"
    if _has_triton():
        return "triton"
    _say_once(f"diagnose's operators run as plain PyTorch on this GPU: {INSTALL}.")
    return "eager"


def interpreting() -> bool:
    """Return whether Triton interprets its programs on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in {"1", "true", "on", "yes", "y"}


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _say_once(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=4)
