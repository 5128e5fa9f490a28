"""Traces a script, or a loop from Python, in this process: captures steps of it and writes the folder."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from diagnose.capture.options import MAX_MB, CaptureOptions
from diagnose.capture.process.process import ForkedChildren, StopSignals, end_others, end_workers, mark_run
from diagnose.capture.process.rank_processes import (
    KeptStore,
    adopt_ranks,
    captured_ranks,
    destroy_process_group,
    end_forked_rank,
    options_of_ranks,
    trace_processes,
    watch_forked,
)
from diagnose.capture.process.script import BY_SIGNAL, Outcome, check_script, run_script, stop_script
from diagnose.capture.record.folder import name_cells
from diagnose.capture.record.session import Session
from diagnose.capture.steps.hooks import Undo, when_imported
from diagnose.capture.steps.listener import Listener
from diagnose.errors import CaptureError
from diagnose.text.numbers import plural
from diagnose.text.progress import Progress

if TYPE_CHECKING:
    from diagnose.capture.process.script import Outcome
    from diagnose.model.capture import CaptureInfo


# Why nothing was captured, in one sentence with a remedy.


ENDINGS = {  # how the script ended -> what happened, and what to do
    "raised": ("the script raised {error}", "Make it run first; its traceback is above."),
    "interrupted": ("it was interrupted", "Let it run longer, or wait less with --skip."),
    "killed": ("it received a signal to terminate", "Let it run longer, or wait less with --skip."),
}


def nothing_captured(session: Session, outcome: Outcome) -> CaptureError:
    """Return the error for a script that ended without a captured step; it carries the script's exit code."""
    error = CaptureError(f"No step was captured: {_reason(session, outcome)} {session.spent_at}".rstrip())
    if outcome.exit_code:
        error.exit_code = outcome.exit_code
    return error


def _reason(session: Session, outcome: Outcome) -> str:
    num_steps = session.num_steps
    if session.all_notes and session.complete:
        return " ".join(session.all_notes)
    if session.other_profilers.place and num_steps:
        return (
            f"the script runs its own profiler ({session.other_profilers.place}) all the time. Switch it off, "
            "or give the trace it writes to `diagnose analyze`."
        )
    if outcome.ended in ENDINGS:
        what, remedy = ENDINGS[outcome.ended]
        return f"{what.format(error=type(outcome.error).__name__)} {progress_made(session)}. {remedy}"
    if outcome.exit_code:
        return (
            f"the script exited with code {outcome.exit_code} {progress_made(session)}. Check its arguments and output."
        )
    if num_steps:
        return (
            f"the script finished {progress_made(session)}. Let it run for more steps, or wait less with --skip 2 "
            "--steps 2."
        )
    return _never_stepped(session)


def progress_made(session: Session) -> str:
    """Return how far the capture came, for a sentence about a script that ended without a recorded step."""
    if session.plan is None or not session.num_steps:
        return "before its first steps were over"
    begun = session.plan.has_begun
    where = "during the capture, before a whole step was recorded" if begun else "before the capture began"
    return f"after {plural(session.num_steps, 'step')}, {where}"


def _never_stepped(session: Session) -> str:
    if not session.listener.installed:
        return "the script never imported torch. Trace the script that trains or runs the model."
    # After a second of CPU time the finished child processes may well have done the training.
    if session.children_s > 1.0 and not session.listener.num_events:
        return (
            "the script itself made no step; its child processes may have. Start the ranks with torchrun "
            "(torchrun … -m diagnose trace train.py), which traces each of them."
        )
    if session.options.step_on != "auto":
        return f"the script never made a step by --step-on {session.options.step_on}. Leave it out, or take another."
    return (
        "the script ran no optimizer step, no DataLoader and no model more than once. "
        "Call diagnose.step() once per step in its loop."
    )


QUIET = Progress(quiet=True)
KINETO_SILENT = "99"  # above every level that Kineto writes at (5, its documented highest, still lets lines through)


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """What came of a traced script.

    ``exit_code`` is the script's own, 0 where it was stopped on purpose. ``threads`` names non-daemon threads of a
    stopped script that still run: the interpreter would wait for them at its exit. ``store`` is the one of
    torch.distributed that the ranks share, None where there is none.
    """

    folder: Path
    info: CaptureInfo
    exit_code: int
    error: BaseException | None
    threads: tuple[str, ...] = ()
    store: object | None = None


def trace_script(
    argv: Sequence[str], options: CaptureOptions, *, module: bool = False, progress: Progress | None = None
) -> CaptureResult:
    """Run ``argv`` as the main program, capture steps of it and write ``options.output``.

    The script's traceback, if it raises, has been printed as Python prints it.

    Raises:
        UsageError: there is no such script.
        OutputError: the capture cannot be written.
        CaptureError: no step could be captured; its ``exit_code`` is the script's own where that is not 0.
    """
    check_script(argv, module=module)
    silence_kineto()
    report = (progress or QUIET).report
    command = (*(("-m",) if module else ()), *argv)
    signals = StopSignals()
    stop = partial(stop_script, report, signals)
    session = Session(options, command, report=report, stop=stop)
    report("waiting for the first step")
    undo: list[Undo] = []
    kept = KeptStore()
    forget = when_imported("torch", lambda: _install(session, stop, undo, kept))
    owner, forked, mark = os.getpid(), ForkedChildren(), mark_run()
    with signals.installed():
        outcome: Outcome | None = None
        try:
            outcome = run_script(argv, module=module, signals=signals)
        finally:
            if os.getpid() == owner:
                forget()
                session.close()
                session.listener.shut_loaders()
                kept.remove()
                while undo:
                    undo.pop()()
                if outcome is None:
                    session.folder.discard()
        if os.getpid() != owner:  # the script forked, and this is the child at the script's end
            end_forked_rank(outcome.ended)
            sys.exit(outcome.exit_code)
        threads = leave_behind(outcome, forked, mark)
        forked.close()
        result = replace(_conclude(session, outcome, threads), store=kept.store)
    if signals.deferred and not result.exit_code:
        return replace(result, exit_code=BY_SIGNAL + signals.deferred)
    return result


def _install(session: Session, stop: Callable[[], None], undo: list[Undo], kept: KeptStore) -> None:
    """Put hooks into torch, which has just been imported, and watch for ranks among what the script starts."""
    session.install()
    if session.num_ranks > 1:
        kept.install()
        return

    def is_first() -> bool:
        return session.listener.active and session.num_steps == 0

    def all_captured() -> None:
        if not session.options.keep_going and captured_ranks(session.folder):
            session.complete = True
            stop()

    options = options_of_ranks(session)
    undo.append(watch_forked(options, session.command))
    undo.append(trace_processes(options, session.command, is_first=is_first, all_captured=all_captured))


def silence_kineto() -> None:
    """Keep the profiler's own log lines off the terminal; torch reads this when it is first used."""
    os.environ.setdefault("KINETO_LOG_LEVEL", KINETO_SILENT)


def _conclude(session: Session, outcome: Outcome, threads: tuple[str, ...]) -> CaptureResult:
    if not session.measured.files:
        return _of_spawned_ranks(session, outcome, threads)
    session.note_what_is_missing()
    session.report("writing the capture")
    info = session.publish(outcome.ended, outcome.exit_code)
    return CaptureResult(session.folder.target, info, outcome.exit_code, outcome.error, threads)


def _of_spawned_ranks(session: Session, outcome: Outcome, threads: tuple[str, ...]) -> CaptureResult:
    """Publish what the ranks captured that the script has spawned, where there are any."""
    described = adopt_ranks(session.folder)
    if described is None:
        session.folder.discard()
        raise nothing_captured(session, outcome)
    from diagnose.model.capture import CaptureInfo

    info = CaptureInfo.from_json(described.read_bytes(), source=str(described))
    session.report("writing the capture")
    folder = session.folder.publish()
    return CaptureResult(folder, info, outcome.exit_code, outcome.error, threads)


def leave_behind(outcome: Outcome, forked: ForkedChildren, mark: str = "") -> tuple[str, ...]:
    """After a stop end what the script would have ended, and every process that it started."""
    gc.collect()
    if outcome.ended not in ("stopped", "interrupted", "killed"):
        return ()
    destroy_process_group()
    end_workers()
    forked.end()
    if mark:
        end_others(mark)
    others = [t for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
    return tuple(thread.name for thread in others)


# Captures a loop or a step function from Python, without a script of its own.


class Tracer:
    """Captures the loop inside its ``with`` block; ``step()`` ends each step.

    ``done`` turns true once everything is captured: the loop may go on, or break. After the block ``folder`` is
    the capture. If the block raises, what was captured is still written and the exception goes on. With a ``listener``
    that hooks into torch already, that one is used, and left installed.

    Raises (at the end of the block):
        CaptureError: too few steps.
        OutputError: the folder cannot be written.
    """

    def __init__(
        self,
        options: CaptureOptions | None = None,
        *,
        progress: Progress | None = None,
        command: tuple[str, ...] = (),
        listener: Listener | None = None,
    ) -> None:
        self._temporary: Path | None = None
        if options is None:
            options = CaptureOptions(output=_temporary_folder())
            self._temporary = options.output.parent
        self.options = replace(options, step_on="marker")
        self._command, self._listener = command, listener
        self.folder: Path | None = None
        self._report = (progress or QUIET).report
        self._session: Session | None = None

    def __enter__(self) -> Tracer:
        silence_kineto()
        import_module("torch")  # the session hooks into it
        self._session = Session(self.options, self._command, report=self._report, stop=None, listener=self._listener)
        self._session.install()
        if self._listener is None:
            self._session.listener.choice.chosen = "marker"
        self._session.mark()
        return self

    @property
    def done(self) -> bool:
        """Return whether everything is captured."""
        return self._session is not None and self._session.complete

    def step(self) -> None:
        """End a step."""
        if self._session is not None and not self._session.complete:
            self._session.mark()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session = self._session
        if session is None:
            return
        session.close()
        if session.measured.files:
            ended = "finished" if error is None else "raised"
            session.note_what_is_missing()
            session.publish(ended, None)
            self.folder = session.folder.target
            name_cells(self.folder)
            return
        session.folder.discard()
        if self._temporary is not None:
            with contextlib.suppress(OSError):
                self._temporary.rmdir()
        if error is None and session.measured.notes and session.complete:
            raise CaptureError(f"No step was captured: {' '.join(session.all_notes)}")
        if error is None:
            raise CaptureError(
                f"No step was captured: the loop ended {progress_made(session)}. "
                "Call step() once per step, run more steps, or wait less with skip=2, steps=2."
            )


def capture_steps(
    step_fn: Callable[[], object],
    *,
    steps: int | None = None,
    skip: int | None = None,
    output: Path | None = None,
    max_seconds: float = 300.0,
    max_mb: float = MAX_MB,
    quick: bool = False,
    dataflow: bool = True,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Call ``step_fn`` until enough steps of it are captured; return the capture folder.

    Raises:
        UsageError: a bound that makes no sense.
        OutputError: the folder cannot be written.
    """
    options = CaptureOptions(
        output=output or _temporary_folder(), steps=steps, skip=skip, step_on="marker",
        max_seconds=max_seconds, max_mb=max_mb, quick=quick, dataflow=dataflow, force=force,
    )  # fmt: skip
    tracer = Tracer(options, progress=progress)
    with tracer:
        while not tracer.done:
            step_fn()
            tracer.step()
    if tracer.folder is None:  # __exit__ has raised
        raise CaptureError("No step was captured.")
    return tracer.folder


def _temporary_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="diagnose-")) / "capture"
