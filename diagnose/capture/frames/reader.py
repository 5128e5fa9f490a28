"""Reads where the threads of another process are.

The process goes on meanwhile: a frame may have ended before it is read. What is read is therefore checked (a code
object must be one, an instruction must lie in it), and what does not fit is read anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType

from .codes import Code, Codes
from .layout import BYTES_DATA, Addresses, Layout
from .memory import WORD, Memory, UnreadableError, word_at

__all__ = ["EndedError", "FrameReader", "Place"]

Place = tuple[str, int, str]  # file, line, function

MAX_FRAMES = 500
MAX_TRIES = 8  # of one sample
BEHIND_BYTES = 2048  # callers lie in front of a frame in memory: most are read with it
PAGE_BYTES = 4096
BATCH = 6  # code objects read at once


class EndedError(UnreadableError):
    """The thread is no longer there."""


class Seen:
    """A frame: its code object, the instruction that it is at, in bytes, and where that one lies."""

    __slots__ = ("address", "at", "code")

    def __init__(self, code: Code, at: int, address: int) -> None:
        self.code, self.at, self.address = code, at, address

    @property
    def place(self) -> Place:
        """Return the file, the line and the function."""
        return self.code.place(self.at)


class FrameReader:
    """Reads frames of one process whose interpreter has the layout."""

    def __init__(self, memory: Memory, layout: Layout, process: Addresses, libraries: tuple[str, ...]) -> None:
        self._memory, self._layout, self._process = memory, layout, process
        self._codes = Codes(memory, layout, process, libraries)
        threads = layout.thread_ident, layout.thread_next, layout.thread_previous, layout.thread_frame
        self._thread_bytes = max(threads) + WORD
        self._inline = bool(CodeType.__itemsize__)  # instructions are a part of their code object, as since 3.11
        self._frame_bytes = max(layout.frame_code, layout.frame_previous, layout.frame_at) + WORD

    def thread(self, ident: int) -> int:
        """Return the address of a thread by its number, from ``process.thread`` on to both sides.

        Raises:
            EndedError: there is none.
        """
        for address, found in self.threads():
            if found == ident:
                return address
        raise EndedError("There is no such thread.")

    def threads(self) -> Iterator[tuple[int, int]]:
        """Yield the address and the number of every thread."""
        first = self._process.thread
        for offset in (self._layout.thread_next, self._layout.thread_previous):
            address, seen = first, set[int]()
            while address and address not in seen and len(seen) < MAX_FRAMES:
                seen.add(address)
                data = self._memory.read(address, self._thread_bytes)
                if address != first or offset == self._layout.thread_next:
                    yield address, word_at(data, self._layout.thread_ident)
                address = word_at(data, offset)

    def users(self, thread: int, ident: int, depth: int) -> tuple[Seen, ...]:
        """Return up to ``depth`` frames of user code, the innermost first; the innermost of all where there is none.

        Raises:
            EndedError: the thread has ended.
            UnreadableError: no try gave frames that fit together.
        """
        found = self._tried(thread, ident, depth)
        users = tuple(each for each in found if each.code.is_users)
        return users[:depth] or tuple(found[:1])

    def innermost(self, thread: int, ident: int) -> tuple[Seen, Seen]:
        """Return the innermost frame, and the innermost of user code, which is the same where there is none."""
        found = self._tried(thread, ident, 1)
        return found[0], next((each for each in found if each.code.is_users), found[0])

    def _tried(self, thread: int, ident: int, depth: int) -> list[Seen]:
        reason = ""
        for _ in range(MAX_TRIES):
            try:
                found = self._frames(thread, ident, depth)
            except EndedError:
                raise
            except UnreadableError as error:
                reason = str(error)
                continue
            if found:
                return found
        raise UnreadableError(reason or "The thread runs no Python.")

    def _frames(self, thread: int, ident: int, depth: int) -> list[Seen]:
        """Return frames from the innermost one on, until ``depth`` of them are the user's."""
        found: list[Seen] = []
        left, batch = depth, list[tuple[int, int]]()
        for frame in self._chain(thread, ident):
            batch.append(frame)
            if len(batch) == BATCH:
                left -= self._resolve(batch, found)
                batch.clear()
                if left <= 0:
                    return found
        self._resolve(batch, found)
        return found

    def _resolve(self, batch: list[tuple[int, int]], found: list[Seen]) -> int:
        """Add what the frames run to ``found``; return how many of them are the user's."""
        if not batch:
            return 0
        size, users = self._codes.num_bytes, 0
        data = self._memory.read_parts([(code, size) for code, _ in batch], size * len(batch))
        for i, (address, instruction) in enumerate(batch):
            head = data[i * size : (i + 1) * size]
            code = self._codes.of(address, head)
            if self._inline:
                begin, at = 0, instruction - address - self._layout.code_bytes
            else:
                begin, at = word_at(head, self._layout.code_bytes) + BYTES_DATA, instruction * 2
            if not -2 <= at < code.size:
                raise UnreadableError("It is at no instruction of its code.")
            found.append(Seen(code, at, begin + at if begin else instruction))
            users += code.is_users
        return users

    def _chain(self, thread: int, ident: int) -> Iterator[tuple[int, int]]:
        """Yield the code object and the instruction of each frame, the innermost first."""
        layout, size = self._layout, self._frame_bytes
        frame = self._innermost(thread, ident)
        data, begin = b"", 0
        for _ in range(MAX_FRAMES):
            if not frame:
                return
            at = frame - begin
            if not 0 <= at <= len(data) - size:
                begin = max(frame - BEHIND_BYTES, frame & -PAGE_BYTES)  # what precedes the page may not be there
                data, at = self._memory.read(begin, frame - begin + size), frame - begin
            code = word_at(data, at + layout.frame_code)
            if self._inline:
                instruction = word_at(data, at + layout.frame_at)
            else:
                field = at + layout.frame_at
                instruction = int.from_bytes(data[field : field + 4], "little", signed=True)
            if code != self._process.of_none:  # where C calls into Python there is a frame without code
                yield code, instruction
            frame = word_at(data, at + layout.frame_previous)

    def _innermost(self, thread: int, ident: int) -> int:
        """Return the address of a thread's innermost frame, 0 where it runs none."""
        data = self._memory.read(thread, self._thread_bytes)
        if word_at(data, self._layout.thread_ident) != ident:
            raise EndedError("The thread has ended.")
        frame = word_at(data, self._layout.thread_frame)
        link = self._layout.link_frame
        return frame if link < 0 or not frame else word_at(self._memory.read(frame + link, WORD), 0)
