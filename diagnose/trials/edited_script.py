"""Lets a script run with changes in its text, without touching its file."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from diagnose.changes import edits_script
from diagnose.changes.common.change import CannotApply, Log

__all__ = ["edited"]


@contextmanager
def edited(
    script: Sequence[str], ids: Sequence[str], arguments: Mapping[str, Mapping[str, Any]], log: Log, *, module: bool
) -> Iterator[None]:
    """Within the block, whoever opens the script's code gets it with those changes that are made in its text.

    Raises:
        CannotApply: a change cannot be made there; the sentence is the trial's result.
        UsageError: libcst is not installed, or the script is no Python.
    """
    wanted = [name for name in ids if edits_script(name)]
    if not wanted or (not module and not Path(script[0]).is_file()):
        yield
        return
    if module:
        raise CannotApply(f"{wanted[0]} is made in the text of a script, and this is a module.")
    from diagnose.trials.source_edits import edited_source

    file = Path(script[0])
    source, done, left = edited_source(file.read_text(encoding="utf-8"), str(file), wanted, arguments)
    if left:
        raise CannotApply(f"{next(iter(left))} cannot be made: {next(iter(left.values()))}.")
    for name in done:
        log.did(f"{name}, in the text of {file.name}")
    original, real = io.open_code, os.path.realpath(file)

    def open_code(path: str) -> IO[bytes]:
        return io.BytesIO(source.encode()) if os.path.realpath(path) == real else original(path)

    io.open_code = open_code
    try:
        yield
    finally:
        io.open_code = original
