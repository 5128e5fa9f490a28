"""What a script raised, as a part of a sentence, and what became of a trial."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.model.statistics import shows_no_difference

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Trial

__all__ = ["error_text", "sentence"]


def error_text(error: BaseException) -> str:
    """Return the exception's name and the first line of its message, without a full stop."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return f"{type(error).__name__}: {lines[0].rstrip('.')}{_saved_file(error)}"


def _saved_file(error: BaseException) -> str:
    """Return the name of the file that torch.save could not open, which its error lacks."""
    if "open file failed" not in str(error):
        return ""
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code.co_name == "save"]
    return next((f": {str(found['f'])!r}" for found in reversed(frames) if isinstance(found.get("f"), str | Path)), "")


def sentence(trial: Trial) -> str:
    """Return what became of a trial, for a line of progress."""
    if trial.failure:
        return f"{trial.id}: {trial.failure}"
    low, high = trial.interval
    even = "no difference" if shows_no_difference(trial) else "no difference that is certain"
    sure = "faster" if low > 1 else "slower" if high < 1 else even
    without = "without " if trial.kind == "without" else ""
    return f"{without}{trial.id}: {trial.speed_up:.2f} x ({low:.2f} to {high:.2f}), {sure}; losses {trial.numerics}"
