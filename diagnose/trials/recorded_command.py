"""The command that a capture was recorded with: data from a file that anybody may have written, so checked in full."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from diagnose.errors import UsageError
from diagnose.text.masking import MASK
from diagnose.text.plain_text import clean
from diagnose.trials.runs import Command

__all__ = ["recorded_command"]

MAX_DESCRIPTION_BYTES = 64 << 20  # of capture.json; with an hour of readings of eight GPUs it has some megabytes
MAX_COMMAND = 32_000  # characters: what is to be agreed to must be readable
MAX_RANKS = 1_024  # started on this machine


def recorded_command(capture: Path, launcher: tuple[str, ...]) -> Command:
    """Return what to run again.

    Raises:
        UsageError: the folder is no capture, or what it has recorded cannot be run here.
    """
    described = sorted(capture.glob("capture*.json"))
    if not described:
        raise UsageError(
            f"{capture} is no capture of diagnose trace, so the command to run is not known; name the script."
        )
    info = _content(described[0])
    script, cwd, world = _script(info, described[0]), _cwd(info, described[0]), _world_size(info, described[0])
    if script[0] != "-m" and not Path(cwd, script[0]).is_file() and not Path(cwd, script[0], "__main__.py").is_file():
        raise _cannot(described[0], "its script does not exist here")
    if world > 1 and not launcher:
        launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}")
    return Command(script, cwd, launcher)


def _content(path: Path) -> Mapping[str, object]:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_DESCRIPTION_BYTES:
            raise _cannot(path, "it is no description of a capture")
        info = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _cannot(path, "it cannot be read") from error
    if not isinstance(info, dict):
        raise _cannot(path, "it is no description of a capture")
    return info


def _script(info: Mapping[str, object], path: Path) -> tuple[str, ...]:
    words = info.get("command")
    if not isinstance(words, list) or not words or not all(_is_word(word) for word in words):
        raise _cannot(path, "it holds no command")
    if words[0] in ("", "<notebook>") or words == ["-m"]:
        raise _cannot(path, "it was not captured from a script")
    if sum(map(len, words)) > MAX_COMMAND:
        raise _cannot(path, f"its command is longer than {MAX_COMMAND:,} characters")
    if any(MASK in word for word in words):
        first = clean(" ".join(words[: 1 + (words[0] == "-m")]))
        raise UsageError(
            f"{path} holds the command with its credentials masked, so it cannot be run again from there; name the "
            f"script with its arguments: diagnose prove {first} …"
        )
    return tuple(words)


def _cwd(info: Mapping[str, object], path: Path) -> Path:
    cwd = info.get("cwd") or "."
    if not _is_word(cwd) or not Path(str(cwd)).is_dir():
        raise _cannot(path, "the folder that it ran in does not exist here")
    return Path(str(cwd)).absolute()


def _world_size(info: Mapping[str, object], path: Path) -> int:
    world = info.get("world_size", 1)
    if not isinstance(world, int) or isinstance(world, bool) or not 1 <= world <= MAX_RANKS:
        raise _cannot(path, f"its world_size is no number of ranks from 1 to {MAX_RANKS:,}")
    return world


def _is_word(word: object) -> bool:
    """Tell whether the operating system would take it as an argument."""
    try:
        return isinstance(word, str) and b"\0" not in os.fsencode(word)
    except UnicodeEncodeError:
        return False


def _cannot(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} does not show a command that can be run again: {why}; name the script instead.")
