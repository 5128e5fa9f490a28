"""Rows of the event table, appended block by block and column by column."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from diagnose.reading.columns import Column
from diagnose.reading.intern import Names, Texts, Threads
from diagnose.reading.kinds import CATEGORIES, INSTANTS, LEFT_OUT, MEMORY_NAME
from diagnose.reading.places import Places
from diagnose.reading.schema import Args, Event, ExactEvent
from diagnose.reading.times import durations_ns, exact_ns, floats_hold, starts_ns
from diagnose.trace import Ints, Kind

__all__ = ["DTYPES", "ImpreciseTimesError", "Rows"]

AnyEvents = Sequence[Event] | Sequence[ExactEvent]

DTYPES: Final = {
    "start": np.int64,
    "end": np.int64,
    "kind": np.int8,  # finished as uint8; -1 never stays in it
    "name": np.int32,
    "thread": np.int16,
    "device": np.int16,
    "stream": np.int32,
    "correlation": np.int64,
    "size": np.int64,
    "shapes": np.int32,
    "types": np.int32,
    "detail": np.int32,
    "sequence": np.int64,
    "grid": np.int32,
    "awaits": np.int64,
}

_CPU = 0  # torch's DeviceType
_ON_DEVICE = frozenset({Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.SYNC})
_CORRELATED = _ON_DEVICE | {Kind.RUNTIME}


class ImpreciseTimesError(Exception):
    """The times of this block need their digits: decode it again into ExactEvent."""


class Rows:
    """The table while it grows; ``start`` and ``end`` are in ns of the file's own clock."""

    def __init__(self) -> None:
        self.names = Names()
        self.threads = Threads()
        self.columns = {name: Column(dtype) for name, dtype in DTYPES.items()}
        self.left_out: Counter[str] = Counter()  # events of categories that nothing here understands
        self.categories: set[str] = set()
        self.num_events = 0  # everything in the file, flows and metadata included
        self.count = 0
        self._texts = Texts(self.names)
        self._places = Places()
        self._grids = _Grids({b"": -1})

    def add(self, events: AnyEvents) -> None:
        """Append the events of a block.

        Raises:
            ImpreciseTimesError: times need more digits than were decoded; nothing was appended.
        """
        groups: defaultdict[str, list[Any]] = defaultdict(list)
        for event in events:
            groups[event.cat].append(event)
        wanted = [(kind, chosen, *_times(chosen)) for kind, chosen in self._sort_out(groups) if chosen]
        self.num_events += len(events)
        self.categories.update(groups)
        for category, group in groups.items():
            if category not in CATEGORIES and category not in LEFT_OUT:
                self.left_out[category] += sum(event.ph == "X" for event in group)
        for kind, chosen, starts, durations in wanted:
            self._append(kind, chosen, starts, durations)

    def _sort_out(self, groups: Mapping[str, list[Any]]) -> Iterator[tuple[Kind, list[Any]]]:
        for category, group in groups.items():
            kind = CATEGORIES.get(category)
            if kind is not None:
                yield kind, [event for event in group if event.ph == "X"]
            elif category in INSTANTS:
                self._name_threads(group)
                yield Kind.MEMORY, [event for event in group if event.name == MEMORY_NAME]

    def _name_threads(self, group: Iterable[Any]) -> None:
        for event in group:
            if event.ph == "M" and event.name == "thread_name":
                self.threads.call(event.pid, event.tid, event.args.name)

    def _append(self, kind: Kind, events: list[Any], starts: Ints, durations: Ints) -> None:
        names, args = self.names, [event.args for event in events]
        self._put("start", starts)
        self._put("end", starts + durations)
        self._put("kind", np.full(len(events), kind, np.int8))
        self._put("name", [names[event.name] for event in events])
        if kind in _ON_DEVICE:
            self._put_places(events, args)
        else:
            threads = self.threads
            self._put("thread", [threads[event.pid, event.tid] for event in events])
        if kind in _CORRELATED:
            self._put("correlation", [a.correlation for a in args])
        if kind in _DETAILS:
            _DETAILS[kind](self, args)
        self.count += len(events)

    def _put(self, column: str, values: Ints | list[int]) -> None:
        if isinstance(values, list):
            values = _whole_numbers(values, DTYPES[column])
        self.columns[column].write(self.count, values)

    def _put_places(self, events: list[Any], args: list[Args]) -> None:
        places = self._places
        found = [places[a.device, a.stream, event.pid, event.tid] for event, a in zip(events, args, strict=True)]
        self._put("device", [device for device, _ in found])
        self._put("stream", [stream for _, stream in found])

    def _put_op(self, args: list[Args]) -> None:
        texts = self._texts
        self._put("shapes", [texts[bytes(a.input_dims)] for a in args])
        self._put("types", [texts[bytes(a.input_types)] for a in args])
        self._put("sequence", [a.sequence for a in args])
        self._put_details(args)

    def _put_kernel(self, args: list[Args]) -> None:
        grids = self._grids
        self._put("grid", [grids[bytes(a.grid)] for a in args])
        self._put_details(args)

    def _put_details(self, args: list[Args]) -> None:
        told = [a.collective or a.stack for a in args]
        if not any(told):
            return
        names = self.names
        self._put("detail", [names[_detail(a)] if text else -1 for a, text in zip(args, told, strict=True)])
        self._put("size", [a.num_elements if a.collective else -1 for a in args])

    def _put_bytes(self, args: list[Args]) -> None:
        self._put("size", [a.bytes for a in args])

    def _put_memory(self, args: list[Args]) -> None:
        self._put("size", [a.allocated for a in args])
        self._put("device", [a.device_id if a.device_type != _CPU else -1 for a in args])

    def _put_sync(self, args: list[Args]) -> None:
        self._put("awaits", [a.awaits for a in args])


_DETAILS: Final[Mapping[Kind, Callable[[Rows, list[Args]], None]]] = {
    Kind.OP: Rows._put_op,
    Kind.KERNEL: Rows._put_kernel,
    Kind.RUNTIME: Rows._put_bytes,
    Kind.MEMCPY: Rows._put_bytes,
    Kind.MEMSET: Rows._put_bytes,
    Kind.MEMORY: Rows._put_memory,
    Kind.SYNC: Rows._put_sync,
}


class _Grids(dict[bytes, int]):
    """JSON text of a kernel's grid to its number of blocks."""

    def __missing__(self, raw: bytes) -> int:
        try:
            blocks = math.prod(int(side) for side in json.loads(raw))
        except (ValueError, TypeError):
            blocks = -1
        self[raw] = blocks if -1 < blocks < 2**31 else -1
        return self[raw]


def _detail(args: Args) -> str:
    return f"{args.collective}|{args.dtype}|{args.group_size}" if args.collective else args.stack


def _times(events: list[Any]) -> tuple[Ints, Ints]:
    """Return the starts on the file's clock and the durations, both in ns."""
    durations = np.fromiter([event.dur for event in events], np.float64, len(events))
    if isinstance(events[0], ExactEvent):
        return exact_ns([event.ts for event in events]), durations_ns(durations)
    starts = np.fromiter([event.ts for event in events], np.float64, len(events))
    if not floats_hold(starts, durations):
        raise ImpreciseTimesError
    return starts_ns(starts), durations_ns(durations)


def _whole_numbers(values: list[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    try:
        return np.fromiter(values, dtype, len(values))
    except OverflowError:
        limits = np.iinfo(dtype)
        return np.array([v if limits.min <= v <= limits.max else -1 for v in values], dtype)
