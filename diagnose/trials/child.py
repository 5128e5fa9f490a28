"""The process of one trial: patches torch as ordered, runs the script as Python would, times its steps, stops it.

``sys.argv`` holds the file of the order, then [-m] SCRIPT and its arguments.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from diagnose.capture.options import CaptureOptions
from diagnose.capture.process.process import ForkedChildren
from diagnose.capture.process.ranks import rank_and_size
from diagnose.capture.process.run import leave_behind, silence_kineto, trace_script
from diagnose.capture.process.script import Outcome, StopScript, check_script, run_script
from diagnose.capture.record.script_config import ScriptConfig
from diagnose.capture.steps.hooks import when_imported
from diagnose.capture.steps.listener import Listener
from diagnose.changes import patch_of
from diagnose.changes.common.change import CannotApply, Log, Undo
from diagnose.errors import DiagnoseError
from diagnose.model.files import replace_private
from diagnose.trials.edited_script import edited
from diagnose.trials.sentences import error_text
from diagnose.trials.spec import MIN_MEDIAN_STEPS, TrialRequest, TrialResult
from diagnose.trials.timing import StepTimer
from diagnose.trials.watching import Numbers, PeakMemory, SampleDraws, seed_everything

__all__ = ["main"]


def main() -> NoReturn:
    """Carry the order out, write the result, and leave without waiting for the script's threads."""
    order = TrialRequest.read(Path(sys.argv[1]))
    module = sys.argv[2] == "-m"
    script = sys.argv[3:] if module else sys.argv[2:]
    seed_everything(order.seed, when_imported)
    log = Log()
    undo = _patch(order, log)
    try:
        with edited(script, order.ids, order.arguments, log, module=module):
            run = _trace(order, script, module=module) if order.capture else _measure(order, script, module=module)
    except DiagnoseError as error:
        run = TrialResult(failure=str(error), exit_code=error.exit_code)
    finally:
        for one in reversed(undo):
            one()
    log.settle()
    _write(order, replace(run, ids=order.ids, applied=tuple(log.done), refused=tuple(log.refused)))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def _patch(order: TrialRequest, log: Log) -> list[Undo]:
    """Install the patches once torch is imported; return what undoes them."""
    undo: list[Undo] = []

    def install() -> None:
        for name in order.ids:
            patch = patch_of(name)
            if patch is not None and patch.install is not None:
                undo.append(patch.install(log, order.arguments.get(name, {})))

    for name in order.ids:
        patch = patch_of(name)
        for variable, value in patch.environment.items() if patch is not None else ():
            if value is None:
                os.environ.pop(variable, None)
                log.did(f"{variable} is not set")
            else:
                os.environ[variable] = value
                log.did(f"{variable}={value}")
    when_imported("torch", install)
    return undo


def _trace(order: TrialRequest, script: Sequence[str], *, module: bool) -> TrialResult:
    options = CaptureOptions(output=Path(order.capture), steps=order.capture_steps, force=True, quiet=True)
    if order.capture_s is not None:
        options = replace(options, max_seconds=min(options.max_seconds, order.capture_s))
    result = trace_script(script, options, module=module)
    return TrialResult(ended=result.info.ended, exit_code=result.exit_code)


def _measure(order: TrialRequest, script: Sequence[str], *, module: bool) -> TrialResult:
    check_script(script, module=module)
    silence_kineto()
    numbers, draws, memory = Numbers(), SampleDraws(), PeakMemory()
    timer = StepTimer(order.warm_up, order.timed, alone=rank_and_size()[1] == 1, timing_begins=memory.start)

    def boundary(fresh: bool) -> None:  # a callback
        if fresh:
            timer.restart()
            return
        timer.boundary()
        if timer.done:
            raise StopScript

    listener = Listener(order.step_on, ScriptConfig(), boundary)  # type: ignore[arg-type]  # checked by the parent
    when_imported("torch", numbers.install)
    when_imported("torch", draws.install)
    when_imported("torch", listener.install)
    owner, forked = os.getpid(), ForkedChildren()
    outcome = run_script(script, module=module)
    if os.getpid() != owner:  # the script forked, and this is the child at the script's end
        os._exit(outcome.exit_code)
    listener.remove()
    listener.shut_loaders()
    numbers.remove()
    draws.remove()
    run = replace(_result(order, outcome, timer, numbers, memory), samples_draw=draws.found)
    leave_behind(outcome, forked)
    return run


def _result(
    order: TrialRequest, outcome: Outcome, timer: StepTimer, numbers: Numbers, memory: PeakMemory
) -> TrialResult:
    step_ns = timer.step_ns()
    failure = _why_nothing(order, outcome, timer, len(step_ns))
    return TrialResult(
        step_ns=() if failure else step_ns,
        losses=numbers.losses,
        first_epoch=numbers.first_epoch,
        grad_norms=numbers.grad_norms,
        skipped_steps=numbers.skipped_steps,
        peak_bytes=memory.read(),
        clock=timer.clock,
        warm_up=timer.num_warm_up,
        converged=timer.converged,
        ended=outcome.ended,
        exit_code=outcome.exit_code,
        failure=failure,
    )


def _why_nothing(order: TrialRequest, outcome: Outcome, timer: StepTimer, timed: int) -> str:
    """Return why there is nothing to compare, "" where there is; a change under which the script raises has failed."""
    error = outcome.error
    if isinstance(error, CannotApply):
        return str(error)
    if outcome.ended == "raised" and error is not None and (order.ids or timed < MIN_MEDIAN_STEPS):
        return f"The script raised {error_text(error)}."
    if timed >= MIN_MEDIAN_STEPS:
        return ""
    return f"The script ended after {timer.num_steps} steps that could be timed; it must run for more to be measured."


def _write(order: TrialRequest, run: TrialResult) -> None:
    rank, size = rank_and_size()
    path = Path(order.result if size == 1 or rank == 0 else f"{order.result}.rank{rank}")
    replace_private(path, run.to_json().encode())


if __name__ == "__main__":
    main()
