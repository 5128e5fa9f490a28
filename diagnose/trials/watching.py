"""What a trial takes down of the training without waiting for the device: losses, skipped steps, norms, memory."""

from __future__ import annotations

import functools
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakSet

from diagnose.changes.common.change import replace_attribute

__all__ = ["DevicePeak", "Numbers", "PeakMemory", "Returned", "SampleDraws", "seed_everything"]

MAX_RECORDED_LOSSES = 2000
MAX_LOOKED_AT = 3  # batches whose samples are looked at, all of them warm-up
MAX_NORMS = 8  # optimizer steps whose gradients are measured: during the warm-up, since a norm costs time
CLEAR_PEAK = "5"  # linux, proc(5): clear_refs resets the peak of the resident set


class Numbers:
    """Hears each backward pass's loss, the gradients' norm before the first optimizer steps, and what scalers skip.

    ``first_epoch`` is how many losses came before a DataLoader began its second epoch, None where none did.
    """

    def __init__(self) -> None:
        self.first_epoch: int | None = None
        self._loaders: WeakSet[Any] = WeakSet()  # that began an epoch
        self._losses: list[Any] = []
        self._overflows: list[list[Any]] = []  # of each step of a GradScaler, one number a device
        self._norms: list[Any] = []
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Begin to listen; torch has just been imported."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        original = torch.autograd.backward

        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:  # whatever it takes
            self._on_backward(tensors)
            original(tensors, *args, **kwargs)

        torch.autograd.backward = backward
        self._undo.append(lambda: setattr(torch.autograd, "backward", original))
        handle = register_optimizer_step_pre_hook(self._before_step)
        self._undo.append(handle.remove)
        self._undo.append(self._watch_scalers())
        self._undo.append(self._watch_epochs())

    def remove(self) -> None:
        """Stop listening."""
        while self._undo:
            self._undo.pop()()

    @property
    def losses(self) -> tuple[float, ...]:
        """Return the losses so far; waits for the device."""
        return tuple(float(value) for value in self._losses)

    @property
    def grad_norms(self) -> tuple[float, ...]:
        """Return the gradient norms so far; waits for the device."""
        return tuple(float(value) for value in self._norms)

    @property
    def skipped_steps(self) -> int | None:
        """Return how many steps a GradScaler left out so far, None where there is none; waits for the device."""
        if not self._overflows:
            return None
        return sum(any(float(found) > 0 for found in step) for step in self._overflows)

    def _watch_scalers(self) -> Callable[[], None]:
        from torch.amp import GradScaler

        original = GradScaler.step

        @functools.wraps(original)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:  # whatever it takes
            result = original(scaler, optimizer, *args, **kwargs)
            if scaler.is_enabled() and len(self._overflows) < MAX_RECORDED_LOSSES:
                state = getattr(scaler, "_per_optimizer_states", {}).get(id(optimizer), {})  # anew in every step
                self._overflows.append(list(state.get("found_inf_per_device", {}).values()))
            return result

        return replace_attribute(GradScaler, "step", step)

    def _watch_epochs(self) -> Callable[[], None]:
        from torch.utils.data import DataLoader

        original = DataLoader.__iter__

        @functools.wraps(original)
        def begin(loader: Any) -> Any:  # an iterator of batches
            if self.first_epoch is None and loader in self._loaders:
                self.first_epoch = len(self._losses)
            self._loaders.add(loader)
            return original(loader)

        return replace_attribute(DataLoader, "__iter__", begin)

    def _on_backward(self, tensors: Any) -> None:  # a tensor or several
        import torch

        first = tensors[0] if isinstance(tensors, list | tuple) and tensors else tensors
        if isinstance(first, torch.Tensor) and first.numel() == 1 and len(self._losses) < MAX_RECORDED_LOSSES:
            self._losses.append(first.detach().clone())

    def _before_step(self, optimizer: Any, _args: object, _kwargs: object) -> None:
        if len(self._norms) == MAX_NORMS:
            return
        import torch

        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if gradients and not any(gradient.is_sparse for gradient in gradients):
            norms = torch.stack([torch.linalg.vector_norm(gradient.float()) for gradient in gradients])
            self._norms.append(torch.linalg.vector_norm(norms))


class SampleDraws:
    """Notices whether the samples that this process loads draw from the global random generators."""

    def __init__(self) -> None:
        self.found = False
        self._num_left = MAX_LOOKED_AT
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Begin to look; torch has just been imported."""
        from torch.utils.data._utils import fetch

        for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            self._undo.append(replace_attribute(fetcher, "fetch", self._watched(fetcher.fetch)))

    def remove(self) -> None:
        """Look no longer."""
        while self._undo:
            self._undo.pop()()

    def _watched(self, fetch: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fetch)
        def watched(*args: Any) -> Any:  # torch's fetcher and the indices of a batch
            if not self._num_left:
                return fetch(*args)
            self._num_left -= 1
            before = _random_states()
            batch = fetch(*args)
            self.found |= _random_states() != before
            return batch

        return watched


def _random_states() -> tuple[object, ...]:
    import torch

    numpy: Any = sys.modules.get("numpy")
    drawn: dict[str, Any] = numpy.random.get_state(legacy=False)["state"] if numpy is not None else {}
    return random.getstate(), drawn and (bytes(drawn["key"]), drawn["pos"]), bytes(torch.get_rng_state().numpy())


class Returned:
    """Keeps what a step function returns where that is its loss: a number, or a tensor that holds one."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._is_loss = True

    def take(self, value: object) -> None:
        """Take down what a step returned; once it is no number, nothing it returns is taken for a loss."""
        import torch

        if not self._is_loss or len(self._values) == MAX_RECORDED_LOSSES:
            return
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            self._values.append(value.detach().clone())
        elif isinstance(value, float | int) and not isinstance(value, bool):
            self._values.append(value)
        else:
            self._is_loss = False

    @property
    def losses(self) -> tuple[float, ...]:
        """Return the losses, none where a step returned something else; waits for the device."""
        return tuple(float(value) for value in self._values) if self._is_loss else ()


class DevicePeak:
    """The peak of the device's allocator over what was there at first; the process's own memory shows nothing here."""

    def __init__(self) -> None:
        self._before = self._cuda().memory_allocated() if self._is_used() else 0
        self._counts = False

    def start(self) -> None:
        """Forget the peak so far."""
        self._counts = self._is_used()
        if self._counts:
            self._cuda().reset_peak_memory_stats()

    def read(self) -> int | None:
        """Return the peak in bytes, None without a device."""
        return int(self._cuda().max_memory_allocated()) - self._before if self._counts else None

    @classmethod
    def _is_used(cls) -> bool:
        return bool(cls._cuda().is_available() and cls._cuda().is_initialized())

    @staticmethod
    def _cuda() -> Any:  # a module
        return sys.modules["torch"].cuda


class PeakMemory:
    """The peak since ``start``: of the device's allocator, of the process's resident set where there is no device."""

    def start(self) -> None:
        """Forget the peak so far."""
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
            return
        try:
            Path("/proc/self/clear_refs").write_text(CLEAR_PEAK)
        except OSError:  # not Linux, or not allowed: the peak is that of the whole life
            return

    def read(self) -> int | None:
        """Return the peak in bytes, None where the system does not show it."""
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            return int(torch.cuda.max_memory_allocated())
        try:
            lines = Path("/proc/self/status").read_text().splitlines()
        except OSError:
            return None
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def seed_everything(seed: int, when_imported: Callable[[str, Callable[[], None]], object]) -> None:
    """Seed Python's generator now, and NumPy's and torch's once the script has imported them."""
    random.seed(seed)

    def seed_torch() -> None:
        sys.modules["torch"].manual_seed(seed)

    def seed_numpy() -> None:
        from numpy import random as numpy_random

        numpy_random.seed(seed)  # the generator that scripts share, which is what has to be fixed

    when_imported("numpy", seed_numpy)
    when_imported("torch", seed_torch)
    os.environ.setdefault("PYTHONHASHSEED", str(seed))  # for worker processes
