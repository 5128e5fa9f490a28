"""The collectives of one rank: what each is called, what it moves, in which group, and what it serves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from diagnose.model.arrays import Ints, Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, among, contains, covered, distinct, union
from diagnose.model.limits import AT_ONCE_NS
from diagnose.model.shapes import num_elements
from diagnose.ranks.profile import CollectiveKind, Collectives, Group
from diagnose.tables import Tables
from diagnose.tables.collectives import buffer_broadcasts, buffer_updates
from diagnose.tables.names import BACKWARD, NAME_PART, matching

# Collectives of a host backend that both sides record; a receive of gloo leaves no event.
_HOST = re.compile(r"^(gloo|mpi|ucc):(?!send|recv)")
_CALL = re.compile(r"^(nccl|rccl|hccl|xccl):|^record_param_comms$")
_HOST_CALL = re.compile(r"^c10d::(?!send|recv)")
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
# Of the whole operation's size, times (n-1)/n among n ranks, what a link carries, as NCCL's tests count it.
BUS_FACTORS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
_BYTES = {
    **dict.fromkeys(("double", "float64", "long", "long int", "int64"), 8),
    **dict.fromkeys(("float", "float32", "int", "int32"), 4),
    **dict.fromkeys(("half", "float16", "bfloat16", "short", "int16"), 2),
    **dict.fromkeys(("char", "signed char", "byte", "unsigned char", "bool", "int8", "uint8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
}
MIN_TIMES_AS_LONG = 2.0  # as that: computing meanwhile, and links that several share, make transfers longer by less
_DDP = re.compile(r"^DistributedDataParallel\.forward|^torch::distributed::reducer::|^torch\.distributed\.ddp\.reducer")
_FSDP = re.compile(r"^FSDP::|^FullyShardedDataParallel\.")
_WORD = r"[a-z]+"
# Words of a group's description and what its ranks share, the first that fits. Tensor parallel experts are the former,
# and a mesh that folds context parallel ranks into the data parallel ones (mesh_dp_shard_cp) holds shards of the data.
_USES: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"tp", "tensor"}), "tensor-parallel"),
    (frozenset({"dp", "data", "ddp", "fsdp", "hsdp", "replicate", "shard"}), "data-parallel"),
    (frozenset({"ep", "expert", "experts", "moe"}), "expert-parallel"),
    (frozenset({"cp", "context", "sp", "sequence", "ulysses"}), "context-parallel"),
    (frozenset({"pp", "pipeline"}), "pipeline"),
)
_SHARDED = {"all_gather": "fsdp-gather", "reduce_scatter": "fsdp-scatter"}
_EXCHANGING = frozenset({"expert-parallel", "context-parallel"})  # tokens to experts, heads for parts of the sequence


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


def collectives_of(t: Tables) -> RankCollectives:
    """Return the collectives that the steady steps launch."""
    events, has_device = t.trace.events, t.device_id >= 0
    rows = np.sort(t.in_window(matching(t.trace, (Kind.ANNOTATION, Kind.OP), _HOST)), kind="stable")
    launches = np.full(len(rows), -1, np.intp)
    if has_device:
        mine = np.flatnonzero(t.tasks.is_collective)
        mine = mine[np.argsort(events.start[t.tasks.row[mine]], kind="stable")]
        rows, launches = t.tasks.row[mine], t.tasks.launch[mine].astype(np.intp)
    begun = np.where(launches >= 0, events.start[launches], events.start[rows])
    step = np.maximum(np.searchsorted(t.steps.start, begun, side="right") - 1, 0)
    keep = (events.start[rows] >= t.steps.window[0]) & (begun < t.steps.end[-1])
    rows, launches, step = rows[keep], launches[keep], step[keep]
    columns = events.name, events.detail, events.size, events.shapes, events.types
    seen: dict[tuple[int, ...], tuple[CollectiveKind, Group]] = {}
    known: list[tuple[CollectiveKind, Group]] = []
    sequence = np.full(len(rows), -1, np.int64)
    for i, parts in enumerate(_parts_of(t, rows, launches)):
        key = tuple(int(column[r]) if r >= 0 else -1 for r in parts for column in columns)
        if key not in seen:  # all steps have the same ones
            seen[key] = _described(t, *parts)
        known.append(seen[key])
        sequence[i] = max((int(events.sequence[r]) for r in parts if _detail(t, r)), default=-1)
    groups: dict[Group, int] = {}
    kinds: dict[CollectiveKind, int] = {}
    kind = np.zeros(len(rows), np.int32)
    serves = purposes_of(t, rows, launches, [(one.name, group) for one, group in known])
    for i, (one, group) in enumerate(known):
        whole = replace(one, group=groups.setdefault(group, len(groups)), purpose=serves[i])
        kind[i] = kinds.setdefault(whole, len(kinds))
    start, end = events.start[rows], events.end[rows]
    computing = t.occupancy.compute if has_device else t.in_ops
    covered_until, alone = hidden_by(computing, start, end)
    found = Collectives(
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
    return RankCollectives(tuple(groups), tuple(kinds), found)


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
    # From the end of a collective to the begin of the next one that stood behind it.
    is_next = np.abs(start - np.maximum(ended, start[0] - 2 * AT_ONCE_NS)) <= AT_ONCE_NS
    return np.where(is_next & (launches >= 0) & (ready < start), start - ready, 0)


def _parts_of(t: Tables, rows: Rows, launches: Rows) -> list[tuple[int, int, int]]:
    """Return of each collective its row and the host's events around its launch, -1 for none.

    These are an annotation and an operator.
    """
    events, calls = t.trace.events, matching(t.trace, (Kind.OP, Kind.ANNOTATION), _CALL)
    is_param = np.array([t.name(row) == "record_param_comms" for row in calls.tolist()], bool)
    found = np.full((3, len(rows)), -1, np.intp)
    found[0] = rows
    for which, mine in enumerate((calls[~is_param], calls[is_param]), start=1):
        for thread in distinct(events.thread[mine]).tolist():
            there = mine[events.thread[mine] == thread]
            here = np.flatnonzero((launches >= 0) & (events.thread[launches] == thread))
            at = np.searchsorted(events.start[there], events.start[launches[here]], side="right") - 1
            open_at = (at >= 0) & (events.end[there[at]] >= events.start[launches[here]])
            found[which, here[open_at]] = there[at[open_at]]
    return [(task, call, operator) for task, call, operator in found.T.tolist()]


def _detail(t: Tables, row: int) -> list[str]:
    """Return what a task or an operator holds of its collective: name, type and further fields."""
    detail = int(t.trace.events.detail[row]) if row >= 0 else -1
    texts = t.trace.names[detail].split("|", 8) if detail >= 0 else []
    return texts if len(texts) > 1 else []


def _described(t: Tables, task: int, call: int, operator: int) -> tuple[CollectiveKind, Group]:
    """Return what the task, the annotation and the operator of one collective hold, in this order, and its group."""
    events = t.trace.events
    row = task if _detail(t, task) else operator
    texts = _detail(t, row)
    described = call if call >= 0 else task
    dtype, elements = (texts[1], int(events.size[row])) if texts and texts[1] else _of_shapes(t, described)
    name = texts[0] if texts else re.sub(_PREFIX, "", t.name(described))
    plain, dtype = name[:NAME_PART].lower().replace("_", ""), dtype.lower().removeprefix("c10::")
    kind = CollectiveKind(
        group=0,  # numbered later
        name=next((known for part, known in _KINDS if part in plain), name[:40]),
        num_bytes=_num_bytes(elements, dtype),
        dtype=dtype,
    )
    size = _int(texts[2]) if len(texts) > 2 else 0
    if len(texts) < 9:
        return kind, Group(size=size)
    members = tuple(int(n) for n in texts[8].split(",") if n)
    out, source, target = map(_int, texts[3:6])
    kind = replace(kind, num_bytes_out=_num_bytes(out, dtype), source=source, target=target)
    return kind, Group(texts[6], texts[7], max(size, 0), members)


def _of_shapes(t: Tables, row: int) -> tuple[str, int]:
    """Return type and elements of what a host's annotation lists as its inputs."""
    events, names = t.trace.events, t.trace.names
    if events.shapes[row] < 0:
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


def purposes_of(t: Tables, rows: Rows, launches: Rows, known: Sequence[tuple[str, Group]]) -> list[str]:
    """Return for each collective what it serves, "" where nothing shows it; ``known`` are their names and groups.

    A job may exchange in several groups: of data parallel ranks, whose gradients DistributedDataParallel reduces in
    buckets or FSDP scatters, and of ranks that share layers, experts or the sequence. Which of them is whose, a group's
    description states (``mesh_tp`` of a device mesh, ``EXPERT_MODEL_PARALLEL_GROUP`` of Megatron); else the group is
    FSDP's that gathers within FSDP's own ranges, and not DistributedDataParallel's where it reduces in the forward too.
    """
    begun = np.where(launches >= 0, t.trace.events.start[launches], t.trace.events.start[rows])
    calls = np.sort(t.trace.events.start[matching(t.trace, (Kind.OP,), _HOST_CALL)])
    if t.device_id < 0 and len(calls):  # a host backend's thread may take one up when the backward pass is over
        at = np.searchsorted(calls, begun, side="right") - 1
        begun = np.where(at >= 0, calls[at], begun)
    if t.device_id >= 0:
        is_buffer = among(rows, t.tasks.row[buffer_broadcasts(t)]).tolist()
    else:
        of_broadcasts = np.array([name == "broadcast" for name, _ in known], bool)
        is_buffer = (contains(buffer_updates(t), begun) & of_broadcasts).tolist()
    in_backward = [False] * len(rows)
    backward = t.covering(matching(t.trace, (Kind.OP, Kind.ANNOTATION), BACKWARD))
    if len(backward.start):  # a step's lasts from its first to its last node
        step = np.maximum(np.searchsorted(t.steps.start, backward.start, side="right") - 1, 0)
        first = np.flatnonzero(np.diff(step, prepend=-1))
        whole = union((backward.start[first], np.maximum.reduceat(backward.end, first)))
        in_backward = contains(whole, begun).tolist()
    of_ddp: set[Group] = set()
    if len(matching(t.trace, (Kind.ANNOTATION, Kind.OP), _DDP)):
        reducing = [
            (group, back) for (name, group), back in zip(known, in_backward, strict=True) if name == "all_reduce"
        ]
        found_back = _of_data(group for group, back in reducing if back)
        of_ddp = found_back - {group for group, back in reducing if not back} or found_back
    of_fsdp: set[Group] = set()
    ranges = matching(t.trace, (Kind.ANNOTATION, Kind.OP, Kind.PYTHON), _FSDP)
    if len(ranges):  # the groups that gather within them
        inside = contains(t.covering(ranges), begun).tolist()
        gathering = [(group, own) for (name, group), own in zip(known, inside, strict=True) if name in _SHARDED]
        of_fsdp = _of_data(group for group, _ in gathering)
        of_fsdp = {group for group, own in gathering if own} & of_fsdp or of_fsdp
    scatters = any(name == "reduce_scatter" for name, _ in known)  # gloo adds up everything, and keeps its part
    found = []
    for (name, group), buffer, back in zip(known, is_buffer, in_backward, strict=True):
        use = _use(group)
        serves = {"all_reduce": "ddp-bucket" if back and group in of_ddp else ""}
        serves |= {kind: purpose if group in of_fsdp else "" for kind, purpose in _SHARDED.items()}
        if back and group in of_fsdp - of_ddp and not scatters:
            serves["all_reduce"] = _SHARDED["reduce_scatter"]
        shared = dict.fromkeys(serves, use) if use in (*_EXCHANGING, "tensor-parallel") else {}
        serves |= {"all_to_all": "all-to-all", "send": "pipeline", "recv": "pipeline"} | shared
        exchanged = dict.fromkeys(("all_to_all", "send", "recv"), use) if use in _EXCHANGING else {}
        found.append("buffer-broadcast" if buffer else (serves | exchanged).get(name, ""))
    return found


def _use(group: Group) -> str:
    """Return what a group's description states that its ranks share, "" where it states nothing."""
    words = set(re.findall(_WORD, group.use.lower()))
    return next((use for marks, use in _USES if marks & words), "")


def _of_data(groups: Iterable[Group]) -> set[Group]:
    """Return those that are not described as of other than data parallel ranks."""
    return {group for group in groups if _use(group) in ("", "data-parallel")}
