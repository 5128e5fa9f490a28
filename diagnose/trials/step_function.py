"""``diagnose.prove``: applies prescriptions to a step function of this process and measures what they bring."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.errors import CaptureError, DiagnoseError, UsageError
from diagnose.text.progress import Progress

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Diagnosis
    from diagnose.trials.in_process import InProcess

__all__ = ["prove"]

RECORDED_STEPS = 10  # as `diagnose.analyze` has it
BEGINS_DIFFERENTLY = (
    "Unchanged, it began with another loss each time: either the factory does not create everything again, "
    "or it draws from a generator of its own."
)


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
    budget_s = _checked(asked, budget)
    from diagnose.trials.budget import Budget
    from diagnose.trials.in_process import InProcess
    from diagnose.trials.outcome import arguments_of, proven, with_trials

    runs, progress, time_left = InProcess(step_fn_factory, seed), Progress(quiet=quiet), Budget(budget_s)
    if diagnosis is None:
        progress.report("recording the step function, to find what holds it back")
        with time_left.recording():
            diagnosis = _recorded(runs, ())
    runs.arguments = arguments_of(diagnosis)
    try:
        result = proven(runs, diagnosis, asked, time_left, progress.report)
    except CaptureError as error:
        raise error from runs.error
    if len(runs.first_losses) > 1:
        result.notes.append(BEGINS_DIFFERENTLY)
    goes_on = time_left.records(result.best, result.notes)
    diagnosis = with_trials(diagnosis, result, asked)
    return replace(diagnosis, after=_after(runs, result.best, progress)) if goes_on else diagnosis


def _checked(asked: Sequence[str], budget: str | float) -> float:
    """Return the budget in seconds, after refusing what cannot be done.

    Raises:
        UsageError: see `prove`.
    """
    from diagnose.capture.process.process import rank_and_size
    from diagnose.trials.budget import parse_budget
    from diagnose.trials.candidates import check_ids

    check_ids(asked, own_process=False)
    if rank_and_size()[1] > 1:
        raise UsageError(
            "diagnose.prove measures a single process; for several ranks run the script with "
            "diagnose prove --launcher 'torchrun …'."
        )
    return parse_budget(str(budget), name="budget")


def _recorded(runs: InProcess, ids: tuple[str, ...]) -> Diagnosis:
    from diagnose.capture import capture_steps
    from diagnose.pipeline.run import analyze_paths

    with tempfile.TemporaryDirectory(prefix="diagnose-") as folder, runs.patched(ids):
        return analyze_paths([capture_steps(runs.step_fn(), steps=RECORDED_STEPS, output=Path(folder, "capture"))])


def _after(runs: InProcess, best: tuple[str, ...], progress: Progress) -> Diagnosis | None:
    """Return the diagnosis with the best combination applied, None where it could not be recorded."""
    progress.report(f"recording it with {' and '.join(best)}, to see what binds it then")
    try:
        return _recorded(runs, best)
    except DiagnoseError as error:
        progress.report(f"it could not be recorded with the changes: {error}")
        return None
