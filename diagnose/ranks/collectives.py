"""The collectives of one rank: what each is called, what it moves, in which group, and what it serves."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ints, Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, covered
from diagnose.model.shapes import num_elements
from diagnose.ranks.profile import CollectiveKind, Collectives, Group
from diagnose.ranks.purposes import purposes_of
from diagnose.tables import Tables
from diagnose.tables.names import NAME_PART, matching

__all__ = ["BUS_FACTORS", "RankCollectives", "collectives_of", "element_bytes", "elements_of", "hidden_by"]

# Collectives of a host backend that both sides record; a receive of gloo leaves no event.
_HOST = re.compile(r"^(gloo|mpi|ucc):(?!send|recv)")
_CALL = re.compile(r"^(nccl|rccl|hccl|xccl):|^record_param_comms$")
_PREFIX = r"^(nccl|rccl|hccl|xccl|gloo|mpi|ucc):"
_KINDS = (  # in a name without underscores: which collective it is; the first that fits
    ("alltoall", "all_to_all"),
    ("allreduce", "all_reduce"),
    ("reducescatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("scatter", "scatter"),
    ("gather", "gather"),
    ("sendrecv", "send_recv"),
    ("send", "send"),
    ("recv", "recv"),
    ("reduce", "reduce"),
)
BUS_FACTORS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
"""Of the whole operation's size, times (n-1)/n among n ranks, what a link carries, as NCCL's tests count it."""

_BYTES = {
    **dict.fromkeys(("double", "float64", "long", "long int", "int64"), 8),
    **dict.fromkeys(("float", "float32", "int", "int32"), 4),
    **dict.fromkeys(("half", "float16", "bfloat16", "short", "int16"), 2),
    **dict.fromkeys(("char", "signed char", "byte", "unsigned char", "bool", "int8", "uint8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
}

MIN_TIMES_AS_LONG = 2.0  # as that: computing meanwhile, and links that several share, make transfers longer by less
MAX_NEXT_NS = 50_000  # from the end of a collective to the begin of the next one that stood behind it


class RankCollectives(NamedTuple):
    """One rank's collectives with what they refer to."""

    groups: tuple[Group, ...]
    kinds: tuple[CollectiveKind, ...]
    collectives: Collectives

    def outlying(self) -> Ints:
        """Return of each collective what it takes beyond its transfer, if it is many times as long: waiting for ranks.

        No transfer takes longer than another of the same kind in the same group that moves as much or more. 0 where
        bytes are not known, and of those that nothing is compared with.
        """
        c = self.collectives
        if not len(c):
            return np.zeros(0, np.int64)
        moved = np.array([kind.num_bytes for kind in self.kinds], np.int64)[c.kind]
        names = {key: i for i, key in enumerate(dict.fromkeys((kind.name, kind.group) for kind in self.kinds))}
        alike = np.array([names[kind.name, kind.group] for kind in self.kinds])[c.kind]
        order = np.lexsort((moved, alike))[::-1]  # of each kind the one that moves most first
        least = np.empty(len(c), np.int64)
        for which in range(len(names)):
            mine = order[alike[order] == which]
            fastest = np.minimum.accumulate(c.length[mine])
            last = np.searchsorted(-moved[mine], -moved[mine], side="right") - 1  # the last of as many bytes
            least[mine] = fastest[last]
        waits = np.clip(c.length - least - c.covered, 0, c.alone)
        return np.where((moved >= 0) & (c.length > MIN_TIMES_AS_LONG * least), waits, 0)


class _Facts(NamedTuple):
    """What is known of one collective."""

    name: str = ""
    dtype: str = ""
    elements: int = -1
    elements_out: int = -1
    group: Group = Group()
    source: int = -1
    target: int = -1


def collectives_of(t: Tables) -> RankCollectives:
    """Return the collectives that the steady steps launch."""
    rows, launches = _of_device(t) if t.device_id >= 0 else _of_host(t)
    events = t.trace.events
    begun = np.where(launches >= 0, events.start[launches], events.start[rows])
    step = np.maximum(np.searchsorted(t.steps.start, begun, side="right") - 1, 0)
    keep = (events.start[rows] >= t.steps.window[0]) & (begun < t.steps.end[-1])
    rows, launches, step = rows[keep], launches[keep], step[keep]
    groups: dict[Group, int] = {}
    kinds: dict[CollectiveKind, int] = {}
    calls = _calls_of(t, rows, launches)
    seen: dict[tuple[int, ...], _Facts] = {}
    kind = np.zeros(len(rows), np.int32)
    sequence = np.full(len(rows), -1, np.int64)
    known_of: list[_Facts] = []
    for i, row in enumerate(rows.tolist()):
        parts = (row, *calls[i])
        key = tuple(int(column[r]) if r >= 0 else -1 for r in parts for column in _columns(t))
        facts = seen.get(key)
        if facts is None:
            facts = seen[key] = _facts(t, parts)
        known_of.append(facts)
        sequence[i] = max((int(events.sequence[r]) for r in parts if r >= 0 and _has_detail(t, r)), default=-1)
    serves = purposes_of(t, rows, launches, [(facts.name, facts.group) for facts in known_of])
    for i, facts in enumerate(known_of):
        known = CollectiveKind(
            group=groups.setdefault(facts.group, len(groups)),
            name=facts.name,
            num_bytes=_num_bytes(facts.elements, facts.dtype),
            num_bytes_out=_num_bytes(facts.elements_out, facts.dtype),
            dtype=facts.dtype,
            purpose=serves[i],
            source=facts.source,
            target=facts.target,
        )
        kind[i] = kinds.setdefault(known, len(kinds))
    start, end = events.start[rows], events.end[rows]
    computing = t.occupancy.compute if t.device_id >= 0 else t.in_ops
    covered_until, alone = hidden_by(computing, start, end)
    columns = Collectives(
        kind,
        step.astype(np.int32),
        sequence,
        start,
        end - start,
        covered_until,
        alone,
        hidden=covered(computing, start, end),
        queued=_queued(t, launches, start, end),
        unlaunched=np.zeros(len(start), np.int64),  # what is own time, the rules of idle time decide
    )
    return RankCollectives(tuple(groups), tuple(kinds), columns)


def _queued(t: Tables, launches: Rows, start: Ints, end: Ints) -> Ints:
    """Return for how long each collective waited for nothing but the one that ended right before it began.

    What it needs besides is its own launch and the work that was launched before.
    """
    if not len(start) or t.device_id < 0:
        return np.zeros(len(start), np.int64)
    events, tasks = t.trace.events, t.tasks
    mine = np.flatnonzero(~tasks.is_collective & (tasks.launch >= 0))
    launched = events.start[tasks.launch[mine]]
    order = np.argsort(launched, kind="stable")
    none = np.iinfo(np.int64).min
    reach = np.concatenate([[none], np.maximum.accumulate(tasks.end[mine][order])])
    work = reach[np.searchsorted(launched[order], events.start[np.maximum(launches, 0)])]
    ready = np.maximum(work, events.end[np.maximum(launches, 0)])
    ended = np.concatenate([[none], np.maximum.accumulate(end)[:-1]])
    is_next = np.abs(start - np.maximum(ended, start[0] - 2 * MAX_NEXT_NS)) <= MAX_NEXT_NS
    return np.where(is_next & (launches >= 0) & (ready < start), start - ready, 0)


def _of_device(t: Tables) -> tuple[Rows, Rows]:
    mine = np.flatnonzero(t.tasks.is_collective)
    mine = mine[np.argsort(t.trace.events.start[t.tasks.row[mine]], kind="stable")]
    return t.tasks.row[mine], t.tasks.launch[mine].astype(np.intp)


def _of_host(t: Tables) -> tuple[Rows, Rows]:
    rows = np.sort(t.in_window(matching(t.trace, (Kind.ANNOTATION, Kind.OP), _HOST)), kind="stable")
    return rows, np.full(len(rows), -1, np.intp)


def _columns(t: Tables) -> tuple[npt.NDArray[np.integer[Any]], ...]:
    events = t.trace.events
    return events.name, events.detail, events.size, events.shapes, events.types


def _has_detail(t: Tables, row: int) -> bool:
    detail = int(t.trace.events.detail[row])
    return detail >= 0 and "|" in t.trace.names[detail]


def _calls_of(t: Tables, rows: Rows, launches: Rows) -> list[tuple[int, int]]:
    """Return for each collective the host's events around its launch: the annotation and the operator, -1 for none."""
    events = t.trace.events
    around = [(-1, -1)] * len(rows)
    calls = matching(t.trace, (Kind.OP, Kind.ANNOTATION), _CALL)
    is_param = np.array([t.name(row) == "record_param_comms" for row in calls.tolist()], bool)
    found = np.full((2, len(rows)), -1, np.intp)
    for which, mine in enumerate((calls[~is_param], calls[is_param])):
        for thread in np.flatnonzero(np.bincount(np.maximum(events.thread[mine], 0))).tolist() if len(mine) else ():
            there = mine[events.thread[mine] == thread]
            here = np.flatnonzero((launches >= 0) & (events.thread[launches] == thread))
            at = np.searchsorted(events.start[there], events.start[launches[here]], side="right") - 1
            open_at = (at >= 0) & (events.end[there[np.maximum(at, 0)]] >= events.start[launches[here]])
            found[which, here[open_at]] = there[at[open_at]]
    return [(int(a), int(b)) for a, b in found.T] if len(rows) else around


def _facts(t: Tables, parts: tuple[int, ...]) -> _Facts:
    """Gather what the task, the annotation and the operator of one collective hold, in this order."""
    events, names = t.trace.events, t.trace.names
    task, call, operator = parts
    detail = next((names[int(events.detail[r])] for r in (task, operator) if r >= 0 and _has_detail(t, r)), "")
    texts = detail.split("|", 8) if detail else []
    size = next((int(events.size[r]) for r in (task, operator) if r >= 0 and _has_detail(t, r)), -1)
    described = call if call >= 0 else task
    dtype, elements = (texts[1], size) if texts and texts[1] else _of_shapes(t, described)
    own = re.sub(_PREFIX, "", t.name(described)) if described >= 0 else ""
    name = _name(texts[0]) if texts else _name(own)
    if len(texts) < 9:
        return _Facts(name, _dtype(dtype), elements, group=Group(size=_int(texts[2]) if len(texts) > 2 else 0))
    members = tuple(int(n) for n in texts[8].split(",") if n)
    group = Group(texts[6], texts[7], max(_int(texts[2]), 0), members)
    return _Facts(name, _dtype(dtype), elements, _int(texts[3]), group, _int(texts[4]), _int(texts[5]))


def _of_shapes(t: Tables, row: int) -> tuple[str, int]:
    """Return type and elements of what a host's annotation lists as its inputs."""
    events, names = t.trace.events, t.trace.names
    if row < 0 or events.shapes[row] < 0:
        return "", -1
    try:
        elements = elements_of(names[int(events.shapes[row])])
        types = json.loads(names[int(events.types[row])]) if events.types[row] >= 0 else []
    except (ValueError, RecursionError):
        return "", -1
    return (types[0] if types and isinstance(types[0], str) else "", elements or -1)


def elements_of(text: str) -> int:
    """Return the elements of all inputs that an operator or annotation lists, as their JSON text.

    Raises:
        ValueError, RecursionError: it is none.
    """
    return _num_elements(json.loads(text))


def _num_elements(shapes: object) -> int:
    """Return the elements of all shapes in a list, which may hold lists of shapes."""
    if not isinstance(shapes, list) or not shapes:
        return 0
    if all(isinstance(n, int) for n in shapes):
        return num_elements(max(n, 0) for n in shapes)
    return sum(map(_num_elements, shapes))


def _name(text: str) -> str:
    plain = text[:NAME_PART].lower().replace("_", "")
    return next((name for part, name in _KINDS if part in plain), text[:40])


def _dtype(text: str) -> str:
    return text.lower().removeprefix("c10::")


def element_bytes(dtype: str) -> int:
    """Return the size of an element, 0 where the type is not known."""
    return _BYTES.get(dtype, 0)


def _num_bytes(elements: int, dtype: str) -> int:
    each = element_bytes(dtype)
    return elements * each if elements >= 0 and each else -1


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return -1


def hidden_by(compute: Intervals, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return for each collective how long it is covered from its start on, and how long nothing covers it.

    Of two that run at once, the one that began first counts.
    """
    began = np.maximum.accumulate(np.concatenate([[np.iinfo(np.int64).min], end[:-1]])) if len(end) else end
    free_from = np.minimum(np.maximum(start, began), end)
    alone = (end - free_from) - covered(compute, free_from, end)
    at = np.searchsorted(compute.start, free_from, side="right") - 1
    until = free_from.copy()
    inside = (at >= 0) & (compute.end[np.maximum(at, 0)] > free_from) if len(compute.start) else np.zeros(len(at), bool)
    until[inside] = np.minimum(compute.end[at[inside]], end[inside])
    return until - start, alone
