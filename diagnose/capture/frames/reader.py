"""Reads where the threads of another process are.

The process goes on meanwhile: a frame may have ended before it is read. What is read is therefore checked (a code
object must be one, an instruction must lie in it), and what does not fit is read anew.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from types import CodeType

from .layout import (
    BYTES_DATA,
    MAX_READ_BYTES,
    OBJECT_TYPE,
    VAR_SIZE,
    WORD,
    Addresses,
    Layout,
    Memory,
    UnreadableError,
    word_at,
)

# What a code object of another process is: its file, its function and the line of each instruction.

# Of packages that lie anywhere (those of another environment, or of the user alone), and of compiled code.
PACKAGES = ("/site-packages/", "/dist-packages/", "/torchinductor_")


class Code:
    """A code object, as much as a sample needs of it."""

    def __init__(self, file: str, name: str, lines: list[tuple[int, int]], size: int, *, users: bool) -> None:
        self.file, self.name, self.size, self.is_users = file, name, size, users
        self._starts, self._lines = [start for start, _ in lines], [line for _, line in lines]
        self._places: dict[int, tuple[str, int, str]] = {}

    def place(self, at: int) -> tuple[str, int, str]:
        """Return the file, the line and the function of the instruction at an offset in bytes."""
        found = self._places.get(at)
        if found is None:
            i = bisect_right(self._starts, max(at, 0)) - 1
            found = self._places[at] = self.file, self._lines[i] if i >= 0 else 0, self.name
        return found


class Codes:
    """The code objects of a process, each read once."""

    def __init__(self, memory: Memory, layout: Layout, types: Addresses, libraries: tuple[str, ...]) -> None:
        """``libraries`` is what the files of code begin with that is not the user's."""
        self._memory, self._layout, self._types, self._libraries = memory, layout, types, libraries
        fields = (layout.code_line, layout.code_file, layout.code_name, layout.code_table)
        self._fields = slice(min(fields), max(fields) + WORD)  # they never change
        self.num_bytes = self._fields.stop
        self._known: dict[tuple[int, bytes, bytes], Code] = {}

    def of(self, address: int, data: bytes) -> Code:
        """Return the code object at an address, whose first ``num_bytes`` bytes are given.

        Raises:
            UnreadableError: it is none, or no longer.
        """
        key = address, data[OBJECT_TYPE : VAR_SIZE + WORD], data[self._fields]
        found = self._known.get(key)
        if found is None:
            if word_at(data, OBJECT_TYPE) != self._types.of_code:
                raise UnreadableError("It is not a code object.")
            # A script that makes code as it runs must not fill the memory.
            if len(self._known) >= 20_000:
                self._known.clear()
            try:
                found = self._known[key] = self._read(data)
            except (ValueError, OverflowError, SystemError) as error:  # it was freed meanwhile, and holds anything
                raise UnreadableError(str(error)) from error
        return found

    def _read(self, data: bytes) -> Code:
        layout = self._layout
        file, name = (self._text(word_at(data, at)) for at in (layout.code_file, layout.code_name))
        size = word_at(data, VAR_SIZE) * CodeType.__itemsize__
        if not 0 < size <= MAX_READ_BYTES:
            raise UnreadableError("It is not a code object.")
        table = self._bytes(word_at(data, layout.code_table))
        first = int.from_bytes(data[layout.code_line : layout.code_line + 4], "little", signed=True)
        users = not file.startswith(self._libraries) and not any(folder in file for folder in PACKAGES)
        return Code(file, name, _lines(size, first, table), size, users=users)

    def _text(self, address: int) -> str:
        texts = self._layout.texts
        head = self._memory.read(address, texts.state + 4)
        length = word_at(head, VAR_SIZE)
        state = int.from_bytes(head[texts.state :], "little") & texts.mask
        form = texts.forms.get(state)
        if word_at(head, OBJECT_TYPE) != self._types.of_text or form is None or length > 1 << 14:
            raise UnreadableError("It is not a text.")
        begin, width, coding = form
        data = self._memory.read(address + begin, length * width) if length else b""
        return data.decode(coding, "surrogatepass" if width > 1 else "strict")

    def _bytes(self, address: int) -> bytes:
        head = self._memory.read(address, VAR_SIZE + WORD)
        if word_at(head, OBJECT_TYPE) != self._types.of_bytes:
            raise UnreadableError("They are not bytes.")
        length = word_at(head, VAR_SIZE)
        return self._memory.read(address + BYTES_DATA, length) if length else b""


def _lines(size: int, first: int, table: bytes) -> list[tuple[int, int]]:
    """Return where each line's instructions begin, by a code object of this process with the same table."""
    code = _lines.__code__.replace(co_code=bytes(size), co_firstlineno=first, co_linetable=table)
    found, last = [], first
    for start, _, line in code.co_lines():
        last = last if line is None else line  # what has no line of its own belongs to the one before
        found.append((start, last))
    return found


Place = tuple[str, int, str]  # file, line, function

MAX_STACK = 500


class EndedError(UnreadableError):
    """The thread is no longer there."""


class Seen:
    """A frame: its code object, and the instruction that it is at, in bytes."""

    __slots__ = ("at", "code")

    def __init__(self, code: Code, at: int) -> None:
        self.code, self.at = code, at

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
            while address and address not in seen and len(seen) < MAX_STACK:
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

    def innermost(self, thread: int, ident: int) -> Seen:
        """Return the innermost frame."""
        return self._tried(thread, ident, 1)[0]

    def _tried(self, thread: int, ident: int, depth: int) -> list[Seen]:
        reason = ""
        for _ in range(8):
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
            if len(batch) == 6:  # code objects are read at once
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
            at = instruction - address - CodeType.__basicsize__
            if not -2 <= at < code.size:
                raise UnreadableError("It is at no instruction of its code.")
            found.append(Seen(code, at))
            users += code.is_users
        return users

    def _chain(self, thread: int, ident: int) -> Iterator[tuple[int, int]]:
        """Yield the code object and the instruction of each frame, the innermost first."""
        layout, size = self._layout, self._frame_bytes
        frame = self._innermost(thread, ident)
        data, begin = b"", 0
        for _ in range(MAX_STACK):
            if not frame:
                return
            at = frame - begin
            if not 0 <= at <= len(data) - size:
                # Callers lie in front of a frame in memory: most are read with it.
                begin = max(frame - 2048, frame & -4096)  # what precedes the page may not be there
                data, at = self._memory.read(begin, frame - begin + size), frame - begin
            code = word_at(data, at + layout.frame_code)
            if code != self._process.of_none:  # where C calls into Python there is a frame without code
                yield code, word_at(data, at + layout.frame_at)
            frame = word_at(data, at + layout.frame_previous)

    def _innermost(self, thread: int, ident: int) -> int:
        """Return the address of a thread's innermost frame, 0 where it runs none."""
        data = self._memory.read(thread, self._thread_bytes)
        if word_at(data, self._layout.thread_ident) != ident:
            raise EndedError("The thread has ended.")
        frame = word_at(data, self._layout.thread_frame)
        link = self._layout.link_frame
        return frame if link < 0 or not frame else word_at(self._memory.read(frame + link, WORD), 0)
