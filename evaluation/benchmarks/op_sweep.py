"""Times the Triton programs of evaluation/benchmarks/ops.py with other constants, from which theirs were chosen."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

SWEEPS: dict[str, tuple[dict[str, tuple[int, ...]], ...]] = {
    "bias_gelu": (
        {"pairs.BIAS_TILE": (1024, 2048), "pairs.BIAS_COLUMNS": (128, 512), "pairs.BIAS_PROGRAMS_PER_SM": (4, 8, 16)},
        {"pairs.BIAS_BYTES": (2048, 8192)},
    ),
    "rotary": ({"rotary.TILE": (256, 1024)},),
    "rms_norm": ({"norms.PROGRAMS_PER_SM": (4, 6, 12)},),
    "cross_entropy, 8k": ({"cross_entropy.MAX_HELD": (4096, 16384), "cross_entropy.FORWARD_ELEMENTS": (16, 32, 64)},),
    "cross_entropy, 128k": ({"cross_entropy.MAX_HELD": (4096, 16384), "cross_entropy.FORWARD_ELEMENTS": (16, 32, 64)},),
    "swiglu": ({"pairs.TILE": (512, 2048)},),
}
"""For each operator the constants of its programs, and values to try: every combination of one dictionary's."""


@contextmanager
def tuned(variant: Mapping[str, int]) -> Iterator[None]:
    """Give constants of the Triton launchers other values within the block."""
    before = []
    for name, value in variant.items():
        module_name, constant = name.split(".")
        module = importlib.import_module(f"diagnose.kernels.ops.triton_kernels.{module_name}")
        before.append((module, constant, getattr(module, constant)))
        setattr(module, constant, value)
    try:
        yield
    finally:
        for module, constant, value in before:
            setattr(module, constant, value)


def variants(name: str) -> Iterator[dict[str, int]]:
    """Yield each combination of constants to try for an operator."""
    for constants in SWEEPS.get(name, ()):
        for values in itertools.product(*constants.values()):
            yield dict(zip(constants, values, strict=True))
