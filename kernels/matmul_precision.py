"""Switches TF32 for float32 products and convolutions.

What it cures
    `full-precision-matmul` where the model must stay in float32: on GPUs since Ampere TF32 products run several times
    faster than float32 ones.

When it does not help
    Older GPUs, which have no TF32; models that run in bfloat16 or float16 anyway (see `precision`); steps that do not
    wait for matrix products.

Cost
    Nothing but the digits.

Numerics
    Factors are rounded to 10 bits of mantissa (relative 5e-4), sums stay in float32. Losses usually agree to three
    digits; sums of many products that nearly cancel do not, so compare with `parity` before a long run.

Example::

    from diagnose.kernels.matmul_precision import fp32_precision

    with fp32_precision("tf32", convolutions="tf32"):
        for batch in loader:
            train_step(batch)
    # the flags are as they were before
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import torch

__all__ = ["Fp32Precision", "fp32_precision", "set_fp32_precision"]

Fp32Precision: TypeAlias = Literal["ieee", "tf32"]
NAMES = {"ieee": "highest", "tf32": "high"}


@contextmanager
def fp32_precision(matmuls: Fp32Precision, *, convolutions: Fp32Precision | None = None) -> Iterator[None]:
    """Set the precision of float32 products within the block; see ``set_fp32_precision``."""
    undo = set_fp32_precision(matmuls, convolutions=convolutions)
    try:
        yield
    finally:
        undo()


def set_fp32_precision(matmuls: Fp32Precision, *, convolutions: Fp32Precision | None = None) -> Callable[[], None]:
    """Set the precision of float32 matrix products, and of cuDNN's convolutions and RNNs; return the undo.

    torch has two sets of flags for this, and raises when one is read after the other alone was set. The setters used
    here write both, so that code that reads either goes on working. The undo gives each flag of every backend back what
    was set in it, also if that was nothing.

    Raises:
        ValueError: a name is neither "ieee" nor "tf32".
        RuntimeError: the script has set both kinds of flags to different things already.
    """
    for name, value in (("matmuls", matmuls), ("convolutions", convolutions)):
        if value not in NAMES and value is not None:
            raise ValueError(f'set_fp32_precision takes {name}="ieee" or "tf32", not {value!r}.')
    stored = _stored()
    undo = [_set_matmuls(matmuls)]
    if convolutions is not None:
        undo.append(_set_convolutions(convolutions))

    def restore() -> None:
        for step in undo:
            step()
        for part, value in stored:  # the newer flags last: those above write them too
            part.fp32_precision = value

    return restore


def _stored() -> list[tuple[Any, str]]:
    """Return torch's newer flags, as far as this torch has them, and what is set in each.

    One in which nothing is set reads as the next above it: the operator's, the backend's, the one for all.
    """
    backends = torch.backends
    above: tuple[Any, ...] = backends, backends.cudnn, backends.mkldnn
    names = ("matmul", "conv", "rnn")
    parts = [backends.cuda.matmul, *(getattr(part, name, None) for part in above[1:] for name in names)]
    found = []
    for part in (*above, *parts):
        if hasattr(part, "fp32_precision"):
            found.append((part, part.fp32_precision))
            if part in above:
                part.fp32_precision = "none"
    for part, value in found:
        part.fp32_precision = value
    return found


def _set_matmuls(wanted: Fp32Precision) -> Callable[[], None]:
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError as error:
        raise RuntimeError(
            "The precision of float32 matmuls was set by torch.backends.cuda.matmul.fp32_precision, and otherwise by "
            "an older flag; keep one of the two in the script (torch.set_float32_matmul_precision sets both)."
        ) from error
    torch.set_float32_matmul_precision(NAMES[wanted])
    return lambda: torch.set_float32_matmul_precision(before)


def _set_convolutions(wanted: Fp32Precision) -> Callable[[], None]:
    cudnn: Any = torch.backends.cudnn  # whose newer flags torch has no types of
    try:
        before = bool(cudnn.allow_tf32)
    except RuntimeError:  # set through one kind of flags only, which the other cannot express
        before = cudnn.conv.fp32_precision == "tf32"
    cudnn.allow_tf32 = wanted == "tf32"  # sets the newer flags too; they alone would leave this one unreadable

    def restore() -> None:
        cudnn.allow_tf32 = before

    return restore
