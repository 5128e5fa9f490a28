"""Reads the list of events block by block, however damaged the file is.

A block is a quarter of a megabyte of text that is cut between two events and parsed in place: nothing is copied, and
the memory that one block's events took serves the next. Every byte is looked at a bounded number of times: where no
cut is found, the window doubles before the next attempt.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from diagnose.trace_reader.lenient import EVENT_START, Salvage, repair, salvage
from diagnose.trace_reader.rows import EventRows, ImpreciseTimesError
from diagnose.trace_reader.schema import decoder_of_any, decoder_of_known
from diagnose.trace_reader.source import Source

# Blocks and their events stay in the processor's cache: with 1 MB blocks parsing takes 1.7 times as long.
READ_BLOCK_BYTES = 1 << 18
MAX_EVENT_BYTES = 1 << 22  # bytes; the longest in a recorded trace, with its call stack, has a few hundred kB

_EVENT = re.compile(EVENT_START.encode())
# Reading such events takes twenty times as long as sound ones: a file of nothing else would take minutes, for nothing.
MAX_UNREADABLE_EVENTS = 100_000  # events; a recorded trace has one or two, where its end was lost

_TRAILING = r"trailing characters \(byte (\d+)\)"


class Window:
    """A part of the file: ``[`` and what was read and not yet consumed."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._buffer = bytearray(b"[").ljust(2 * READ_BLOCK_BYTES, b"\0")
        self._end = 1

    def __len__(self) -> int:
        """Return how many bytes are left to consume."""
        return self._end - 1

    def fill(self) -> bool:
        """Read about a block more, or as much as is left unconsumed; False at the end of the file."""
        wanted = self._end + max(READ_BLOCK_BYTES, self._end)
        if wanted > len(self._buffer):
            self._buffer = self._buffer.ljust(wanted + READ_BLOCK_BYTES, b"\0")
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
        end = 1 + len(text)
        if end > len(self._buffer):
            self._buffer = bytearray(b"[" + text)
        else:  # never resized: a thread that looks at frames, as Dask's profiler does, may hold what was decoded
            self._buffer[1:end] = text
        self._end = end

    def last_edge(self) -> int:
        """Return where the comma before the last event stands, 0 where there is none."""
        at, buffer = self._end, self._buffer
        for _ in range(256):
            at = buffer.rfind(b"{", 1, at)
            if at < 0:
                return 0
            # The bytes around an opening brace show whether an event begins there.
            before = buffer[max(at - 160, 1) : at].rstrip()
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


class Ending(NamedTuple):
    """How the list of events ended."""

    complete: bool  # its closing bracket was there
    text: bytes  # what follows it, as far as it was read
    num_skipped: int  # events that could not be parsed
    fault: str = ""  # why reading stopped before the end of the file


class _Reader:
    """Parses blocks into ``rows``; once times turn out to need their digits, all later blocks keep them."""

    def __init__(self, rows: EventRows) -> None:
        self._rows = rows
        self._exact = False
        self._num_mixed = 0  # blocks with events of other categories than the known ones
        self.num_skipped = 0

    @property
    def fault(self) -> str:
        """Return why no more of the file is worth reading, "" while it is."""
        if self.num_skipped > MAX_UNREADABLE_EVENTS:
            return f"more than {MAX_UNREADABLE_EVENTS:,} events in it cannot be parsed"
        return ""

    def take(self, block: memoryview | bytes, *, is_last: bool) -> Salvage:
        """Append the events of a JSON list, which may end before the block does or not end at all.

        An event that does not end is handed back, to be read with what follows it; in the last block it is skipped.
        """
        try:
            self._append(block)
        except (msgspec.ValidationError, RecursionError):
            return self._take_slowly(bytes(block[1:]), is_last=is_last)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            found = re.search(_TRAILING, str(error))
            if found:
                return self._take_part(bytes(block), int(found.group(1)))
            return self._take_slowly(bytes(block[1:]), is_last=is_last)
        return Salvage(ended=True)

    def _take_part(self, block: bytes, beyond: int) -> Salvage:
        bracket = block.rfind(b"]", 0, beyond - 1)
        self.take(block[: bracket + 1], is_last=True)
        return Salvage(ended=True, rest=block[bracket + 1 :])

    def _take_slowly(self, text: bytes, *, is_last: bool) -> Salvage:
        try:
            self._append(b"[" + repair(text))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._salvage(text, is_last=is_last)
        return Salvage(ended=True)

    def _append(self, block: memoryview | bytes) -> None:
        try:
            self._rows.add(self._decode(block))
        except ImpreciseTimesError:
            self._exact = True
            self._rows.add(self._decode(block))

    def _decode(self, block: memoryview | bytes) -> list[Any]:
        # Blocks with events of other categories; metadata stands in the first and in the last one.
        if self._num_mixed < 8:
            try:
                return decoder_of_known(exact=self._exact).decode(block)
            except msgspec.ValidationError:
                self._num_mixed += 1
        return decoder_of_any(exact=self._exact).decode(block)

    def _salvage(self, text: bytes, *, is_last: bool) -> Salvage:
        found = salvage(text, is_last=is_last)
        self._rows.add(found.events)
        self.num_skipped += found.num_skipped
        return found


def read_events(window: Window, rows: EventRows) -> Ending:
    """Read the list whose beginning stands in the window, to its end or to where the file ends."""
    ending = _read_blocks(window, _Reader(rows))
    rows.flush()
    return ending


def _read_blocks(window: Window, reader: _Reader) -> Ending:
    too_long = f"an event in it is longer than {MAX_EVENT_BYTES >> 20} MB"
    overlong = False
    while True:
        edge = window.last_edge()
        if edge:
            found = reader.take(window.close(edge), is_last=edge > MAX_EVENT_BYTES)
            # The block's last character is the bracket that stands in for a comma.
            if found.ended and found.rest:
                return Ending(True, found.rest[:-1] + b"," + window.after(edge), reader.num_skipped)
            if len(found.rest) > MAX_EVENT_BYTES:
                return Ending(False, b"", reader.num_skipped, too_long)
            if reader.fault:
                return Ending(False, b"", reader.num_skipped, reader.fault)
            window.drop(edge, b"" if found.ended else found.rest[:-1] + b",")
        overlong = not edge and len(window) > MAX_EVENT_BYTES
        if overlong or not window.fill():
            break
    found = reader.take(window.everything(), is_last=True)
    fault = too_long if overlong and not found.ended else ""
    return Ending(found.ended, found.rest if found.ended else b"", reader.num_skipped, fault)
