"""What a trial's process is given, measures and returns: times of steps, losses, norms, skipped steps, memory.

Nothing of it waits for the device while the script runs.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict, dataclass, field, fields
from math import inf
from pathlib import Path
from typing import Any
from weakref import WeakSet

from diagnose.capture.process.process import compiled_graphs
from diagnose.capture.steps.step_source import converged_since
from diagnose.changes.common.change import replace_attribute
from diagnose.text.plain_text import clean
from diagnose.trials.own_time import queued_ns

MIN_MEDIAN_STEPS = 5  # steps of a run that ends early: fewer make no median


@dataclass(frozen=True)
class TrialRequest:
    """What one process is to do with the script."""

    result: str  # file to write
    ids: tuple[str, ...] = ()  # patches
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of patches, by id
    warm_up: int = 10  # steps before timing, at least
    timed: int = 30  # steps to time
    seed: int = 0  # of every generator, before the script's first line; what it seeds itself comes later
    step_on: str = "auto"
    capture: str = ""  # a folder: trace the script into it instead of timing it
    capture_s: float | None = None  # most seconds of recording, from the first step on
    sources: Mapping[str, str] = field(default_factory=dict)  # path: the text that is run or imported instead
    made: tuple[str, ...] = ()  # the changes in it, a line for each
    cannot: str = ""  # why its changes cannot be made: the trial's result
    turns: str = ""  # the path of a unix socket: time the steps in blocks that it asks for, see diagnose.trials.child

    def write(self, path: Path) -> None:
        """Write the order where the process reads it."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> TrialRequest:
        """Read what ``write`` wrote."""
        values = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**values, "ids": tuple(values["ids"]), "made": tuple(values["made"])})


@dataclass(frozen=True)
class TrialResult:
    """What one process measured; ``failure`` states why there is nothing, "" where there is."""

    step_ns: tuple[float, ...] = ()  # of the timed steps
    losses: tuple[float, ...] = ()  # of every backward pass from the first, scalars only
    grad_norms: tuple[float, ...] = ()  # of the first optimizer steps
    skipped_steps: int | None = None  # that a GradScaler left out; None where there is none
    peak_bytes: int | None = None
    converged: bool = True
    applied: tuple[str, ...] = ()  # what the patches changed
    refused: tuple[str, ...] = ()  # and what they left alone
    failure: str = ""
    wall_s: float = 0.0
    samples_draw: bool = False  # samples that its own process loaded drew random numbers
    first_epoch: int | None = None  # losses before a loader began its second epoch, None where none did

    def to_json(self) -> str:
        """Return the run as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TrialResult:
        """Read what ``to_json`` wrote; a trial's process belongs to the script, so nothing in it is taken on trust.

        Raises:
            ValueError: it is something else.
        """
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError("it is not a JSON object")
        types = {each.name: str(each.type) for each in fields(cls)}
        for name, value in values.items():
            if name not in types:
                raise ValueError(f"it has the field {name!r}")
            is_valid, read = _READERS[types[name]]
            if not is_valid(value) or (name == "step_ns" and not all(0 < ns < inf for ns in value)):
                raise ValueError(f"its {name} is not what a run measures")
            values[name] = read(value)
        return cls(**values)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


def _is_number(value: object) -> bool:
    return isinstance(value, float) or _is_whole(value)


def _text(value: str) -> str:
    return clean(value)[:2_000]  # it quotes the script's own exception


_READERS: Mapping[str, tuple[Callable[[Any], bool], Callable[[Any], Any]]] = {  # by the type of the field
    "bool": (lambda value: isinstance(value, bool), bool),
    "int | None": (lambda value: value is None or _is_whole(value), lambda value: value),
    "float": (_is_number, float),
    "str": (lambda value: isinstance(value, str), _text),
    "tuple[float, ...]": (
        lambda value: isinstance(value, list) and all(map(_is_number, value)),
        lambda value: tuple(map(float, value)),
    ),
    "tuple[str, ...]": (
        lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
        lambda value: tuple(map(_text, value)),
    ),
}


def error_text(error: BaseException) -> str:
    """Return the exception's name and the first line of its message, without a full stop."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    where = _saved_file(error) if "open file failed" in str(error) else ""
    return f"{type(error).__name__}: {lines[0].rstrip('.')}{where}"


def _saved_file(error: BaseException) -> str:
    """Return the name of the file that torch.save could not open, which its error lacks."""
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code.co_name == "save"]
    return next((f": {str(found['f'])!r}" for found in reversed(frames) if isinstance(found.get("f"), str | Path)), "")


MAX_RECORDED_LOSSES = 2000


class _Hooks:
    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def remove(self) -> None:
        """Put back what was there."""
        while self._undo:
            self._undo.pop()()


class Numbers(_Hooks):
    """Records each backward pass's loss, the gradients' norm before the first optimizer steps, and what scalers skip.

    ``first_epoch`` is how many losses came before a DataLoader began its second epoch, None where none did.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first_epoch: int | None = None
        self._loaders: WeakSet[Any] = WeakSet()  # that began an epoch
        self._losses: list[Any] = []
        self._overflows: list[list[Any]] = []  # of each step of a GradScaler, one number a device
        self._norms: list[Any] = []

    def install(self) -> None:
        """Start; torch has just been imported."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        original = torch.autograd.backward

        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:  # whatever it takes
            self._on_backward(tensors)
            original(tensors, *args, **kwargs)

        torch.autograd.backward = backward
        self._undo = [
            lambda: setattr(torch.autograd, "backward", original),
            register_optimizer_step_pre_hook(self._before_step).remove,
            self._watch_scalers(),
            self._watch_epochs(),
        ]

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
        if len(self._norms) == 8:  # a norm costs time
            return
        import torch

        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if gradients and not any(gradient.is_sparse for gradient in gradients):
            norms = torch.stack([torch.linalg.vector_norm(gradient.float()) for gradient in gradients])
            self._norms.append(torch.linalg.vector_norm(norms))


class SampleDraws(_Hooks):
    """Whether the samples that this process loads draw from the global random generators."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False
        self._num_left = 3  # batches of the warm-up, whose samples may draw

    def install(self) -> None:
        """Start; torch has just been imported."""
        from torch.utils.data._utils import fetch

        for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            self._undo.append(replace_attribute(fetcher, "fetch", self._watched(fetcher.fetch)))

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


class PeakMemory:
    """The peak since ``start``: of the device's allocator, over what was there when this object was made.

    Where there is no device it is the peak of the process's resident set, unless the process does more than the run.
    """

    def __init__(self, *, of_process: bool = True) -> None:
        self._of_process = of_process
        self._before = cuda.memory_allocated() if (cuda := used_cuda()) is not None else 0

    def start(self) -> None:
        """Forget the peak so far."""
        if (cuda := used_cuda()) is not None:
            cuda.reset_peak_memory_stats()
        elif self._of_process:
            with contextlib.suppress(OSError):  # not Linux, or not allowed: the peak is that of the whole life
                Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets the peak of the resident set

    def read(self) -> int | None:
        """Return the peak in bytes, None where the system does not show it."""
        if (cuda := used_cuda()) is not None:
            return int(cuda.max_memory_allocated()) - self._before
        lines: list[str] = []
        with contextlib.suppress(OSError):
            lines = Path("/proc/self/status").read_text().splitlines() if self._of_process else []
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def used_cuda() -> Any:  # a module
    """Return torch's module of CUDA, None if no device is in use."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


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


class StepTimer:
    """Times the steps between calls of ``boundary``; ``done`` once enough are timed.

    On a GPU the times are those between events in the device's queue, so that nothing waits for the device.
    """

    def __init__(self, warm_up: int, timed: int, *, alone: bool, timing_begins: Callable[[], None]) -> None:
        self._warm_up, self._timed, self._alone = warm_up, timed, alone
        self._timing_begins = timing_begins
        self.restart()

    def restart(self) -> None:
        """Begin again: what ends a step has changed."""
        self.done = False
        self.converged = True
        self.num_steps = 0
        self._host: list[int] = []
        self._marks: list[Any] = []
        self._queued_ns = 0  # of the step that has ended: for so long its thread was ready and had no core
        self._queued_before = queued_ns()
        self._last = time.perf_counter_ns()
        self._plan = self._script()
        next(self._plan)

    def boundary(self) -> None:
        """End a step."""
        now = time.perf_counter_ns()
        duration, self._last = now - self._last, now
        if self.done:
            return
        queued = queued_ns()
        self._queued_ns, self._queued_before = min(max(queued - self._queued_before, 0), duration), queued
        self.num_steps += 1
        try:
            self._plan.send(duration)
        except StopIteration:
            self.done = True

    def step_ns(self) -> tuple[float, ...]:
        """Return the timed steps; waits for the device."""
        if not self._marks:
            return tuple(float(t) for t in self._host)
        self._marks[-1].synchronize()
        pairs = zip(self._marks, self._marks[1:], strict=False)
        return tuple(before.elapsed_time(after) * 1e6 for before, after in pairs)

    def _script(self) -> Generator[None, int, None]:
        yield from self._settle()
        self._timing_begins()
        yield from self._time()

    def _settle(self) -> Generator[None, int, list[int]]:
        """Warm up; return the steps that took."""
        times: list[int] = []
        graphs, quiet, ready = compiled_graphs(), 0, False
        # A script that has not settled after four times the wanted warm-up is timed as it is.
        while not ready and len(times) < self._warm_up * (4 if self._alone else 1):
            duration = yield
            times.append(duration - self._queued_ns)
            quiet, graphs = (quiet + 1 if graphs == compiled_graphs() else 0), compiled_graphs()
            converged = quiet >= 3 and converged_since(times[-max(len(times) // 2, 8) :]) is not None
            ready = self._alone and len(times) >= self._warm_up and converged
        self.converged = ready or not self._alone
        return times

    def _time(self) -> Generator[None, int, None]:
        self._mark()
        for _ in range(self._timed):
            self._host.append((yield))
            self._mark()

    def _mark(self) -> None:
        if (cuda := used_cuda()) is not None:
            self._marks.append(cuda.Event(enable_timing=True))
            self._marks[-1].record()
