"""What a call of host code is given: which callable, how large its operands are, and whether they change between calls.

Contents are compared by checksums of their parts, so that a store in which few elements change is told from one that
is replaced. What has no content to compare, such as a file or a table of pandas, is compared by its identity.
"""

from __future__ import annotations

import sys
import time
import weakref
import zlib
from collections import deque
from collections.abc import Sequence
from itertools import islice, pairwise
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, TypeAlias

from diagnose.model.records import HostCallRecord, OperandRecord
from diagnose.text.code_places import from_here
from diagnose.text.masking import mask_text

MAX_LOOK_NS = 300_000_000  # of a core, that looking into operands takes in all
MAX_SHOWN = 400  # characters of an expression or an operand
MAX_LOOKS = 4  # at an expression in one step, of calls in a row
NUM_PARTS, MIN_PART_BYTES = 4096, 256
CHEAP_NS = 20_000  # of a call: what it goes through is small, or it goes through little of it

Content: TypeAlias = tuple[object, ...]
_IMMUTABLE = {type(None), bool, int, float, complex, str, bytes}
_CALLABLES = (FunctionType, BuiltinFunctionType, MethodType, type)
Place: TypeAlias = tuple[str, int, str, str]  # of an expression: file, line, function, text


class Operand(NamedTuple):
    """One operand of an expression, by its text."""

    text: str
    value: Any


class Form(NamedTuple):
    """The form of a value: the fields of the same names of ``OperandRecord``."""

    shape: tuple[int, ...] = ()
    dtype: str = ""
    number: int | None = None
    items: int = 0
    order: str = ""


class _Look(NamedTuple):
    step: int
    size: int
    content: Content | None
    held: object  # a reference to it, or its address; None where a new object may have the old one's
    form: Form


class _Call:
    """One expression of a line and what its calls were given."""

    __slots__ = ("given", "looks", "name", "ns", "num", "operands", "timed")

    def __init__(self) -> None:
        self.name = ""
        self.num = self.timed = self.ns = 0
        self.looks: dict[int, int] = {}  # by step
        self.operands: dict[str, tuple[str, list[_Look]]] = {}  # by text: type, and what was seen in a row
        self.given: set[object] = set()  # contents of all operands together


class HostCalls:
    """Notes the calls of expressions."""

    def __init__(self) -> None:
        self.step = 0
        self.cost_ns = self._spent_ns = 0  # of looking, by the clock and of a core
        self._calls: dict[Place, _Call] = {}

    def is_costly(self, place: Place) -> bool:
        """Return whether a call takes more than next to nothing."""
        call = self._calls.get(place)
        return call is not None and call.ns >= CHEAP_NS * max(call.timed, 1)

    def wants(self, place: Place) -> bool:
        """Count a call, and return whether to look at its operands."""
        call = self._calls.setdefault(place, _Call())
        call.num += 1
        is_cheap = call.timed >= MAX_LOOKS and not self.is_costly(place)
        return not is_cheap and call.looks.get(self.step, 0) < MAX_LOOKS and self._spent_ns < MAX_LOOK_NS

    def look(self, place: Place, name: str, operands: Sequence[Operand]) -> None:
        """Look at what a call is given, before it runs."""
        began, used = time.perf_counter_ns(), time.thread_time_ns()
        call = self._calls[place]
        call.name = call.name or name
        call.looks[self.step] = call.looks.get(self.step, 0) + 1
        given = list[Content | None]()
        for text, value in operands:
            kind, looks = call.operands.setdefault(text, (kind_of(value), []))
            given.append(content_of(value))
            if kind == kind_of(value):
                looks.append(_Look(self.step, size_of(value), given[-1], held_in(value), form_of(value)))
        call.given.add(object() if None in given else tuple(map(_key, filter(None, given))))
        self.cost_ns += time.perf_counter_ns() - began
        self._spent_ns += time.thread_time_ns() - used

    def took(self, place: Place, ns: int) -> None:
        """Add what a call took."""
        call = self._calls[place]
        call.timed += 1
        call.ns += max(ns, 0)

    def records(self, min_ns: float = 0) -> tuple[HostCallRecord, ...]:
        """Return the expressions that took so long, the one that took most first."""
        rows = sorted(self._calls.items(), key=lambda item: -item[1].ns)
        return tuple(_record(place, call) for place, call in rows if call.timed and call.ns >= min_ns)


def _record(place: Place, call: _Call) -> HostCallRecord:
    file, line, function, text = place
    return HostCallRecord(
        file=from_here(file),
        line=line,
        function=function,
        text=mask_text(text)[:MAX_SHOWN],
        name=call.name,
        num=call.num,
        ns=call.ns * call.num // call.timed,
        looks=sum(call.looks.values()),
        num_given=len(call.given),
        operands=tuple(_operand(text, kind, looks) for text, (kind, looks) in call.operands.items() if looks),
    )


def _operand(text: str, kind: str, looks: Sequence[_Look]) -> OperandRecord:
    """Return what was seen of an operand; each look is compared with the one before at the same object."""
    objects: dict[object, list[_Look]] = {}
    for look in looks:
        objects.setdefault(look.held if isinstance(look.held, int | None) else id(look.held), []).append(look)
    pairs = [pair for each in objects.values() for pair in pairwise(each)]
    inside = [pair for pair in pairs if pair[0].step == pair[1].step]
    known = [each for one, other in pairs if (each := changed_share(one.content, other.content)) is not None]
    return OperandRecord(
        text=mask_text(text)[:MAX_SHOWN],
        kind=kind,
        size=looks[-1].size,
        looks=len(looks),
        is_kept=None not in objects and 2 * len(objects) <= len(looks),
        same=len(known) == len(pairs) > 0 and not any(known),
        same_in_step=bool(inside) and all(changed_share(a.content, b.content) == 0 for a, b in inside),
        changed=max(known) if known and len(known) == len(pairs) else None,
        grows=looks[-1].size > looks[0].size and all(a.size <= b.size for a, b in pairwise(looks)),
        **looks[-1].form._asdict(),
    )


def _key(content: Content) -> tuple[int, ...]:
    """Return a content with references, which the looks keep, by their addresses."""
    return tuple(each if isinstance(each, int) else id(each) for each in content)


def changed_share(one: Content | None, other: Content | None) -> float | None:
    """Return the share of parts that differ; None where the contents are not known, 1 if one has other parts."""
    if one is None or other is None:
        return None
    if len(one) != len(other):
        return 1.0
    return sum(map(_differ, one, other)) / max(len(one), 1)


def _differ(one: object, other: object) -> bool:
    return one != other if isinstance(one, int) and isinstance(other, int) else one is not other


def kind_of(value: Any) -> str:
    """Return the type of a value: its package and its name, such as "numpy.ndarray"."""
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"


def size_of(value: Any) -> int:
    """Return how many elements a value holds, a table how many rows; 0 for a single one and where it is not known."""
    value = _table(value)
    if type(value) in (list, tuple, dict, set, frozenset, deque, str, bytes, bytearray):
        return len(value)
    try:
        shape = value.shape if type(value).__module__.partition(".")[0] in ("numpy", "pandas", "torch") else ()
        size = 1 if shape else 0
        for each in shape[:1] if type(value).__module__.startswith("pandas") else shape:
            size *= int(each)
    except Exception:  # a type of the script may answer in any way
        return 0
    return size


def form_of(value: Any) -> Form:
    """Return the form of a value, as far as it is known without computing."""
    if type(value) is int:
        return Form(number=value)
    if type(value) in (list, tuple):
        return Form(items=_numbers_in(value))
    if type(value).__module__.partition(".")[0] not in ("numpy", "torch", "pandas"):  # code of the script's
        return Form()
    try:
        table = _table(value)
        shape, dtype = tuple(map(int, table.shape)), str(getattr(table, "dtype", "")).removeprefix("torch.")
        return Form(shape, dtype, order=_order_of(table.index) if kind_of(table).startswith("pandas.") else "")
    except Exception:  # no array
        return Form()


def _table(value: Any) -> Any:
    """Return what an indexer of pandas belongs to, and any other value itself."""
    return value.obj if kind_of(value) in ("pandas._LocIndexer", "pandas._iLocIndexer") else value


def _numbers_in(value: Any) -> int:
    """Return how many numbers a list holds, or a list of such lists, by its first items."""
    first = value[0] if value else None
    inner = _numbers_in(first) if type(first) in (list, tuple) else int(type(first) in (int, float))
    return len(value) * inner


def _order_of(index: Any) -> str:
    """Return whether a table's keys are out of order, so that all of them are compared to find one."""
    if index.is_monotonic_increasing:
        return ""
    if not index.is_unique:
        return "unsorted"
    return "unsorted levels" if index.nlevels > 1 else ""


def content_of(value: Any) -> Content | None:
    """Return a checksum of each part of a value's content, None where it is too large to be read."""
    if value is None or type(value) in (bool, int, float, complex, str, bytes):
        return (hash(value),)
    if type(value) in (list, tuple, deque, set, frozenset, dict):
        items = [part for pair in value.items() for part in pair] if type(value) is dict else list(value)
        if not {*map(type, items)} <= _IMMUTABLE:
            return None
        step = max(len(items) // NUM_PARTS, 1)
        return tuple(hash(tuple(items[i : i + step])) for i in range(0, len(items), step))
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return (hash(value.tobytes()),)
    if numpy is not None and type(value) is numpy.ndarray and not value.dtype.hasobject:
        return _of_array(numpy, value)
    held = held_in(value)
    version = (
        value._version if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "_version") else 0
    )
    return (held, version) if isinstance(held, weakref.ref) else None


def held_in(value: Any) -> object:
    """Return what is equal for one object alone: a reference, of an array that to what owns its memory.

    Nothing refers to lists, of which it is the address and what they begin with; of texts it is the content.
    """
    if type(value) in (str, bytes):
        return hash(value)
    if type(value) in (list, tuple, dict, set, frozenset, deque):
        # Items by which a list is known: another one may have the address of one that is gone.
        first = (each if type(each) in _IMMUTABLE else id(each) for each in islice(value, 16))
        return hash((id(value), *first))
    while type(value).__module__ == "numpy" and getattr(value, "base", None) is not None:
        value = value.base
    try:
        return weakref.ref(value)
    except TypeError:
        return None


def _of_array(numpy: Any, value: Any) -> Content | None:
    base = value
    while base is not None:
        if isinstance(base, numpy.memmap):  # reading all of it would read the file
            return None
        base = getattr(base, "base", None)
    if value.nbytes > (128 << 20):  # of one operand
        return None
    raw = memoryview(numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8))
    step = max(value.nbytes // NUM_PARTS, MIN_PART_BYTES)
    return (hash(value.shape), *(zlib.crc32(raw[i : i + step]) for i in range(0, len(raw), step)))


def name_of_call(function: Any, receiver: Any = None) -> str:
    """Return the name of a callable by its package: "numpy.isin", "numpy.Generator.choice"; "" where it has none."""
    if kind_of(function) == "numpy.vectorize":
        return "numpy.vectorize"
    if not isinstance(function, _CALLABLES) and type(function).__module__ != "numpy":  # an object of the script's
        return ""
    name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
    receiver = owner if receiver is None else receiver
    if receiver is not None and not isinstance(receiver, ModuleType | type):
        return f"{kind_of(receiver)}.{name}" if isinstance(name, str) and name else ""
    module = getattr(function, "__module__", None) or kind_of(function).partition(".")[0]
    return f"{str(module).partition('.')[0]}.{name}" if isinstance(name, str) and name else ""
