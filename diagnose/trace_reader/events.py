"""Every event of a file into rows, block by block, however damaged the file is."""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from diagnose.trace_reader.blocks import MAX_EVENT_BYTES, Window
from diagnose.trace_reader.lenient import Salvage, flatten, repair, salvage
from diagnose.trace_reader.rows import ImpreciseTimesError, Rows
from diagnose.trace_reader.schema import Event, ExactEvent

__all__ = ["Ending", "read_events"]

# Reading such events takes twenty times as long as sound ones: a file of nothing else would take minutes, for nothing.
MAX_UNREADABLE = 100_000  # events; a recorded trace has one or two, where its end was lost
MAX_TOO_DEEP_BYTES = 8 << 20  # text with nesting that no profiler writes

_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_EVENTS = msgspec.json.Decoder(list[Event], strict=False)
_EXACT_EVENTS = msgspec.json.Decoder(list[ExactEvent], strict=False)


@dataclass(frozen=True, slots=True)
class Ending:
    """How the list of events ended."""

    complete: bool  # its closing bracket was there
    text: bytes  # what stands behind it, as far as it was read
    num_skipped: int  # events that could not be parsed
    fault: str = ""  # why reading stopped before the end of the file


class _Reader:
    """Parses blocks into ``rows``; once times turn out to need their digits, all later blocks keep them."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._exact = False
        self._too_deep_bytes = 0
        self.num_skipped = 0

    @property
    def fault(self) -> str:
        """Return why no more of the file is worth reading, "" while it is."""
        if self.num_skipped > MAX_UNREADABLE:
            return f"more than {MAX_UNREADABLE:,} events in it cannot be parsed"
        return "too many events in it are nested too deeply" if self._too_deep_bytes > MAX_TOO_DEEP_BYTES else ""

    def take(self, block: memoryview | bytes, *, is_last: bool) -> Salvage:
        """Append the events of a JSON list, which may end before the block does or not end at all.

        An event that does not end is handed back, to be read with what follows it; in the last block it is skipped.
        """
        try:
            self._append(block)
        except (msgspec.ValidationError, RecursionError):
            return self._take_slowly(bytes(block[1:]), is_last=is_last)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            found = _TRAILING.search(str(error))
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
        if not self._exact:
            try:
                self._rows.add(_EVENTS.decode(block))
            except ImpreciseTimesError:
                self._exact = True
            else:
                return
        self._rows.add(_EXACT_EVENTS.decode(block))

    def _salvage(self, text: bytes, *, is_last: bool) -> Salvage:
        try:
            found = salvage(text, is_last=is_last)
        except RecursionError:
            self._too_deep_bytes += len(text)
            found = salvage(flatten(text), is_last=is_last, flattened=True)
        self._rows.add(found.events)
        self.num_skipped += found.num_skipped
        return found


def read_events(window: Window, rows: Rows) -> Ending:
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
