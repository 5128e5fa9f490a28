"""Traces a script in this process: runs it as Python would, captures steps of it, writes the folder."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from diagnose.capture.options import CaptureOptions
from diagnose.capture.process.failure_messages import nothing_captured
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
    watch_spawned,
)
from diagnose.capture.process.script import BY_SIGNAL, Outcome, check_script, run_script, stop_script
from diagnose.capture.record.session import Session
from diagnose.capture.steps.hooks import Undo, when_imported

if TYPE_CHECKING:
    from diagnose.model.capture import CaptureInfo

__all__ = ["CaptureResult", "Progress", "leave_behind", "silence_kineto", "trace_script"]

KINETO_SILENT = "99"  # above every level that Kineto writes at (5, its documented highest, still lets lines through)


class Progress(Protocol):
    """Anything that can show a line."""

    def report(self, text: str) -> None:
        """Show one line."""


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
    report = progress.report if progress is not None else _report_nothing
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
    undo.append(watch_spawned(session, is_first, all_captured))
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


def _report_nothing(text: str) -> None:
    """Show nothing."""
