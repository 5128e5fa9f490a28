"""From the parsed events of one kind to the values of its columns; strings, threads and devices become numbers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, TypeVar

import numpy as np

from diagnose.model.events import Kind, Thread
from diagnose.trace_reader.schema import DEVICE_KINDS, Args, texts_of

Values = dict[str, list[Any]]
_Key = tuple["int | str", "int | str", "int | str", "int | str"]

_Text = TypeVar("_Text")

WITHOUT_ARGUMENTS = (Kind.PYTHON, Kind.OVERHEAD)  # kinds of whose events no argument is read
_CORRELATED = (*DEVICE_KINDS, Kind.RUNTIME)
_MAX_QUOTED_CHARS = 60  # of a name in a sentence
_INTEGER = re.compile(r"\d+", re.ASCII)
_LAST_NUMBER = re.compile(r"-?\d+$", re.ASCII)
# Control characters but tab and line feed, marks that turn the direction of writing, halves of surrogate pairs: on a
# terminal, in a page or in UTF-8 they do harm, and no name of an operator, kernel or thread has any.
_UNPRINTABLE = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"


class Fields:
    """Numbers strings, threads and devices, and looks up the numbers for every event."""

    def __init__(self) -> None:
        self.names = Names()
        self.threads = Threads()
        self.texts = Texts(self.names)
        self._device_streams = DeviceStreamIds()
        self._grids = _Grids({b"": -1})

    def values(self, kind: Kind, events: list[Any]) -> Values:
        """Return the columns of these events, all but their times; columns without a value are left out."""
        values: Values = {"name": _looked_up(self.names, [event.name for event in events])}
        args = [event.args for event in events] if kind not in WITHOUT_ARGUMENTS else []
        if kind in DEVICE_KINDS:
            ids = self._device_streams
            found = [ids[a.device, a.stream, event.pid, event.tid] for event, a in zip(events, args, strict=True)]
            values["device"] = [device for device, _ in found]
            values["stream"] = [stream for _, stream in found]
        else:
            threads = self.threads
            pids, tids = [event.pid for event in events], [event.tid for event in events]
            values["thread"] = _looked_up(threads, zip(pids, tids, strict=True))
        if kind in _CORRELATED:
            values["correlation"] = numbers = [a.correlation for a in args]
            if max(numbers) < 0:
                values["external"] = [a.external for a in args]
        if kind in _MORE:
            values |= _MORE[kind](self, args)
        return values

    def _of_op(self, args: list[Args]) -> Values:
        texts = self.texts
        return {
            "shapes": _looked_up(texts, texts_of([a.input_dims for a in args])),
            "types": _looked_up(texts, texts_of([a.input_types for a in args])),
            "sequence": [a.sequence for a in args],
            **self._of_values(args),
            **self._of_collective(args),
        }

    def _of_values(self, args: list[Args]) -> Values:
        if not (args[0].input_values or args[-1].input_values):  # an exporter writes them for all operators or for none
            return {}
        texts = self.texts
        return {"values": _looked_up(texts, texts_of([a.input_values for a in args]))}

    def _of_annotation(self, args: list[Args]) -> Values:
        """Return the shapes that annotations of collectives have; others have none."""
        if not any(map(_HAS_DIMS, args)):
            return {}
        texts = self.texts
        return {
            "shapes": _looked_up(texts, texts_of([a.input_dims for a in args])),
            "types": _looked_up(texts, texts_of([a.input_types for a in args])),
        }

    def _of_kernel(self, args: list[Args]) -> Values:
        return {"grid": _looked_up(self._grids, texts_of([a.grid for a in args])), **self._of_collective(args)}

    def _of_collective(self, args: list[Args]) -> Values:
        details = [a.collective or a.stack for a in args]
        if not any(details):
            return {}
        names = self.names
        return {
            "detail": [names[_detail(a)] if text else -1 for a, text in zip(args, details, strict=True)],
            "size": [a.num_elements if a.collective else -1 for a in args],
            "sequence": [a.sequence_in_group if a.collective else a.sequence for a in args],
        }

    def _of_copy(self, args: list[Args]) -> Values:
        return {"size": [a.bytes for a in args]}

    def _of_allocation(self, args: list[Args]) -> Values:
        return {
            "size": [a.allocated for a in args],
            # Of torch's device types 0 is the CPU.
            "device": [a.device_id if a.device_type != 0 else -1 for a in args],
            "correlation": [a.address for a in args],
            "sequence": [a.total_allocated for a in args],
            "awaits": [a.total_reserved for a in args],
        }

    def _of_wait(self, args: list[Args]) -> Values:
        return {"awaits": [a.awaits for a in args]}


_HAS_DIMS = attrgetter("input_dims")

_MORE: Final[Mapping[Kind, Callable[[Fields, list[Args]], Values]]] = {
    Kind.OP: Fields._of_op,
    Kind.ANNOTATION: Fields._of_annotation,
    Kind.KERNEL: Fields._of_kernel,
    Kind.RUNTIME: Fields._of_copy,
    Kind.MEMCPY: Fields._of_copy,
    Kind.MEMSET: Fields._of_copy,
    Kind.MEMORY: Fields._of_allocation,
    Kind.SYNC: Fields._of_wait,
}


def _looked_up(numbers: dict[_Text, int], texts: Iterable[_Text]) -> list[int]:
    """Return the number of each text, a new one for one that was not seen before."""
    return list(map(numbers.__getitem__, texts))


def printable(text: str) -> str:
    """Return the text with U+FFFD in the place of characters that cannot be shown."""
    return text if text.isprintable() else re.sub(_UNPRINTABLE, "\ufffd", text)


def shortened(name: str) -> str:
    """Return a name as a sentence can hold it."""
    text = printable(name[:_MAX_QUOTED_CHARS]).replace("\n", " ")
    return text if len(name) <= _MAX_QUOTED_CHARS else f"{text}…"


def num_events(count: int) -> str:
    """Return "1 event" or "12,345 events"."""
    return "1 event" if count == 1 else f"{count:,} events"


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
        text = _known_text(raw) if len(raw) <= 256 else _normalised(raw)
        row = self[raw] = self._names[text]
        return row


def _normalised(raw: bytes) -> str:
    try:
        return json.dumps(json.loads(raw))
    except (ValueError, RecursionError):
        return raw.decode(errors="replace")


_known_text = lru_cache(2048)(_normalised)  # the next rank's file has most of them again


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
        # What comes later counts as an unknown thread.
        elif len(self._rows) < np.iinfo(np.int16).max:
            row = self._rows.setdefault((pid, tid), len(self._rows))
        else:
            row = self._rows.get((pid, tid), -1)
        self[key] = row
        return row

    def set_name(self, pid: int | str, tid: int | str, name: str) -> None:
        """Remember a thread's name; it counts only where the thread recorded events."""
        self._names[str(pid), str(tid)] = name.strip()

    @property
    def ids(self) -> tuple[tuple[str, str], ...]:
        """Return pid and tid of each row."""
        return tuple(self._rows)

    @property
    def given_names(self) -> dict[tuple[str, str], str]:
        """Return the names that were remembered."""
        return dict(self._names)

    def of_unknown(self) -> int:
        """Return the row of the thread that stands for all events without one."""
        return self._rows.setdefault(("", ""), len(self._rows))

    def threads(self) -> tuple[Thread, ...]:
        """Return the threads in the order of their rows."""
        return tuple(
            Thread(printable(pid), printable(tid), printable(self._names.get((pid, tid), "")))
            for pid, tid in self._rows
        )


class DeviceStreamIds(dict[_Key, tuple[int, int]]):
    """(args.device, args.stream, pid, tid) to (device, stream), -1 where it is not recorded.

    The pid and tid of a device event stand in where its arguments name no device and no stream; old exporters
    write the tid as "stream 7".
    """

    def __missing__(self, key: _Key) -> tuple[int, int]:
        device, stream, pid, tid = (_number(value) for value in key)
        ids = (
            _within(device if device >= 0 else pid, np.iinfo(np.int16).max),
            # `cuda_sync` writes 2**32 - 1 for "no stream".
            _within(stream if key[1] != "" else tid, np.iinfo(np.int32).max),
        )
        self[key] = ids
        return ids


def _number(value: int | str) -> int:
    if isinstance(value, int):
        return value
    # Python refuses to convert thousands of digits.
    found = _LAST_NUMBER.search(value.strip()[-40:])
    return int(found.group()) if found else -1


def _within(value: int, largest: int) -> int:
    return value if 0 <= value <= largest else -1


class _Grids(dict[bytes, int]):
    """JSON text of a kernel's grid to its number of blocks."""

    def __missing__(self, raw: bytes) -> int:
        try:
            blocks = math.prod(int(side) for side in json.loads(raw))
        except (ValueError, TypeError, OverflowError, RecursionError):
            blocks = -1
        self[raw] = blocks if -1 < blocks < 2**31 else -1
        return self[raw]


def _detail(args: Args) -> str:
    """Return the call stack of an operator; of a collective the fields that ranks.collectives reads."""
    if not args.collective:
        return args.stack
    listed = bytes(args.members)
    # Torch itself lists no more than some dozens of ranks.
    whole = len(listed) <= 1 << 12 and b"..." not in listed
    members = ",".join(_INTEGER.findall(listed.decode(errors="replace"))) if whole else ""
    fields = (
        args.collective,
        args.dtype,
        args.group_size,
        args.num_out,
        args.source,
        args.target,
        args.group,
        args.group_use,
        members,
    )
    return "|".join(str(field).replace("|", " ") for field in fields)
