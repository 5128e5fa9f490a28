"""``diagnose.prove``: applies prescriptions to a step function of this very process and measures what they bring.

Each run makes the step function again, and what patches changed is put back after it. The generators start from the
same seed in every run and go on afterwards as if nothing had happened.
"""

from __future__ import annotations

import functools
import gc
import random
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from diagnose.capture.process.process import rank_and_size
from diagnose.capture.process.run import silence_kineto
from diagnose.capture.steps.hooks import shut_workers
from diagnose.changes import patch_of
from diagnose.changes.common.change import Log, replace_attribute
from diagnose.errors import CaptureError, DiagnoseError, UsageError
from diagnose.text.progress import Progress
from diagnose.trials.candidates import arguments_of, check_ids
from diagnose.trials.in_sequence import Schedule
from diagnose.trials.measuring import (
    MIN_MEDIAN_STEPS,
    Numbers,
    PeakMemory,
    Returned,
    StepTimer,
    TrialResult,
    error_text,
)
from diagnose.trials.prove import Budget, parse_budget, proven, with_trials

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Diagnosis

BEGINS_DIFFERENTLY = (
    "Unchanged, it began with another loss each time: either the factory does not create everything again, "
    "or it draws from its own generator."
)

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
    diffs: Mapping[str, str] = field(default_factory=dict)
    first_losses: set[float] = field(default_factory=set)  # of the unchanged runs: one, if they start alike
    schedule: Schedule = field(default_factory=Schedule)
    turns: None = None  # patches of torch's classes hold for a whole process

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
        return replace(run, applied=tuple(log.done), refused=tuple(log.refused), wall_s=wall_s)

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
        with _explained("The factory raised"):
            step = self.make()
        if not callable(step):
            raise CaptureError(
                f"The factory returned {type(step).__name__}, which cannot be called; "
                "it must return a function that runs one step."
            )
        return functools.partial(_guarded, step)

    def _measured(self, deadline: float) -> TrialResult:
        silence_kineto()
        numbers, memory, returned = Numbers(), PeakMemory(of_process=False), Returned()
        timer = StepTimer(self.warm_up, self.timed, alone=True, timing_begins=memory.start)
        numbers.install()
        finished = False
        try:
            step = self.step_fn()
            timer.restart()
            while not timer.done and time.monotonic() < deadline:
                value = step()
                timer.boundary()
                returned.take(value)
        except _ExhaustedError:
            finished = True
        finally:
            numbers.remove()
        step_ns, num = timer.step_ns(), timer.num_steps
        if len(step_ns) < MIN_MEDIAN_STEPS:
            raise CaptureError(
                f"The step function raised StopIteration after {num} steps; it must run for some hundred: "
                "let it begin its data again."
                if finished
                else f"The step function made only {num} steps in the time that was left; give budget more."
            )
        return TrialResult(
            step_ns=step_ns,
            losses=returned.losses or numbers.losses,
            grad_norms=numbers.grad_norms,
            skipped_steps=numbers.skipped_steps,
            peak_bytes=memory.read(),
            converged=timer.converged,
        )


class _ExhaustedError(CaptureError):
    """The step function has no more data."""


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn what the block raises into a sentence, with the exception itself as the cause."""
    try:
        yield
    except DiagnoseError:
        raise
    except Exception as error:
        raise CaptureError(f"{what} {error_text(error)}.") from error


def _guarded(step: StepFn) -> object:
    with _explained("The step function raised"):
        try:
            return step()
        except StopIteration as error:
            raise _ExhaustedError("The step function raised StopIteration: let it begin its data again.") from error


def _install(name: str, log: Log, arguments: Mapping[str, Any]) -> Callable[[], None]:
    patch = patch_of(name)
    if patch is None or patch.install is None:
        raise UsageError(f"{name} sets environment variables, which torch reads when it starts; use diagnose prove.")
    with _explained(f"{name} could not be applied:"):
        return patch.install(log, arguments)


def _clean_up() -> None:
    """Forget what was compiled for a model that is gone, and give its memory back."""
    torch = sys.modules["torch"]
    if "torch._dynamo" in sys.modules:  # or its limit of recompilations would be used up by models alike
        torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


@contextmanager
def _same_start(seed: int) -> Iterator[None]:
    """Seed the generators of Python, NumPy and torch; afterwards they are where they were."""
    import numpy as np
    import torch

    of_python, of_numpy = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count() if sys.modules["torch"].cuda.is_initialized() else 0)
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


def prove(
    step_fn_factory: Callable[[], Callable[[], object]],
    *,
    apply: str | Sequence[str] = (),
    budget: str | float = "10m",
    diagnosis: Diagnosis | None = None,
    seed: int = 0,
    quiet: bool = False,
) -> Diagnosis:
    """Diagnose a step function, run it with each prescribed change and without, in turns, and measure both.

    Example::

        def make():
            model = Model()
            optimizer = torch.optim.AdamW(model.parameters())
            batches = itertools.cycle(DataLoader(dataset, batch_size=64))

            def step():
                loss = model(next(batches)).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss

            return step


        diagnose.prove(make).print()

    Args:
        step_fn_factory: Makes everything anew (model, optimizer, DataLoader) and returns a function that runs one
            step. It is called for every run, with changes to torch's classes in place and all generators seeded. The
            function is called some hundred times. What it returns is its loss, if that is one number; otherwise the
            losses are those that ``backward()`` is called on.
        apply: Ids of the changes to try; nothing tries every prescription that can be applied from outside.
        budget: Begin no run that would end after this time: seconds, or a text such as "90s", "10m".
        diagnosis: Of this step function, if there is one already: then it is not recorded again.
        seed: What every run starts from.
        quiet: Show no progress on standard error.

    Returns:
        The diagnosis with its ``trials``, and in ``after`` what binds the step with all certain gains applied.

    Raises:
        UsageError: an id or the budget makes no sense, or several ranks run.
        CaptureError: the factory or the step function failed without any change; the cause has the traceback.
    """
    asked = [name.strip() for name in apply.split(",") if name.strip()] if isinstance(apply, str) else list(apply)
    budget_s = parse_budget(str(budget), name="budget")
    return prove_runs(InProcess(step_fn_factory, seed), asked, budget_s, diagnosis, Progress(quiet=quiet))


def prove_runs(
    runs: InProcess, asked: Sequence[str], budget_s: float, diagnosis: Diagnosis | None, progress: Progress
) -> Diagnosis:
    """Do what `prove` does with a step function whose runs are given.

    Raises:
        UsageError: see `prove`.
        CaptureError: see `prove`.
    """
    check_ids(asked, own_process=False)
    if rank_and_size()[1] > 1:
        raise UsageError(
            "diagnose.prove measures a single process; for several ranks run the script with "
            "diagnose prove --launcher 'torchrun …'."
        )
    time_left = Budget(budget_s)
    if diagnosis is None:
        progress.report("recording the step function, to find what holds it back")
        with time_left.recording():
            diagnosis = _recorded(runs, ())
    runs.arguments = arguments_of(diagnosis)
    try:
        result = proven(runs, diagnosis, asked, time_left, progress.report)
    except CaptureError as error:
        raise error from runs.error
    if result.interrupted:
        raise KeyboardInterrupt
    if len(runs.first_losses) > 1:
        result.notes.append(BEGINS_DIFFERENTLY)
    goes_on = time_left.records(result.best, result.notes)
    diagnosis = with_trials(diagnosis, result, asked)
    if not goes_on:
        return diagnosis
    progress.report(f"recording it with {' and '.join(result.best)}, to see what binds it then")
    try:
        return replace(diagnosis, after=_recorded(runs, result.best))
    except DiagnoseError as error:
        progress.report(f"it could not be recorded with the changes: {error}")
        return diagnosis


def _recorded(runs: InProcess, ids: tuple[str, ...]) -> Diagnosis:
    from diagnose.capture import capture_steps
    from diagnose.pipeline.run import analyze_paths

    with tempfile.TemporaryDirectory(prefix="diagnose-") as folder, runs.patched(ids):
        # As `diagnose.analyze` has it.
        return analyze_paths([capture_steps(runs.step_fn(), steps=10, output=Path(folder, "capture"))])
