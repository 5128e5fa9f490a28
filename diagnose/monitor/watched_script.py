"""Runs a script in this process as Python would, watched from its first step to its last."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diagnose.capture.process.run import silence_kineto
from diagnose.capture.process.script import check_script, run_script
from diagnose.capture.steps.hooks import when_imported
from diagnose.monitor.long_run import Watch
from diagnose.monitor.watch_options import WatchOptions

__all__ = ["watch_script"]


def watch_script(
    argv: Sequence[str], options: WatchOptions, *, module: bool, report: Callable[[str], None]
) -> tuple[int, Watch]:
    """Run ``argv`` as the main program; return its exit code and the watch, which is over.

    Raises:
        UsageError: there is no such script.
        OutputError: the run's folder cannot be made.
    """
    check_script(argv, module=module)
    silence_kineto()
    watch = Watch(options, command=(*(("-m",) if module else ()), *argv), report=report)
    forget = when_imported("torch", watch.install)
    outcome = run_script(argv, module=module)
    forget()
    error = outcome.error
    failed = outcome.ended != "finished"
    watch.close(outcome.ended if error is None or not failed else type(error).__name__)
    return outcome.exit_code, watch
