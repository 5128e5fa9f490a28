"""Traces the script in a process of its own, before the trials and after them; where that fails, says why."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from diagnose.errors import CaptureError
from diagnose.progress import Progress
from diagnose.text.plain_text import middle, one_line
from diagnose.trials.runs import Runner

__all__ = ["record"]

TIMEOUT_S, LEAST_TIMEOUT_S = 600.0, 60.0
SHOWN_LINES, SHOWN_WIDTH = 20, 300  # of what a script printed that could not be traced: its traceback
AT_INPUT = " In these runs its standard input is empty: let it take from its arguments what it asks for."


def record(runner: Runner, ids: Sequence[str], capture: Path, budget_s: float, progress: Progress) -> None:
    """Trace the script with patches into a folder.

    Raises:
        CaptureError: it could not be traced; without patches, the end of what it printed stands on standard error.
    """
    why = f"with {' and '.join(ids)}, to see what binds it then" if ids else "to find what holds it back"
    with progress.phase(f"tracing {runner.command.text} {why}"):
        run = runner.trace(ids, capture, timeout_s=min(TIMEOUT_S, max(budget_s, LEAST_TIMEOUT_S)))
    if run.failure:
        if not ids and runner.last_log is not None:
            sys.stderr.write(_end_of(runner.last_log))
        raise CaptureError(f"{run.failure}{AT_INPUT if 'EOFError' in run.failure else ''}")


def _end_of(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "".join(f"{middle(one_line(line), SHOWN_WIDTH)}\n" for line in lines[-SHOWN_LINES:])
