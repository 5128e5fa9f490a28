"""Traces the script in a process of its own, before the trials and after them; where that fails, states why."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from diagnose.errors import CaptureError
from diagnose.text.plain_text import middle, one_line
from diagnose.text.progress import Progress
from diagnose.trials.runs import Runner

__all__ = ["in_the_copy", "record"]

TIMEOUT_S, LAST_S = 600.0, 1.0
RECORDING_SHARE = 1 / 3  # of the time that is left: a recording ends itself by then, with the steps that it has
SHOWN_LINES, SHOWN_WIDTH = 20, 300  # of what a script printed that could not be traced: its traceback
IN_COPY = (
    " It ran in a copy of the working folder; if it works where it stands, run it there with --cwd-mode same, which "
    "protects no file."
)
TOO_SHORT = " If that is too short for a recording, give --budget more."
AT_INPUT = " In these runs its standard input is empty: let it take from its arguments what it asks for."


def in_the_copy(runner: Runner) -> str:
    """Return the remedy for an unchanged script that failed in the copy of its working folder, "" elsewhere.

    How it failed does not matter: what it misses there, one script raises for and another prints and exits.
    """
    return IN_COPY if runner.cwd_mode == "copy" else ""


def record(runner: Runner, ids: Sequence[str], capture: Path, budget_s: float, progress: Progress) -> None:
    """Trace the script with patches into a folder.

    Raises:
        CaptureError: it could not be traced; without patches, the end of what it printed stands on standard error.
    """
    why = f"with {' and '.join(ids)}, to see what binds it then" if ids else "to find what holds it back"
    timeout_s = min(TIMEOUT_S, max(budget_s, LAST_S))
    with progress.phase(f"tracing {runner.command.text} {why}"):
        run = runner.trace(ids, capture, timeout_s=timeout_s, recording_s=RECORDING_SHARE * timeout_s)
    if run.failure:
        if not ids and runner.last_log is not None:
            sys.stderr.write(_end_of(runner.last_log))
        remedy = TOO_SHORT if run.wall_s >= timeout_s else _remedy(run.failure, runner, changed=bool(ids))
        raise CaptureError(f"{run.failure}{remedy}")


def _remedy(failure: str, runner: Runner, *, changed: bool) -> str:
    return f"{AT_INPUT if 'EOFError' in failure else ''}{'' if changed else in_the_copy(runner)}"


def _end_of(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "".join(f"{middle(one_line(line), SHOWN_WIDTH)}\n" for line in lines[-SHOWN_LINES:])
