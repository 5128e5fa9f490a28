"""Dictionaries that number what they are asked for: strings, threads and places are stored once."""

from __future__ import annotations

import json
import re

from diagnose.model.events import Thread

__all__ = ["Names", "Texts", "Threads", "printable", "shortened"]

_MAX_THREADS = 32_767  # Events.thread is int16; what comes later counts as an unknown thread

_MAX_NAME_CHARS = 60  # characters of a name in a sentence

# Control characters but tab and line feed, marks that turn the direction of writing, halves of surrogate pairs: on a
# terminal, in a page or in UTF-8 they do harm, and no name of an operator, kernel or thread has any.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return the text with U+FFFD in the place of characters that cannot be shown."""
    return text if text.isprintable() else _UNPRINTABLE.sub("\ufffd", text)


def shortened(name: str) -> str:
    """Return a name as a sentence can hold it."""
    text = printable(name[:_MAX_NAME_CHARS]).replace("\n", " ")
    return text if len(name) <= _MAX_NAME_CHARS else f"{text}…"


class Names(dict[str, int]):
    """String to row of ``Trace.names``."""

    def __missing__(self, text: str) -> int:
        row = self[text] = len(self)
        return row


class Texts(dict[bytes, int]):
    """JSON text of a list, as it stands in the file, to the row of its normalised text; -1 for no text.

    Exporters lay the same list out differently, one even with a number per line.
    """

    def __init__(self, names: Names) -> None:
        super().__init__({b"": -1})
        self._names = names

    def __missing__(self, raw: bytes) -> int:
        try:
            text = json.dumps(json.loads(raw))
        except (ValueError, RecursionError):
            text = raw.decode(errors="replace")
        row = self[raw] = self._names[text]
        return row


class Threads(dict[tuple[int | str, int | str], int]):
    """(pid, tid) to row of ``Trace.threads``; ids that are a number once and text another time are one thread."""

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[tuple[str, str], int] = {}
        self._names: dict[tuple[str, str], str] = {}

    def __missing__(self, key: tuple[int | str, int | str]) -> int:
        pid, tid = str(key[0]), str(key[1])
        if pid == "-1":  # the profiler's own overhead belongs to no thread
            row = -1
        elif len(self._rows) < _MAX_THREADS:
            row = self._rows.setdefault((pid, tid), len(self._rows))
        else:
            row = self._rows.get((pid, tid), -1)
        self[key] = row
        return row

    def call(self, pid: int | str, tid: int | str, name: str) -> None:
        """Remember a thread's name; it counts only where the thread recorded events."""
        self._names[str(pid), str(tid)] = name.strip()

    def of_unknown(self) -> int:
        """Return the row of the thread that stands for all events without one."""
        return self._rows.setdefault(("", ""), len(self._rows))

    def threads(self) -> tuple[Thread, ...]:
        """Return the threads in the order of their rows."""
        return tuple(
            Thread(printable(pid), printable(tid), printable(self._names.get((pid, tid), "")))
            for pid, tid in self._rows
        )
