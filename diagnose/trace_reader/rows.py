"""Collects the events of a file in columns: one array each, filled block by block.

Times go from the file's microseconds to whole nanoseconds without losing any.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Raw

from diagnose.model.arrays import Floats, Ints
from diagnose.model.events import Kind
from diagnose.trace_reader.fields import Fields, Values
from diagnose.trace_reader.schema import CATEGORIES, INSTANTS, LEFT_OUT, MEMORY_NAME, texts_of

UNKNOWN_NS = -(2**63)  # in the place of a start that is missing, no number, or out of range
# Clocks count from a machine's start or from 1970. A sum of any two of these fits into int64.
_EARLIEST_NS, _LATEST_NS = -(2**60), 2**62  # 36 years before zero, 2116
_MAX_DURATION_US = 2.0**50  # 35 years
_MAX_WHOLE_DIGITS = 16  # of microseconds: with three more they fit into uint64
_POWERS = 10 ** np.arange(_MAX_WHOLE_DIGITS + 2, -1, -1, dtype=np.uint64)
_EVERY_EVENT_HAS = ("name", "thread")


def floats_hold(starts_us: Sequence[float], durations_us: Sequence[float]) -> bool:
    """Return whether these starts, read as floats, still have their nanoseconds.

    Whole microseconds have none to lose: floats hold them up to the year 2255. A late start may have been
    rounded to a whole one, so durations are looked at too.
    """
    # Up to here (102 days) the nearest float lies within half a nanosecond of a time with three decimals.
    if max(starts_us) < 2.0**43:
        return True
    return all(map(float.is_integer, starts_us)) and all(map(float.is_integer, durations_us))


def packed(values: Sequence[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return the values as an array, by way of ``struct``, which takes half the time of ``np.fromiter``.

    Raises:
        struct.error: a number is too large for this type.
    """
    return np.frombuffer(struct.pack(f"{len(values)}{np.dtype(dtype).char}", *values), dtype)


def starts_ns(us: Floats) -> Ints:
    """Convert times; the fraction is rounded on its own, where it is still exact. Unusable ones are UNKNOWN_NS."""
    earliest, latest = _EARLIEST_NS / 1000, _LATEST_NS / 1000
    if _within(us, earliest, latest):
        return _rounded(us)
    usable = (us > earliest) & (us < latest)
    starts = np.full(len(us), UNKNOWN_NS, np.int64)
    starts[usable] = _rounded(us[usable])
    return starts


def _within(us: Floats, low: float, high: float) -> bool:
    """Return whether all values lie between the two; what is no number lies nowhere."""
    return bool(np.minimum.reduce(us, initial=high) > low and np.maximum.reduce(us, initial=low) < high)


def _rounded(us: Floats) -> Ints:
    whole = us.astype(np.int64)
    return whole * 1000 + np.rint((us - whole) * 1000).astype(np.int64)


def instants_ns(ns: Sequence[int]) -> Ints:
    """Convert exact times to an array; those out of range are UNKNOWN_NS."""
    try:
        starts = np.fromiter(ns, np.int64, len(ns))
    except OverflowError:
        starts = np.array([n if _EARLIEST_NS < n < _LATEST_NS else UNKNOWN_NS for n in ns], np.int64)
    unusable = (starts <= _EARLIEST_NS) | (starts >= _LATEST_NS)
    if unusable.any():
        starts[unusable] = UNKNOWN_NS
    return starts


def durations_ns(us: Floats) -> tuple[Ints, int]:
    """Convert durations; those that are negative or no number count as zero, and are the number beside them."""
    count = 0
    # The smallest number above zero.
    if not _within(us, -5e-324, _MAX_DURATION_US):
        unusable = ~((us >= 0.0) & (us < np.inf))
        count = int(np.count_nonzero(unusable))
        us = np.minimum(np.where(unusable, 0.0, us), _MAX_DURATION_US)
    return np.rint(us * 1000.0).astype(np.int64), count


def exact_ns(times: Sequence[Raw]) -> list[int]:
    """Convert times from their digits; what is no number is UNKNOWN_NS."""
    return _of_one_layout(times) or list(map(_digits_ns, texts_of(times)))


def _of_one_layout(times: Sequence[Raw]) -> list[int]:
    """Convert times with equally many digits before the point and at most three behind it; none of other ones."""
    texts = texts_of(times)
    point = texts[0].find(b".")
    length = point + 4
    if not 0 < point <= _MAX_WHOLE_DIGITS or max(map(len, texts)) > length:
        return []
    signs = np.frombuffer(b"".join([text.ljust(length, b"0") for text in texts]), np.uint8).reshape(-1, length)
    digits = np.delete(signs, point, axis=1) - ord("0")  # what is no digit becomes a larger number
    if digits.max() > 9 or (signs[:, point] != ord(".")).any():
        return []
    ns: list[int] = (digits @ _POWERS[-digits.shape[1] :]).astype(np.int64).tolist()
    return ns


def _digits_ns(text: bytes) -> int:
    text = text.strip(b'"')
    try:
        if text[-4:-3] == b".":
            return int(text.replace(b".", b""))
        whole, _, fraction = text.partition(b".")
        if not whole.lstrip(b"-").isdigit() or not (fraction or b"0").isdigit():
            return round(float(text) * 1000)
        return int(whole) * 1000 + int((fraction + b"000")[:3])
    except (ValueError, OverflowError):  # no number, an infinite one, or one of thousands of digits
        return UNKNOWN_NS


_Array = npt.NDArray[Any]
_DTYPES: Final = {
    "start": np.int64,
    "end": np.int64,
    "kind": np.int8,  # finished as uint8; no -1 stays in it
    "name": np.int32,
    "thread": np.int16,
    "device": np.int16,
    "stream": np.int32,
    "correlation": np.int64,
    "external": np.int64,  # of calls and tasks without a correlation id; becomes one where it serves as one
    "size": np.int64,
    "shapes": np.int32,
    "types": np.int32,
    "values": np.int32,
    "detail": np.int32,
    "sequence": np.int64,
    "grid": np.int32,
    "awaits": np.int64,
}


class ImpreciseTimesError(Exception):
    """The times of this block need their digits: decode it again into ExactEvent."""


class EventRows:
    """The table while it grows; ``start`` and ``end`` are in ns of the file's own clock."""

    def __init__(self) -> None:
        self.fields = Fields()
        self.columns = {name: Column(dtype) for name, dtype in _DTYPES.items()}
        self.left_out: Counter[str] = Counter()  # events of categories that nothing here understands
        self.phases: Counter[str] = Counter()  # events of known categories that are no complete ones
        self.num_without_length = 0  # their duration is negative or no number, and counts as zero
        self.categories: set[str] = set()
        self.num_events = 0  # everything in the file, flows and metadata included
        self.count = 0
        self._waiting: dict[Kind, Values] = {}

    def add(self, events: Sequence[Any]) -> None:
        """Append the events of a block; rows appear in the columns with ``flush`` at the latest.

        Raises:
            ImpreciseTimesError: times need more digits than were decoded; nothing was appended.
        """
        groups: defaultdict[str, list[Any]] = defaultdict(list)
        for event in events:
            groups[event.cat].append(event)
        wanted = [(kind, chosen, _times(chosen)) for kind, chosen in self._sort_out(groups) if chosen]
        self.num_events += len(events)
        self.categories.update(groups)
        self._count_left_out(groups, sum(len(chosen) for kind, chosen, _ in wanted if kind != Kind.MEMORY))
        for kind, chosen, times in wanted:
            self._append(kind, times | self.fields.values(kind, chosen))

    def flush(self) -> None:
        """Move what waits into the columns."""
        while self._waiting:
            self._write(*self._waiting.popitem())

    def _count_left_out(self, groups: Mapping[str, list[Any]], num_complete: int) -> None:
        known = [group for category, group in groups.items() if category in CATEGORIES]
        if sum(map(len, known)) > num_complete:
            self.phases.update(event.ph for group in known for event in group if event.ph != "X")
        for category, group in groups.items():
            if category not in CATEGORIES and category not in LEFT_OUT:
                self.left_out[category] += sum(event.ph == "X" for event in group)

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
                self.fields.threads.set_name(event.pid, event.tid, event.args.name)

    def _append(self, kind: Kind, values: Values) -> None:
        waiting = self._waiting.setdefault(kind, values)
        if waiting is values:
            return
        if waiting.keys() != values.keys():
            self._write(kind, waiting)
            self._waiting[kind] = values
            return
        for column, more in values.items():
            waiting[column] += more
        # So many at once that numpy's cost for each call no longer counts.
        if len(waiting["name"]) >= 1024:
            self._write(kind, self._waiting.pop(kind))

    def _write(self, kind: Kind, values: Values) -> None:
        count = len(values["name"])
        durations, num_without = durations_ns(_array(values.pop("us"), np.float64))
        self.num_without_length += num_without
        if "from_us" in values:
            starts = starts_ns(_array(values.pop("from_us"), np.float64))
        else:
            starts = instants_ns(values.pop("from_ns"))
        self._put("start", starts)
        self._put("end", starts + durations)
        self._put("kind", np.full(count, kind, np.int8))
        for column, numbers in values.items():
            array = _array(numbers, _DTYPES[column])
            # What is not written reads as -1, and a column in which nothing was written takes no memory.
            if column in _EVERY_EVENT_HAS or array[0] != -1 or (array != -1).any():
                self._put(column, array)
        self.count += count

    def _put(self, column: str, values: npt.NDArray[Any]) -> None:
        self.columns[column].write(self.count, values)


def _times(events: list[Any]) -> Values:
    """Return durations (``us``) and starts, these in the unit in which they are exact."""
    durations = [event.dur for event in events]
    starts = [event.ts for event in events]
    if isinstance(starts[0], Raw):
        return {"us": durations, "from_ns": exact_ns(starts)}
    if not floats_hold(starts, durations):
        raise ImpreciseTimesError
    return {"us": durations, "from_us": starts}


def _array(values: list[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    try:
        return packed(values, dtype)
    except struct.error:  # a number that is too large for its column counts as unknown
        limits = np.iinfo(dtype)
        return np.array([v if limits.min <= v <= limits.max else -1 for v in values], dtype)


class Column:
    """A column in which rows that were never written read as -1."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._data: _Array = np.empty(0, dtype)
        self._filled = 0

    def write(self, at: int, values: _Array) -> None:
        """Write rows from row ``at`` on; what lies between them and earlier ones was not recorded."""
        self.extended(at, len(values))[:] = values

    def extended(self, at: int, count: int) -> _Array:
        """Return so many rows from row ``at`` on, for the caller to write before any others."""
        end = at + count
        self._grow(end)
        self._data[self._filled : at] = -1
        self._filled = max(self._filled, end)
        return self._data[at:end]

    @property
    def is_recorded(self) -> bool:
        """Return whether any row was written."""
        return self._filled > 0

    def finish(self, length: int) -> _Array:
        """Return the column with ``length`` rows; the object is empty afterwards."""
        data, self._data = self._data, np.empty(0, self._data.dtype)
        if not self._filled:
            return np.broadcast_to(np.array(-1, data.dtype), length)
        if len(data) < length:
            data.resize(length, refcheck=False)
        data[self._filled : length] = -1
        data.resize(length, refcheck=False)
        return data

    def _grow(self, length: int) -> None:
        if length > len(self._data):
            # By a quarter: resizing a large block moves pages, not bytes, and untouched pages take no memory.
            self._data.resize(max(length, len(self._data) * 5 // 4, 4096), refcheck=False)
