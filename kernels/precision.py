"""Mixed precision in one object: dtype, scaler, order of a step.

What it cures
    `full-precision-matmul`: products run in bfloat16 or float16 on the tensor cores, and activations take half the
    memory (part of `memory-pressure`).

When it does not help
    Steps that wait for the host or for data; models of many small operators, which the casts add to. On CPUs without
    bfloat16 instructions it is slower.

Cost
    Casts at the borders of autocast. With float16 one pass over the gradients a step, which looks for infinities.

Numerics
    Different: about three digits for bfloat16, four for float16 within its range of 6e-8 to 65504; weights, optimizer
    state and reductions stay float32. float16 scales the loss, so that small gradients do not vanish; steps whose
    gradients overflowed are skipped and counted. Compare with `parity` before a long run.

Example::

    from diagnose.kernels.precision import Precision

    precision = Precision("cuda")  # bfloat16 where the device has it, else float16 with a scaler
    for x, y in loader:
        with precision.autocast():
            loss = criterion(model(x), y)
        precision.backward(loss)
        precision.step(optimizer, clip_norm=1.0)
        optimizer.zero_grad(set_to_none=True)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from diagnose.kernels._gradient_norm import clip_gradients, local
from diagnose.kernels.deferred_metrics import DeferredMetrics
from diagnose.kernels.matmul_precision import Fp32Precision, fp32_precision, set_fp32_precision

__all__ = ["OverflowAbort", "Precision", "best_dtype"]

MAX_SKIPPED = 25
"""Steps in a row: the scale begins at 2**16, so a sound run may skip 16 at first and seldom more than one later."""

INITIAL_SCALE = 2.0**16
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class OverflowAbort(ArithmeticError):
    """Gradients overflowed too many times in a row: training makes no progress."""


class Precision:
    """Holds what mixed precision needs over a training run.

    ``device`` is a torch device or its type. ``dtype`` is chosen by ``best_dtype`` unless given; torch.float32 switches
    everything off. ``float32`` is how products that stay in float32 run, "ieee" or "tf32": it sets torch's flags for
    the whole process, and ``undo`` takes that back. ``skipped`` counts the steps that were left out because gradients
    overflowed, as far as known: the newest step may still be on its way from the device, since nothing here waits.
    ``skipped_on_device``: those of them for which ``step`` had returned True.

    Raises:
        ValueError: autocast has no such dtype, ``float32`` has another value, or ``max_skipped`` is less than one.
    """

    def __init__(
        self,
        device: torch.device | str,
        dtype: torch.dtype | None = None,
        *,
        float32: Fp32Precision | None = None,
        max_skipped: int = MAX_SKIPPED,
        initial_scale: float = INITIAL_SCALE,
    ) -> None:
        self.device_type = torch.device(device).type
        self.dtype = best_dtype(self.device_type) if dtype is None else dtype
        if self.dtype not in DTYPES:
            raise ValueError(
                f"Precision takes bfloat16, float16 or float32, not {dtype}; leave it out for the best one."
            )
        if max_skipped < 1:
            raise ValueError(f"Precision needs max_skipped >= 1, not {max_skipped}.")
        self.max_skipped = max_skipped
        self.scaler = torch.amp.GradScaler(
            self.device_type, init_scale=initial_scale, enabled=self.dtype is torch.float16
        )
        self.steps = self.skipped = self.skipped_in_a_row = self.skipped_on_device = 0
        self._scales = DeferredMetrics()
        self._last_scale = initial_scale
        self._is_off = False
        self.float32 = float32
        self._restore = set_fp32_precision(float32, convolutions=float32) if float32 else None

    @property
    def enabled(self) -> bool:
        """Return whether anything runs in less than float32."""
        return self.dtype is not torch.float32 and not self._is_off

    def autocast(self) -> torch.autocast:
        """Return the context for forward pass and loss."""
        return torch.autocast(self.device_type, self.dtype if self.enabled else None, enabled=self.enabled)

    def backward(self, loss: Tensor) -> None:
        """Compute gradients of the scaled loss; outside of autocast, also when called within it."""
        with torch.autocast(self.device_type, enabled=False):
            (self.scaler.scale(loss) if self._scales_loss else loss).backward()  # type: ignore[no-untyped-call]

    def step(
        self, *optimizers: Optimizer, clip_norm: float | None = None, scale_by: Tensor | float | None = None
    ) -> bool:
        """Unscale, multiply gradients by ``scale_by``, clip them together, step each optimizer, update the scale.

        Returns whether every optimizer stepped; a fused one decides on the device, which is not waited for, and counts
        as stepped.

        Raises:
            ValueError: weights are float16 themselves, whose gradients cannot be unscaled; or, in float16, an optimizer
                has sharded parameters and whole ones.
            OverflowAbort: ``max_skipped`` steps in a row were skipped; this one was not taken.
        """
        self._watch()
        for optimizer in optimizers if self._scales_loss else ():
            _check_weights(optimizer)
            self.scaler.unscale_(optimizer)
        gradients = _gradients(optimizers)
        if scale_by is not None and gradients:
            torch._foreach_mul_(gradients, scale_by)
        if clip_norm is not None:
            clip_gradients((p for o in optimizers for p in _parameters(o)), clip_norm)
        stepped = [self._step_one(optimizer) for optimizer in optimizers]
        self.steps += 1
        if self._scales_loss:
            self.scaler.update()
            scale = self.scaler._get_scale_async()
            if scale is not None:
                self._scales.push(self.steps, scale=scale, counted=all(stepped))
        return all(stepped)

    @property
    def _scales_loss(self) -> bool:
        return self.scaler.is_enabled() and not self._is_off

    def _step_one(self, optimizer: Optimizer) -> bool:
        if not self._scales_loss or all(p.grad is None for p in _parameters(optimizer)):
            optimizer.step()  # without gradients it does nothing, and the scaler would have nothing to look at
            return True
        done: list[bool] = []
        handle = optimizer.register_step_post_hook(lambda *_: done.append(True))
        try:
            self.scaler.step(optimizer)
        finally:
            handle.remove()
        return bool(done)

    def _watch(self, *, everything: bool = False) -> None:
        """Count the skipped steps that are known by now: each lowered the scale."""
        before = self._last_scale
        for _, values in self._scales.drain() if everything else self._scales.ready():
            scale = float(values["scale"])  # type: ignore[arg-type]  # one number
            if scale < before:
                self.skipped += 1
                self.skipped_in_a_row += 1
                self.skipped_on_device += bool(values["counted"])
            else:
                self.skipped_in_a_row = 0
            before = self._last_scale = scale
        if self.skipped_in_a_row >= self.max_skipped:
            raise OverflowAbort(
                f"The gradients of {self.skipped_in_a_row} steps in a row overflowed; the loss is probably infinite or "
                "NaN: look at it without mixed precision, lower the learning rate, or use bfloat16."
            )

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        """Train in float32, without TF32 where ``float32`` was given, within the block, such as for a comparison."""
        before, self._is_off = self._is_off, True
        exact = fp32_precision("ieee", convolutions="ieee") if self.float32 else nullcontext()
        try:
            with exact:
                yield
        finally:
            self._is_off = before

    def undo(self) -> None:
        """Give torch's flags for float32 products back the values that they had before; a second call does nothing."""
        if self._restore is not None:
            self._restore()
            self._restore = None

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and the counters, for a checkpoint; waits for the device."""
        self._watch(everything=True)
        return {
            "dtype": str(self.dtype),
            "scaler": self.scaler.state_dict(),
            "steps": self.steps,
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the counters, and the scale where both runs have one: other GPUs may have another dtype.

        Raises:
            ValueError: it is the state of something else, such as of a GradScaler alone.
        """
        if not {"scaler", "steps", "skipped", "skipped_in_a_row"} <= set(state):
            raise ValueError(
                f"A state with {sorted(state)} is not one of Precision; load a GradScaler's into precision.scaler."
            )
        self.steps, self.skipped = state["steps"], state["skipped"]
        self.skipped_in_a_row = state["skipped_in_a_row"]
        self._scales = DeferredMetrics()
        if self.scaler.is_enabled() and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
            self._last_scale = float(state["scaler"]["scale"])


def best_dtype(device_type: str) -> torch.dtype:
    """Return bfloat16 where the device computes in it, else float16; float32 where autocast has neither."""
    if device_type == "cuda":
        supported = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if supported else torch.float16
    if device_type == "mps":
        return torch.float16
    return torch.bfloat16 if torch.amp.is_autocast_available(device_type) else torch.float32


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _gradients(optimizers: Iterable[Optimizer]) -> list[Tensor]:
    return [local(p.grad) for optimizer in optimizers for p in _parameters(optimizer) if p.grad is not None]


def _check_weights(optimizer: Optimizer) -> None:
    if len({hasattr(p, "to_local") for p in _parameters(optimizer)}) > 1:
        raise ValueError(
            "torch's scaler takes no mixture of split and whole parameters, as tensor_parallel leaves them; use "
            "bfloat16, which needs no scaler."
        )
    if any(p.dtype is torch.float16 for p in _parameters(optimizer)):
        raise ValueError(
            "The optimizer holds float16 weights, whose gradients cannot be unscaled; keep the model in float32 "
            "and leave model.half() out: autocast does the rest."
        )
