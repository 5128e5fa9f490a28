"""Stores the text of the source lines that a report may quote, as they were when the script ran.

An analysis quotes these and opens no file that a capture names. What is stored is little: the lines that the sampler
saw (statements on several lines as one), the heads of the loops around them, the numbers of the lines at which samples
draw at random, the lines that build a list which one of them looks up in, credentials masked, and of each file a
checksum that identifies its version.
"""

from __future__ import annotations

import hashlib
import linecache
import stat
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from importlib.util import decode_source
from pathlib import Path
from typing import NamedTuple

from diagnose.capture.record.source_tree import SourceTree, source_tree
from diagnose.text.masking import mask_code

__all__ = ["SourceLines"]

MAX_LINES = 2_000  # half a minute of samples that never hit the same line twice
MAX_WIDTH = 400  # characters of a line; generated code has far longer ones
MAX_FILE_BYTES = 8_000_000  # a source file is smaller


class _File(NamedTuple):
    """One source file as it was read."""

    lines: Sequence[str]
    sha256: str  # of the file's bytes, "" for the cell of a notebook
    changed_at: str  # ISO 8601, UTC; "" for the cell of a notebook


class _Stored(NamedTuple):
    """What a capture holds of one source file."""

    sha256: str
    changed_at: str
    lines: dict[str, str]  # text by line
    loops: dict[str, int]  # last line by first line
    draws: list[int]  # lines
    seeded: list[int]  # lines
    lookups: list[Mapping[str, object]]  # of those lines, as ``LookupRecord``
    statements: dict[str, int]  # last line by first line, of those lines' statements on several


class SourceLines:
    """Reads source files of this process once each; ``cwd`` is what relative names started from.

    ``changed`` names those that were written since: what they hold now may not be what runs.
    """

    def __init__(self, cwd: Path) -> None:
        self._cwd = cwd
        self.changed: list[str] = []
        self._began = time.time()
        self._files: dict[str, _File | None] = {}
        self._trees: dict[str, SourceTree] = {}

    def stored(self, places: Iterable[tuple[str, int]]) -> dict[str, object]:
        """Return the content of the file for these files and lines; what cannot be read is left out."""
        found: dict[str, _Stored] = {}
        for name, line in list(dict.fromkeys(places))[:MAX_LINES]:
            file = self._file(name)
            if file is None or not (text := _line_of(file, line)):
                continue
            if name not in self._trees:
                self._trees[name] = source_tree(file.lines)
            loops, draws, seeded, lookups, statements = self._trees[name]
            each = found.setdefault(name, _Stored(file.sha256, file.changed_at, {}, {}, draws, seeded, [], {}))
            each.lookups.extend(known for known in lookups if _is_at(known, line) and known not in each.lookups)
            each.lines[str(line)] = text
            for head, last in loops:
                if head <= line <= last:
                    each.loops[str(head)] = last
                    each.lines.setdefault(str(head), _line_of(file, head))
            for first, last in statements:
                if first <= line <= last:
                    each.statements[str(first)] = last
                    each.lines[str(first)] = _statement_of(file, first, last)
        return {"files": {name: each._asdict() for name, each in found.items()}}

    def text(self, name: str) -> Sequence[str] | None:
        """Return all lines of a file of this process, None where it cannot be read or was changed since it began."""
        file = self._file(name)
        return file.lines if file is not None else None

    def _file(self, name: str) -> _File | None:
        if name not in self._files:
            try:
                self._files[name] = self._read(name)
            except (OSError, ValueError, SyntaxError):  # unreadable, an odd name, or no text of Python
                self._files[name] = None
        return self._files[name]

    def _read(self, name: str) -> _File | None:
        path = self._cwd / name
        if not path.exists():
            cell = linecache.getlines(name) if name in linecache.cache else []  # where notebooks keep their cells
            return _File(cell, "", "") if cell else None
        state = path.stat()
        if not stat.S_ISREG(state.st_mode) or state.st_size > MAX_FILE_BYTES:
            return None
        if state.st_mtime > self._began:
            if path.is_relative_to(self._cwd) or not path.is_relative_to(tempfile.gettempdir()):
                self.changed.append(name)  # else a library generated it as the script ran
            return None
        data = path.read_bytes()
        changed_at = datetime.fromtimestamp(state.st_mtime, timezone.utc).isoformat(timespec="seconds")
        return _File(decode_source(data).split("\n"), hashlib.sha256(data).hexdigest(), changed_at)


def _is_at(lookup: Mapping[str, object], line: int) -> bool:
    return int(str(lookup["line"])) <= line <= int(str(lookup["last"]))


def _statement_of(file: _File, first: int, last: int) -> str:
    """Return a statement on one line, credentials masked."""
    return mask_code(" ".join(_line_of(file, line) for line in range(first, last + 1)))[:MAX_WIDTH]


def _line_of(file: _File, line: int) -> str:
    """Return the text of a line as it is stored, "" where there is none."""
    text = file.lines[line - 1].strip() if 0 < line <= len(file.lines) else ""
    return mask_code(text[: 10 * MAX_WIDTH])[:MAX_WIDTH]
