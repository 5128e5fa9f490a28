"""What a run has left: its result, which the script may have damaged, and the end of what it printed."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

from diagnose.text.plain_text import clean
from diagnose.trials.spec import TrialRequest, TrialResult

__all__ = ["last_line", "read_result", "shorten"]

LAST_BYTES = 20_000  # of the output that are looked through for its last line
LOG_MB = 1.0  # of a run's output that is kept: its end
MAX_RESULT_BYTES = 64 << 20  # of what a run measured: some thousand steps are below a megabyte


def shorten(log: Path) -> None:
    """Keep the end of a long log."""
    keep = int(LOG_MB * 1e6)
    if log.stat().st_size <= keep:
        return
    with log.open("rb") as file:
        file.seek(-keep, os.SEEK_END)
        tail = file.read()
    log.write_bytes(b"[the beginning was cut off]\n" + tail)


def read_result(folder: Path, order: TrialRequest, code: int | None, timeout_s: float, last: str) -> TrialResult:
    """Return what the run left; what cannot be read, whatever the script did to it, is a failed run."""
    if code is None:
        return TrialResult(ids=order.ids, failure=f"It had not ended after {timeout_s:.0f} s and was killed{last}.")
    try:
        return replace(TrialResult.from_json(_text_of(folder / "result.json")), ids=order.ids)
    except FileNotFoundError:
        why = f"It ended with exit code {code} before anything was measured{last}."
    except (OSError, ValueError, TypeError, RecursionError) as error:
        why = f"It ended with exit code {code} and left a result that cannot be used: {clean(str(error))[:160]}{last}."
    return TrialResult(ids=order.ids, exit_code=code, failure=why)


def _text_of(path: Path) -> str:
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is not a regular file")
    if found.st_size > MAX_RESULT_BYTES:
        raise ValueError(f"it has {found.st_size / 1e6:.0f} MB")
    return path.read_text(encoding="utf-8")


def last_line(log: Path) -> str:
    """Return the last line of a log as a part of a sentence, "" where there is none."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LAST_BYTES))
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return f" (its last line: {clean(lines[-1])[:160]})" if lines else ""
