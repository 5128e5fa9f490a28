"""What a code object of another process is: its file, its function and the line of each instruction."""

from __future__ import annotations

from bisect import bisect_right
from types import CodeType

from .layout import BYTES_DATA, OBJECT_TYPE, VAR_SIZE, Addresses, Layout
from .memory import MAX_BYTES, WORD, Memory, UnreadableError, word_at

__all__ = ["PACKAGES", "Code", "Codes"]

MAX_TEXT = 1 << 14  # characters of a path or a name
# Of packages that lie anywhere (those of another environment, or of the user alone), and of compiled code.
PACKAGES = ("/site-packages/", "/dist-packages/", "/torchinductor_")
MAX_CODES = 20_000  # then the table begins anew: a script that makes code as it runs must not fill the memory


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
        self._own_bytes = layout.code_bytes if CodeType.__itemsize__ else 0
        self.num_bytes = max(self._fields.stop, layout.code_bytes + WORD)
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
                raise UnreadableError("It is no code object.")
            if len(self._known) >= MAX_CODES:
                self._known.clear()
            try:
                found = self._known[key] = self._read(data)
            except (ValueError, OverflowError, SystemError) as error:  # it was freed meanwhile, and holds anything
                raise UnreadableError(str(error)) from error
        return found

    def _read(self, data: bytes) -> Code:
        layout = self._layout
        file, name = (self._text(word_at(data, at)) for at in (layout.code_file, layout.code_name))
        if self._own_bytes:
            size = word_at(data, VAR_SIZE) * CodeType.__itemsize__
        else:
            size = len(self._bytes(word_at(data, layout.code_bytes)))
        if not 0 < size <= MAX_BYTES:
            raise UnreadableError("It is no code object.")
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
        if word_at(head, OBJECT_TYPE) != self._types.of_text or form is None or length > MAX_TEXT:
            raise UnreadableError("It is no text.")
        begin, width, coding = form
        data = self._memory.read(address + begin, length * width) if length else b""
        return data.decode(coding, "surrogatepass" if width > 1 else "strict")

    def _bytes(self, address: int) -> bytes:
        head = self._memory.read(address, VAR_SIZE + WORD)
        if word_at(head, OBJECT_TYPE) != self._types.of_bytes:
            raise UnreadableError("They are no bytes.")
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
