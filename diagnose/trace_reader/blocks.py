"""The text of a trace, a quarter of a megabyte at a time, cut between two events.

A block is parsed in place: nothing is copied, and the memory that one block's events took serves the next. Every
byte is looked at a bounded number of times: where no cut is found, the window doubles before the next attempt.
"""

from __future__ import annotations

import re

from diagnose.trace_reader.source import Source

__all__ = ["BLOCK_BYTES", "MAX_EVENT_BYTES", "Window"]

# Blocks and their events stay in the processor's cache: with 1 MB blocks parsing takes 1.7 times as long.
BLOCK_BYTES = 1 << 18
MAX_EVENT_BYTES = 1 << 22  # bytes; the longest in a recorded trace, with its call stack, has a few hundred kB

_EVENT = re.compile(rb'\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id|s|bp)"')
_EVENT_START_BYTES = 160  # bytes around an opening brace that show whether an event begins there
_MAX_BRACES = 256  # opening braces looked at, from the end of the block


class Window:
    """A part of the file: ``[`` and what was read and not yet consumed."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._buffer = bytearray(b"[").ljust(2 * BLOCK_BYTES, b"\0")
        self._end = 1

    def __len__(self) -> int:
        """Return how many bytes are left to consume."""
        return self._end - 1

    def fill(self) -> bool:
        """Read about a block more, or as much as is left unconsumed; False at the end of the file."""
        wanted = self._end + max(BLOCK_BYTES, self._end)
        if wanted > len(self._buffer):
            self._buffer = self._buffer.ljust(wanted + BLOCK_BYTES, b"\0")
        start = self._end
        with memoryview(self._buffer) as view:
            while self._end < wanted and (count := self._source.readinto(view[self._end : wanted])):
                self._end += count
        return self._end > start

    def text(self) -> bytes:
        """Return what is left."""
        return bytes(self._buffer[1 : self._end])

    def replace(self, text: bytes) -> None:
        """Put this text in the place of what is left."""
        self._buffer[1 : self._end] = text
        self._end = 1 + len(text)

    def last_edge(self) -> int:
        """Return where the comma before the last event stands, 0 where there is none."""
        at, buffer = self._end, self._buffer
        for _ in range(_MAX_BRACES):
            at = buffer.rfind(b"{", 1, at)
            if at < 0:
                return 0
            before = buffer[max(at - _EVENT_START_BYTES, 1) : at].rstrip()
            if before.endswith(b",") and before[:-1].rstrip().endswith(b"}") and _EVENT.match(buffer, at):
                return buffer.rfind(b",", 1, at)
        return 0

    def close(self, edge: int) -> memoryview:
        """Return the JSON list of the events before ``edge``, valid until the window changes."""
        self._buffer[edge : edge + 1] = b"]"
        return memoryview(self._buffer)[: edge + 1]

    def everything(self) -> memoryview:
        """Return the opening bracket and all that is left."""
        return memoryview(self._buffer)[: self._end]

    def after(self, edge: int) -> bytes:
        """Return what stands behind ``edge``."""
        return bytes(self._buffer[edge + 1 : self._end])

    def drop(self, edge: int, carry: bytes = b"") -> None:
        """Forget what stands before ``edge``; ``carry`` takes its place."""
        self.replace(carry + self.after(edge))

    def read_rest(self, limit: int) -> bytes:
        """Return the rest of the file, of which at most about ``limit`` bytes are read."""
        self._end = 1
        while self._end < limit and self.fill():
            pass
        return self.text()
