"""Runs a step function in this very process: each run makes it anew, and what patches changed is put back after it.

The generators start from the same seed in every run and go on afterwards as if nothing had happened.
"""

from __future__ import annotations

import functools
import gc
import random
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from diagnose.capture.process.run import silence_kineto
from diagnose.capture.steps.hooks import shut_workers
from diagnose.changes import patch_of
from diagnose.changes.common.change import Log, replace_attribute
from diagnose.errors import CaptureError, DiagnoseError, UsageError
from diagnose.trials.sentences import error_text
from diagnose.trials.spec import MIN_MEDIAN_STEPS, TrialResult
from diagnose.trials.timing import StepTimer
from diagnose.trials.watching import DevicePeak, Numbers, Returned

__all__ = ["InProcess", "StepFn"]

StepFn: TypeAlias = Callable[[], object]


@dataclass
class InProcess:
    """Measures what ``make`` returns; keeps nothing of a run but its numbers.

    ``error`` is the user's own exception behind the latest run, None where there was none: it has the traceback.
    """

    make: Callable[[], StepFn]
    seed: int = 0
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    warm_up: int = 10
    timed: int = 30
    error: BaseException | None = None
    edits: bool = False  # a step function has no text to change
    first_losses: set[float] = field(default_factory=set)  # of the unchanged runs: one, if they start alike

    def time(self, ids: Sequence[str], *, timeout_s: float) -> TrialResult:
        """Make the step function with patches and return what was measured; a failure is a result too."""
        began, log = time.monotonic(), Log()
        self.error = None
        try:
            with self.patched(ids, log):
                run = self._measured(began + timeout_s)
        except DiagnoseError as error:
            run = TrialResult(failure=str(error))
            self.error = error.__cause__
        if not ids and run.losses:
            self.first_losses.add(run.losses[0])
        log.settle()
        wall_s = time.monotonic() - began
        return replace(run, ids=tuple(ids), applied=tuple(log.done), refused=tuple(log.refused), wall_s=wall_s)

    @contextmanager
    def patched(self, ids: Sequence[str], log: Log | None = None) -> Iterator[None]:
        """Run the block with patches, from the same seed, and leave nothing of it behind.

        Raises:
            CaptureError: a patch cannot be applied.
        """
        with ExitStack() as stack:
            stack.callback(_clean_up)
            stack.enter_context(_same_start(self.seed))
            stack.enter_context(_loaders_shut())
            for name in ids:
                stack.callback(_install(name, log or Log(), self.arguments.get(name, {})))
            yield

    def step_fn(self) -> StepFn:
        """Make the step function; what it raises comes as a sentence.

        Raises:
            CaptureError: the factory failed, or returned something else.
        """
        try:
            step = self.make()
        except DiagnoseError:
            raise
        except Exception as error:
            raise CaptureError(f"The factory raised {error_text(error)}.") from error
        if not callable(step):
            raise CaptureError(
                f"The factory returned {type(step).__name__}, which cannot be called; "
                "it must return a function that runs one step."
            )
        return functools.partial(_guarded, step)

    def _measured(self, deadline: float) -> TrialResult:
        silence_kineto()
        numbers, memory, returned = Numbers(), DevicePeak(), Returned()
        timer = StepTimer(self.warm_up, self.timed, alone=True, timing_begins=memory.start)
        numbers.install()
        try:
            finished = _steps(self.step_fn(), timer, returned, deadline)
        finally:
            numbers.remove()
        step_ns = timer.step_ns()
        if len(step_ns) < MIN_MEDIAN_STEPS:
            raise CaptureError(_why_nothing(timer.num_steps, ended=finished))
        return TrialResult(
            step_ns=step_ns,
            losses=returned.losses or numbers.losses,
            grad_norms=numbers.grad_norms,
            skipped_steps=numbers.skipped_steps,
            peak_bytes=memory.read(),
            clock=timer.clock,
            warm_up=timer.num_warm_up,
            converged=timer.converged,
            ended="finished" if finished else "stopped",
        )


def _steps(step: StepFn, timer: StepTimer, returned: Returned, deadline: float) -> bool:
    """Call the step until enough is timed or the time is over; return whether it ended by itself before that."""
    timer.restart()
    while not timer.done and time.monotonic() < deadline:
        try:
            value = step()
        except _ExhaustedError:
            return True
        timer.boundary()
        returned.take(value)
    return False


def _why_nothing(seen: int, *, ended: bool) -> str:
    if ended:
        return (
            f"The step function raised StopIteration after {seen} steps; it must run for some hundred: "
            "let it begin its data again."
        )
    return f"The step function made only {seen} steps in the time that was left; give budget more."


class _ExhaustedError(CaptureError):
    """The step function has no more data."""


def _guarded(step: StepFn) -> object:
    """Run one step; what it raises becomes a sentence, with the exception itself as the cause."""
    try:
        return step()
    except DiagnoseError:
        raise
    except StopIteration as error:
        raise _ExhaustedError("The step function raised StopIteration: let it begin its data again.") from error
    except Exception as error:
        raise CaptureError(f"The step function raised {error_text(error)}.") from error


def _install(name: str, log: Log, arguments: Mapping[str, Any]) -> Callable[[], None]:
    patch = patch_of(name)
    if patch is None or patch.install is None:
        raise UsageError(f"{name} sets environment variables, which torch reads when it starts; use diagnose prove.")
    try:
        return patch.install(log, arguments)
    except DiagnoseError:
        raise
    except Exception as error:
        raise CaptureError(f"{name} could not be applied: {error_text(error)}.") from error


def _clean_up() -> None:
    """Forget what was compiled for a model that is gone, and give its memory back."""
    torch = sys.modules["torch"]
    if "torch._dynamo" in sys.modules:  # or its limit of recompilations would be used up by models alike
        torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


@contextmanager
def _same_start(seed: int) -> Iterator[None]:
    """Seed the generators of Python, NumPy and torch; afterwards they are where they were."""
    import numpy as np
    import torch

    of_python, of_numpy = random.getstate(), np.random.get_state()
    has_cuda = torch.cuda.is_available() and sys.modules["torch"].cuda.is_initialized()
    devices = range(torch.cuda.device_count()) if has_cuda else ()
    try:
        with torch.random.fork_rng(devices):
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


@contextmanager
def _loaders_shut() -> Iterator[None]:
    """Shut the workers down of every DataLoader that is made in the block; see `shut_workers`."""
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    loaders: weakref.WeakSet[Any] = weakref.WeakSet()
    iterators: weakref.WeakSet[Any] = weakref.WeakSet()
    undo = (
        _after_init(DataLoader, lambda loader, _args: loaders.add(loader)),
        _after_init(_BaseDataLoaderIter, lambda made, args: iterators.add(made) if args[0] in loaders else None),
    )
    try:
        yield
    finally:
        for one in undo:
            one()
        shut_workers(iterators)


def _after_init(cls: type, then: Callable[[Any, tuple[Any, ...]], None]) -> Callable[[], None]:
    original = cls.__init__  # type: ignore[misc]  # that is the point

    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:  # whatever it takes
        original(self, *args, **kwargs)
        then(self, args)

    return replace_attribute(cls, "__init__", made)
