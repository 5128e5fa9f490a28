"""One large file read by several processes, each of which parses a range of its bytes.

Ranges are cut between two events. Every process fills columns of its own, in which names and threads have its own
numbers; they are sent back as arrays, renumbered, and put behind each other. Whatever is not as it should be at a cut,
or is damaged anywhere, makes the file one that a single process reads: it alone knows how to go on there.

The processes are forked here and not by ``multiprocessing``, whose import takes as long as reading 2 MB and more memory
than a column.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import PurePath
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from diagnose.errors import InputError, NotATraceError
from diagnose.model.events import Device
from diagnose.trace_reader.events import READ_BLOCK_BYTES, Ending, Window, read_events
from diagnose.trace_reader.fields import printable
from diagnose.trace_reader.rows import EventRows
from diagnose.trace_reader.source import Source
from diagnose.trace_reader.stored import Stored, is_url

# The keys before and after the list of events, and what they contain about the machine and the rank.

Keys: TypeAlias = Mapping[str, object]

_EVENTS_KEY = rb'"traceEvents"\s*:\s*\['
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WIDE_TEXT = (b"\xff\xfe", b"\xfe\xff", b"{\0", b"\0{", b"[\0", b"\0[")  # UTF-16 and UTF-32, with a mark or without
_PADDING = b" \t\r\n\0"  # a file that was being written when its machine stopped ends in null bytes
MAX_TAIL_BYTES = 1 << 24  # before the first event and behind the last one: profilers write a few MB at most
_FIRST_OF_LIST = re.compile(rb"\s*(?:null\s*,\s*)*(?:\{|\]|$)")

# worker0_step_12.pt.trace.json, rank-34.json, rank0.light.pt.trace.json, trace_8_rank_1.json, dlrm_r7.json
_RANK = r"(?i)(?:rank|worker|(?<![a-z0-9])r)[-_]?(\d+)(?!\d)"
_MAX_RANK = 2**24  # a hundred times the largest machine
_MAX_WHOLE = 2**62  # ns, 2116: with the length of a recording added it fits into int64


class Envelope(NamedTuple):
    """The keys around the list of events."""

    keys: Keys
    is_cut: bool  # the file ends too early
    is_unread: bool  # something follows the list that was not understood


class _Nothing(msgspec.Struct):
    """An object of which no key is wanted: decoding it only checks the text."""


_ANYTHING = msgspec.json.Decoder(_Nothing | list[msgspec.Raw])


def read_head(window: Window, source: Source, name: str) -> bytes:
    """Move the window behind the bracket that opens the list of events; return what stands before it.

    Raises:
        InputError: the file ends before that bracket.
        NotATraceError: it is not JSON, or JSON without such a list.
    """
    while window.fill():
        head = window.text()
        is_list = head.removeprefix(_BYTE_ORDER_MARK).lstrip().startswith(b"[")
        key = re.search(rb"\[" if is_list else _EVENTS_KEY, head)
        begin = key.end() if key else 0
        if begin and _FIRST_OF_LIST.match(head, begin):
            window.replace(head[begin:])
            return head[:begin]
        if begin or not _looks_like_json(head) or len(head) > MAX_TAIL_BYTES:
            break
    raise _headless(window.text(), source, name)


def _looks_like_json(head: bytes) -> bool:
    return head.removeprefix(_BYTE_ORDER_MARK).lstrip()[:1] in (b"{", b"[", b"")


def _headless(head: bytes, source: Source, name: str) -> InputError:
    if not head.strip():
        why = source.fault or "it holds nothing but blanks"
        return InputError(f"{name} cannot be read: {why}. Copy or record the trace again.")
    if head.startswith(_WIDE_TEXT):
        return InputError(f"{name} is UTF-16 text, not UTF-8. Convert it first: iconv -f UTF-16 -t UTF-8.")
    if not _looks_like_json(head):
        return NotATraceError(f"{name} is not JSON, so it is not a trace. Name a file that torch.profiler exported.")
    text = head.removeprefix(_BYTE_ORDER_MARK)
    if len(head) <= MAX_TAIL_BYTES and _fault(text):
        if source.fault or _runs_out(text):
            return InputError(f"{name} ends before its first event. Copy or record the trace again.")
        return NotATraceError(f"{name} is not valid JSON. Name a file that torch.profiler exported.")
    return NotATraceError(
        f"{name} is JSON, but not a trace of torch.profiler: it has no list 'traceEvents' of events. "
        "Name a file that torch.profiler exported."
    )


def read_keys(before: bytes, after: bytes) -> Envelope:
    """Read the keys before and after the list of events.

    ``before`` ends, and ``after`` begins, where the list stood. Keys behind the list that cannot be read are left out.
    """
    opening = before.removeprefix(_BYTE_ORDER_MARK).strip()
    after = after.strip(_PADDING)
    if opening == b"[":
        return Envelope({}, is_cut=False, is_unread=bool(after))
    opening = opening.removesuffix(b"[") + b"null"
    keys = _decode(opening + after) if len(after) <= MAX_TAIL_BYTES else None
    if keys is not None:
        return Envelope(keys, is_cut=False, is_unread=keys.get("traceEvents") is not None)
    is_cut = len(after) <= MAX_TAIL_BYTES and _runs_out(opening + after)
    return Envelope(_decode(opening + b"}") or {}, is_cut=is_cut, is_unread=not is_cut)


def _decode(text: bytes) -> Keys | None:
    try:
        keys = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            keys = json.loads(text.decode(errors="replace"), strict=False)
        except (ValueError, RecursionError):
            return None
    return keys if isinstance(keys, dict) else None


def _fault(text: bytes) -> str:
    """Return what is wrong with a JSON text, "" for nothing."""
    try:
        _ANYTHING.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return str(error)
    return ""


def _runs_out(text: bytes) -> bool:
    return "truncated" in _fault(text)


def rank_of(keys: Keys, path: str) -> int:
    """Return the rank that the file names, else the one in its name, else 0."""
    rank = _whole(_mapping(keys.get("distributedInfo")).get("rank"), -1)
    if 0 <= rank < _MAX_RANK:
        return rank
    named = rank_in_name(path)
    return 0 if named is None else named


def rank_in_name(path: str) -> int | None:
    """Return the rank that a file's name holds; the last one where it holds several."""
    found = [digits for digits in re.findall(_RANK, PurePath(path).name) if len(digits) <= 7]
    return int(found[-1]) if found else None


def world_size_of(keys: Keys) -> int:
    """Return the number of ranks of the run, 1 where the file has none."""
    size = _whole(_mapping(keys.get("distributedInfo")).get("world_size"), 1)
    return size if 1 <= size <= _MAX_RANK else 1


def epoch_ns(keys: Keys, first_ns: int) -> int:
    """Return the wall-clock time of ``first_ns`` on the file's clock, 0 where that clock is another one."""
    # 2001: no machine has been up for 31 years.
    if first_ns >= 10**18:
        return first_ns
    base = _whole(keys.get("baseTimeNanoseconds"), 0)
    return base + first_ns if 0 < base < _MAX_WHOLE and 0 <= base + first_ns < _MAX_WHOLE else 0


def devices(keys: Keys) -> tuple[Device, ...]:
    """Return the devices that are listed; events may come from fewer, or from none of them."""
    listed = keys.get("deviceProperties") or keys.get("computeProperties")
    if not isinstance(listed, list):
        return ()
    return tuple(
        Device(
            id=_whole(entry.get("id"), position),
            name=printable(entry["name"]) if isinstance(entry.get("name"), str) else "",
            memory_bytes=max(_whole(entry.get("totalGlobalMem"), 0), 0),
            num_sms=max(_whole(entry.get("numSms"), 0), 0),
            compute_capability=(_whole(entry.get("computeMajor"), 0), _whole(entry.get("computeMinor"), 0)),
        )
        for position, entry in enumerate(listed)
        if isinstance(entry, dict)
    )


def small_values(keys: Keys) -> Mapping[str, object]:
    """Return the values worth keeping: flags, versions, ``distributedInfo``; no logs and no events."""
    left_out = {"traceEvents", "deviceProperties", "computeProperties"}
    return {
        name: value
        for name, value in keys.items()
        if name == "distributedInfo" or (name not in left_out and _is_small(value))
    }


def _is_small(value: object) -> bool:
    try:
        return len(str(value)) <= 4096
    except RecursionError:
        return False


def _mapping(value: object) -> Keys:
    return value if isinstance(value, dict) else {}


def _whole(value: object, default: int) -> int:
    """Return a number as a whole one that fits into int64, ``default`` for anything else."""
    if isinstance(value, bool):
        return default
    try:
        number = int(value)  # type: ignore[call-overload]  # anything else is caught
    except (TypeError, ValueError, OverflowError):
        return default
    return number if -_MAX_WHOLE < number < _MAX_WHOLE else default


PART_BYTES = 8 << 20  # the least for a process: less costs more to start it and to send the columns back
_AHEAD_BYTES = 16 << 20  # what a process reads while this one does what else there is to do, importing the rules
_NUMBERED = ("name", "shapes", "types", "values", "detail")  # columns that hold numbers of names
_FIRST_BYTES = (b"{", b"[")


class ReadFile(NamedTuple):
    """What reading a file to its end, or to its cut, gives."""

    head: bytes
    rows: EventRows
    ending: Ending
    rest: bytes  # what follows the ending's own text
    raw_bytes: int
    fault: str = ""  # why reading ended before the end of the file


class _Filled(NamedTuple):
    """The rows of one range, and what their numbers stand for."""

    columns: tuple[str, ...]  # that were recorded; they themselves follow, in this order
    num: int
    names: tuple[str, ...]
    threads: tuple[tuple[str, str], ...]
    thread_names: dict[tuple[str, str], str]
    tallies: dict[str, Any]  # what EventRows counts beside its rows
    ending: Ending
    rest: bytes
    raw_bytes: int


def read_parts(
    stored: Stored, name: str, processes: int, meanwhile: Callable[[], object] | None = None
) -> ReadFile | None:
    """Read a file by so many processes, this one among them; None where it is not made for that.

    This one does ``meanwhile`` first, and reads less for that.
    """
    size = _size(stored)
    ahead = _AHEAD_BYTES if meanwhile is not None else 0
    processes = min(processes, (size + ahead) // (PART_BYTES + ahead))
    if processes < 2 or threading.active_count() > 1:  # a forked process may wait for a lock that a thread holds
        return None
    nears = [(size + ahead) * k // processes - ahead for k in range(1, processes)]
    # A cut is where an event begins; the comma before it belongs to no range.
    cuts = [cut for near in nears if (cut := _cut_at(stored.path, near)) is not None]
    if len(cuts) < processes - 1 or sorted(set(cuts)) != cuts:
        return None
    with ExitStack() as started:
        ranges = zip(cuts, [*(cut - 1 for cut in cuts[1:]), size], strict=True)
        others = [
            started.enter_context(_started(stored.path, begin, end, is_last=end == size)) for begin, end in ranges
        ]
        if meanwhile is not None:
            meanwhile()
        with _Range(stored.path, 0, cuts[0] - 1, closes=True) as source:
            window, rows = Window(source), EventRows()
            head = read_head(window, source, name)
            ending = read_events(window, rows)
        first = (head, rows, ending, source.raw_bytes) if _ends_at_the_cut(ending) else None
        return _joined(first, others) if first is not None else None


@contextmanager
def _started(path: str, begin: int, end: int, *, is_last: bool) -> Iterator[BinaryIO]:
    """Start a process that reads a range, and offer what it sends; it ends with the block."""
    receiving, sending = os.pipe()
    process = os.fork()
    if not process:
        try:
            os.close(receiving)
            with os.fdopen(sending, "wb", 0) as out:
                _send_range(out, path, begin, end, is_last=is_last)
        finally:
            os._exit(0)  # nothing that belongs to the process that was forked is closed or written twice
    os.close(sending)
    try:
        with os.fdopen(receiving, "rb", 0) as sent:
            yield sent
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def _send_range(out: BinaryIO, path: str, begin: int, end: int, *, is_last: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asked ends this one
    try:
        read = _read_range(path, begin, end, is_last=is_last)
    except Exception:  # whatever is wrong with the file, who reads it alone finds and names
        return
    if read is None:
        return
    filled, columns = read
    packed = pickle.dumps(filled)
    _send(out, memoryview(len(packed).to_bytes(8, "little") + packed))
    for column in columns:
        _send(out, column.data.cast("B"))


def _send(out: BinaryIO, view: memoryview) -> None:
    while view:
        view = view[out.write(view) :]


def _receive(sent: BinaryIO, view: memoryview) -> None:
    """Fill ``view`` with what a process sends.

    Raises:
        EOFError: it ended before that.
    """
    while view:
        if not (count := sent.readinto(view)):  # type: ignore[attr-defined]  # a raw file has it
            raise EOFError
        view = view[count:]


def _joined(first: tuple[bytes, EventRows, Ending, int], others: Sequence[BinaryIO]) -> ReadFile | None:
    """Put the ranges behind each other, in the order of the file."""
    head, rows, ending, raw_bytes = first
    rest = b""
    for other in others:
        try:
            length = bytearray(8)
            _receive(other, memoryview(length))
            packed = bytearray(int.from_bytes(length, "little"))
            _receive(other, memoryview(packed))
            filled: _Filled = pickle.loads(packed)  # of a process that this one forked
            names, threads = rows.fields.names, rows.fields.threads
            of_name = np.array([*(names[text] for text in filled.names), -1], np.int32)  # -1 picks the last one
            of_thread = np.array([*(threads[key] for key in filled.threads), -1], np.int16)
            for key, text in filled.thread_names.items():
                threads.set_name(*key, text)
            for column in filled.columns:
                values = rows.columns[column].extended(rows.count, filled.num)
                _receive(other, values.data.cast("B"))
                if column in _NUMBERED:
                    values[:] = of_name[values]
                elif column == "thread":
                    values[:] = of_thread[values]
            rows.count += filled.num
            for tally, value in filled.tallies.items():
                if isinstance(value, set):
                    getattr(rows, tally).update(value)
                else:
                    setattr(rows, tally, getattr(rows, tally) + value)
        except EOFError:  # its range is not whole, or it was killed
            return None
        ending, rest, raw_bytes = filled.ending, filled.rest, raw_bytes + filled.raw_bytes
    return ReadFile(head, rows, ending, rest, raw_bytes)


def _read_range(path: str, begin: int, end: int, *, is_last: bool) -> tuple[_Filled, list[npt.NDArray[Any]]] | None:
    """Read the events of a range in a process of its own; None where it is not whole."""
    with _Range(path, begin, end, closes=not is_last) as source:
        window, rows = Window(source), EventRows()
        ending = read_events(window, rows)
        rest = window.read_rest(MAX_TAIL_BYTES) if is_last and ending.complete else b""
    if source.fault or not ending.complete or ending.num_skipped or not (is_last or _ends_at_the_cut(ending)):
        return None
    columns = {name: column.finish(rows.count) for name, column in rows.columns.items() if column.is_recorded}
    threads = rows.fields.threads
    filled = _Filled(
        columns=tuple(columns),
        num=rows.count,
        names=tuple(rows.fields.names),
        threads=threads.ids,
        thread_names=threads.given_names,
        tallies={
            "left_out": rows.left_out,
            "phases": rows.phases,
            "categories": rows.categories,
            "num_events": rows.num_events,
            "num_without_length": rows.num_without_length,
        },
        ending=ending,
        rest=rest,
        raw_bytes=source.raw_bytes,  # the bracket behind a range counts for the comma
    )
    return filled, list(columns.values())


def _ends_at_the_cut(ending: Ending) -> bool:
    """Return whether the list went on to the bracket that stands in for the comma of the cut, and not less far."""
    return ending.complete and not ending.text.strip() and not ending.num_skipped and not ending.fault


def _size(stored: Stored) -> int:
    """Return the bytes of a file of this machine that is not compressed, 0 for any other."""
    if is_url(stored.path):
        return 0
    try:
        with open(stored.path, "rb") as file:  # an odd name is no Path
            is_plain = file.read(1) in _FIRST_BYTES
            return os.fstat(file.fileno()).st_size if is_plain else 0
    except (OSError, ValueError):
        return 0


def _cut_at(path: str, near: int) -> int | None:
    """Return where an event begins behind the comma before it, near a place in the file; None where none is found."""
    with _Range(path, near, near + 2 * READ_BLOCK_BYTES, closes=False) as source:
        window = Window(source)
        while window.fill():
            if edge := window.last_edge():
                return near + edge  # the window's first character is a bracket that the file does not have
    return None


class _Range(Source):
    """A range of a file's bytes as a stream, behind which the bracket may stand that closes a list."""

    def __init__(self, path: str, begin: int, end: int, *, closes: bool) -> None:
        file = FileIO(path)
        file.seek(begin)
        super().__init__(file, b"")
        self._left = end - begin
        self._closing = b"]" if closes else b""

    def readinto(self, view: memoryview) -> int:
        """Fill ``view`` from its beginning; return the number of bytes, 0 at the end."""
        if self._left:
            count = super().readinto(view[: self._left])
            self._left = self._left - count if count else 0
            return count
        count = min(len(self._closing), len(view))
        view[:count], self._closing = self._closing[:count], self._closing[count:]
        self.raw_bytes += count
        return count
