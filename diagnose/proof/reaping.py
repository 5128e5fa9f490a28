"""Ends what a trial has started, also what has left its process group, as torchrun's ranks do."""

from __future__ import annotations

import contextlib
import os
import signal

from diagnose.capture.process_cleanup import signal_marked

__all__ = ["VARIABLE", "end_all"]

VARIABLE = "DIAGNOSE_TRIAL"


def end_all(group: int, name: str, number: signal.Signals) -> None:
    """Send a signal to the process group and to every process of the run, wherever it is now."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
    signal_marked(VARIABLE, name, number)
