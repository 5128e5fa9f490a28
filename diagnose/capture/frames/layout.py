"""Where the interpreter keeps what a sample needs, found in this process, which runs the same interpreter.

The structures of a thread, a frame and a code object differ between versions and builds of Python. Here all that they
hold is known, so that each field is found by its value, in the memory of this process.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import NamedTuple

# Reads the memory of a process, its own included, by Linux' process_vm_readv: no signal, no stop, no attaching.

WORD = struct.calcsize("P")
MAX_READ_BYTES = 1 << 20  # of one read; longer tables of lines do not occur


class UnreadableError(Exception):
    """Memory that is not there or may not be read, or that holds something else than was expected."""


class Memory:
    """The memory of one process."""

    def __init__(self, pid: int) -> None:
        # PyDLL keeps the lock, of which this process has no other use: releasing it would cost as much as the call
        readv = ctypes.PyDLL(None, use_errno=True).process_vm_readv
        pointer, number = ctypes.c_void_p, ctypes.c_ulong
        readv.argtypes = [ctypes.c_int, pointer, number, pointer, number, number]
        readv.restype = ctypes.c_ssize_t
        self.call, self.pid = readv, pid
        self._buffer = bytearray(MAX_READ_BYTES)
        self._local = bytearray(2 * WORD)
        self._remote = bytearray(2 * WORD * 64)  # parts of one read; Linux allows 1024
        self._at = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        self._local_at = ctypes.addressof(ctypes.c_char.from_buffer(self._local))
        self._remote_at = ctypes.addressof(ctypes.c_char.from_buffer(self._remote))

    def read(self, address: int, size: int) -> bytes:
        """Return ``size`` bytes.

        Raises:
            UnreadableError: not all of them can be read.
        """
        return self.read_parts(((address, size),), size)

    def read_parts(self, parts: Sequence[tuple[int, int]], least: int | None = None) -> bytes:
        """Return the bytes of several places by one call of the system, those of the first one first.

        ``least`` is how many of them must be readable, all of them by default; the rest may be missing at the end.

        Raises:
            UnreadableError: fewer can be read.
        """
        total = sum(size for _, size in parts)
        num = self.call(*self.arguments(parts, total))
        if num < (total if least is None else least):
            raise UnreadableError(os.strerror(ctypes.get_errno()) if num < 0 else "Not all of it is there.")
        return self.taken(num)

    def arguments(self, parts: Sequence[tuple[int, int]], total: int) -> tuple[int, ...]:
        """Return what ``call`` takes to read these parts, of ``total`` bytes."""
        if not 0 < total <= MAX_READ_BYTES or not all(0 < address < 1 << 63 for address, _ in parts):
            raise UnreadableError("There is no such address.")
        struct.pack_into("PN", self._local, 0, self._at, total)
        struct.pack_into("PN" * len(parts), self._remote, 0, *(number for part in parts for number in part))
        return self.pid, self._local_at, 1, self._remote_at, len(parts), 0

    def taken(self, num: int) -> bytes:
        """Return the first bytes of what was read last."""
        return bytes(self._buffer[:num])


def words(data: bytes) -> tuple[int, ...]:
    """Return the pointers in aligned memory."""
    return struct.unpack(f"{len(data) // WORD}P", data[: len(data) // WORD * WORD])


def word_at(data: bytes, offset: int) -> int:
    """Return the pointer at an offset."""
    return int.from_bytes(data[offset : offset + WORD], "little")


OBJECT_TYPE = WORD  # of an object its type, behind the count of references
VAR_SIZE = 2 * WORD  # of a bytes object its length
FRAME_BYTES, THREAD_BYTES = 128, 512  # more than any of the fields needs
BYTES_DATA = bytes.__basicsize__ - 1
TEXTS = ("plain text", "d\xe9j\xe0", "\u6f22\u5b57", "\U0001f40d!")  # one of each width that text is stored in


class Texts(NamedTuple):
    """How text is stored: by the state's bits, where it begins and how many bytes a character has."""

    state: int
    mask: int
    forms: dict[int, tuple[int, int, str]]


class Layout(NamedTuple):
    """Offsets in bytes."""

    thread_ident: int
    thread_next: int
    thread_previous: int
    thread_frame: int
    link_frame: int  # -1: the thread points at the frame itself; else at what does
    frame_code: int
    frame_previous: int
    frame_at: int  # the instruction: a pointer
    code_line: int
    code_file: int
    code_name: int
    code_table: int
    texts: Texts


class Addresses(NamedTuple):
    """Where a process's own objects lie."""

    thread: int
    of_none: int
    of_code: int
    of_text: int
    of_bytes: int


def addresses() -> Addresses:
    """Return those of this process and thread."""
    api = ctypes.pythonapi
    api.PyThreadState_Get.restype = ctypes.c_void_p
    return Addresses(api.PyThreadState_Get(), id(None), id(CodeType), id(str), id(bytes))


def find_layout(memory: Memory) -> Layout:
    """Return the layout of this interpreter; ``memory`` is that of this process.

    Raises:
        UnreadableError: a field was not found.
    """
    own = addresses()
    code = _offsets_of_code(memory)
    return Layout(
        **_neighbours(memory, own.thread),
        **_outer(memory, own.thread),
        **code,
        texts=_texts(memory),
    )


def _find(data: bytes, value: int, what: str) -> int:
    try:
        return words(data).index(value) * WORD
    except ValueError:
        raise UnreadableError(f"This interpreter keeps its {what} in an unknown place.") from None


def _offsets_of_code(memory: Memory) -> dict[str, int]:
    file, name, line_mark = "a file's \xe9 name", "a function's \xe9 name", 76_543_210
    code = _outer.__code__.replace(co_filename=file, co_name=name, co_firstlineno=line_mark)
    data = memory.read(id(code), 256)  # more than any of the fields needs
    line = data.find(line_mark.to_bytes(4, sys.byteorder))
    if line < 0:
        raise UnreadableError("This interpreter keeps its lines in an unknown place.")
    return {
        "code_line": line,
        "code_file": _find(data, id(code.co_filename), "files"),
        "code_name": _find(data, id(code.co_name), "names"),
        "code_table": _find(data, id(code.co_linetable), "tables of lines"),
    }


def _outer(memory: Memory, thread: int) -> dict[str, int]:
    """Return the offsets that lead from a thread to its frames, by two frames that are known."""
    return _inner(memory, thread)


def _inner(memory: Memory, thread: int) -> dict[str, int]:
    inner = sys._getframe()
    outer = inner.f_back
    if outer is None:
        raise UnreadableError("There is no frame.")
    here, there = _internal(memory, inner), _internal(memory, outer)
    data = memory.read(here, FRAME_BYTES)
    offsets = {
        "frame_code": _find(data, id(inner.f_code), "frames' code"),
        "frame_previous": _find(data, there, "callers"),
        "frame_at": _offset_of_instruction(memory, outer),
    }
    arguments = memory.arguments([(thread, THREAD_BYTES)], THREAD_BYTES)
    num = memory.call(*arguments)  # no function of Python's, which would be the thread's frame meanwhile
    pointers = words(memory.taken(num))
    if here in pointers:
        return offsets | {"thread_frame": pointers.index(here) * WORD, "link_frame": -1}
    for i, address in enumerate(pointers):
        if not 0 < address < 1 << 63:
            continue
        arguments = memory.arguments([(address, 2 * WORD)], 2 * WORD)
        num = memory.call(*arguments)
        if num > 0 and here in (linked := words(memory.taken(num))):
            return offsets | {"thread_frame": i * WORD, "link_frame": linked.index(here) * WORD}
    raise UnreadableError("This interpreter keeps a thread's frame in an unknown place.")


def _internal(memory: Memory, frame: FrameType) -> int:
    """Return the address of what the interpreter runs, to which the frame object points."""
    for address in words(memory.read(id(frame), FRAME_BYTES))[2:6]:
        try:
            if id(frame.f_code) in words(memory.read(address, FRAME_BYTES)):
                return address
        except UnreadableError:
            continue
    raise UnreadableError("This interpreter keeps its frames in an unknown place.")


def _offset_of_instruction(memory: Memory, frame: FrameType) -> int:
    """Return where frames have their instruction, by those of callers, which stay where they are."""
    found: set[int] = set(range(0, FRAME_BYTES, 4))
    each: FrameType | None = frame
    while each is not None:
        data = memory.read(_internal(memory, each), FRAME_BYTES)
        wanted = (id(each.f_code) + CodeType.__basicsize__ + each.f_lasti).to_bytes(WORD, sys.byteorder)
        found &= {at for at in range(0, FRAME_BYTES, 4) if data[at : at + len(wanted)] == wanted}
        each = each.f_back
    if len(found) != 1:
        raise UnreadableError("This interpreter keeps a frame's instruction in an unknown place.")
    return found.pop()


def _texts(memory: Memory) -> Texts:
    """Return how text is stored, by one text of each width."""
    states, forms = [], {}
    at = 4 * WORD  # behind the references, the type, the length and the hash
    for text in TEXTS:
        data = memory.read(id(text), sys.getsizeof(text))
        states.append(int.from_bytes(data[at : at + 4], sys.byteorder))
        for coding, width in (("latin-1", 1), ("utf-16-le", 2), ("utf-32-le", 4)):
            stored = text.encode(coding, "replace")
            if stored.decode(coding) == text and (begin := data.find(stored, at + 4)) >= 0:
                forms[states[-1]] = (begin, width, coding)
                break
    for shift in (0, 16):  # the bits that tell them apart lie in one byte, others are never set
        mask = 0
        for state in states:
            mask |= (state ^ states[0]) & 0xFF << shift
        if len({state & mask for state in states}) == len(TEXTS) == len(forms):
            return Texts(at, mask, {state & mask: form for state, form in forms.items()})
    raise UnreadableError("This interpreter stores text in an unknown way.")


def _neighbours(memory: Memory, own: int) -> dict[str, int]:
    """Return the offsets of a thread's number and of its neighbours, by a second thread."""
    found: list[dict[str, int]] = []

    def look() -> None:
        here, there = addresses().thread, own
        mine, others = memory.read(here, THREAD_BYTES), memory.read(there, THREAD_BYTES)
        found.append(
            {
                "thread_ident": _find(mine, threading.get_ident(), "threads' numbers"),
                "thread_next": _find(mine, there, "threads"),
                "thread_previous": _find(others, here, "threads"),
            }
        )

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    if not found:
        raise UnreadableError("This interpreter keeps its threads in an unknown place.")
    return found[0]
