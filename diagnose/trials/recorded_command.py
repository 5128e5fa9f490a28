"""The command that a capture was recorded with: data from a file that anybody may have written, so checked in full."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from diagnose.errors import InputError, UsageError
from diagnose.model.capture import MAX_INFO_BYTES, CaptureInfo
from diagnose.text.masking import MASK
from diagnose.text.plain_text import clean
from diagnose.trials.runs import Command

__all__ = ["recorded_command"]

MAX_COMMAND = 32_000  # characters: what is to be agreed to must be readable
LOST_CHARACTER = "\ufffd"  # stands for what was no UTF-8
MAX_STARTED_RANKS = 1_024  # started on this machine


def recorded_command(capture: Path, launcher: tuple[str, ...]) -> Command:
    """Return what to run again.

    Raises:
        UsageError: the folder is no capture, or what it has recorded cannot be run here.
    """
    described = sorted(capture.glob("capture*.json"))
    if not described:
        raise UsageError(
            f"Invalid capture {capture}: it holds no command; use a capture of diagnose trace, or name the script."
        )
    info = _info(described[0])
    script, cwd, world = _script(info, described[0]), _cwd(info, described[0]), _world_size(info, described[0])
    if script[0] != "-m" and not Path(cwd, script[0]).is_file() and not Path(cwd, script[0], "__main__.py").is_file():
        raise _cannot(described[0], "its script does not exist here")
    if world > 1 and not launcher:
        launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}")
    return Command(script, cwd, launcher)


def _info(path: Path) -> CaptureInfo:
    """Read the description as it is: what is masked for display could not be run."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_INFO_BYTES:
            raise _cannot(path, "it is not a description of a capture")
        return CaptureInfo.from_json(path.read_bytes(), source=str(path))
    except OSError as error:
        raise _cannot(path, "it cannot be read") from error
    except InputError as error:
        raise UsageError(f"{error} Or name the script instead.") from None


def _script(info: CaptureInfo, path: Path) -> tuple[str, ...]:
    words = info.command
    if not words or not all(map(_is_word, words)):
        raise _cannot(path, "it holds no command")
    if words[0] in ("", "<notebook>") or words == ("-m",):
        raise _cannot(path, "it was not captured from a script")
    if sum(map(len, words)) > MAX_COMMAND:
        raise _cannot(path, f"its command is longer than {MAX_COMMAND:,} characters")
    if any(MASK in word for word in words):
        first = clean(" ".join(words[: 1 + (words[0] == "-m")]))
        raise UsageError(
            f"{path} holds the command with its credentials masked, so it cannot be run again from there; name the "
            f"script with its arguments: diagnose prove {first} …"
        )
    return words


def _cwd(info: CaptureInfo, path: Path) -> Path:
    cwd = info.cwd or "."
    if not _is_word(cwd) or not Path(cwd).is_dir():
        raise _cannot(path, "the folder that it ran in does not exist here")
    return Path(cwd).absolute()


def _world_size(info: CaptureInfo, path: Path) -> int:
    if info.world_size > MAX_STARTED_RANKS:
        raise _cannot(path, f"its world_size is not a number of ranks from 1 to {MAX_STARTED_RANKS:,}")
    return info.world_size


def _is_word(word: str) -> bool:
    """Return whether the operating system would take it as an argument, and it is what was recorded."""
    try:
        return LOST_CHARACTER not in word and b"\0" not in os.fsencode(word)
    except UnicodeEncodeError:
        return False


def _cannot(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} does not show a command that can be run again: {why}; name the script instead.")
