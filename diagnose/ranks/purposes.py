"""What collectives serve, as the host's events and the process groups show it.

A job may exchange in several groups: of data parallel ranks, whose gradients DistributedDataParallel reduces in buckets
or FSDP scatters, and of ranks that share layers, experts or the sequence. Which of them is whose, a group's description
states (``mesh_tp`` of a device mesh, ``EXPERT_MODEL_PARALLEL_GROUP`` of Megatron); else the group is FSDP's that
gathers within FSDP's own ranges, and not DistributedDataParallel's where it reduces in the forward too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from diagnose.model.arrays import Mask, Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, among, covered
from diagnose.ranks.profile import Group
from diagnose.tables import Tables
from diagnose.tables.collectives import buffer_broadcasts
from diagnose.tables.names import BACKWARD, matching

__all__ = ["purposes_of"]

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
_SPLIT = frozenset({"all_reduce", *_SHARDED})
_BETWEEN_TWO = frozenset({"send", "recv"})
_EXCHANGING = frozenset({"expert-parallel", "context-parallel"})  # tokens to experts, heads for parts of the sequence
_SHARING = _EXCHANGING | {"tensor-parallel"}


def purposes_of(t: Tables, rows: Rows, launches: Rows, known: Sequence[tuple[str, Group]]) -> list[str]:
    """Return for each collective what it serves, "" where nothing shows it; ``known`` are their names and groups."""
    begun = np.where(launches >= 0, t.trace.events.start[launches], t.trace.events.start[rows])
    broadcasts = t.tasks.row[buffer_broadcasts(t)] if t.device_id >= 0 else np.empty(0, np.intp)
    is_buffer = among(rows, broadcasts).tolist()
    in_backward = _in_backward(t, begun)
    of_ddp = _groups_of_ddp(t, known, in_backward)
    of_fsdp = _groups_of_fsdp(t, known, begun)

    def serves(i: int, name: str, group: Group) -> str:
        if is_buffer[i]:
            return "buffer-broadcast"
        use = _use(group)
        if name == "all_to_all":
            return use if use in _EXCHANGING else "all-to-all"
        if name in _BETWEEN_TWO:
            return use if use in _EXCHANGING else "pipeline"
        if name in _SPLIT and use in _SHARING:
            return use
        if name in _SHARDED:
            return _SHARDED[name] if group in of_fsdp else ""
        return "ddp-bucket" if name == "all_reduce" and in_backward[i] and group in of_ddp else ""

    return [serves(i, name, group) for i, (name, group) in enumerate(known)]


def _use(group: Group) -> str:
    """Return what a group's description states that its ranks share, "" where it states nothing."""
    words = set(re.findall(_WORD, group.use.lower()))
    return next((use for marks, use in _USES if marks & words), "")


def _is_other(group: Group) -> bool:
    """Return whether a group is described as neither of data parallel ranks nor of all."""
    return _use(group) not in ("", "data-parallel")


def _groups_of_ddp(t: Tables, known: Sequence[tuple[str, Group]], in_backward: Mask) -> set[Group]:
    """Return the groups in which DistributedDataParallel reduces."""
    if not len(matching(t.trace, (Kind.ANNOTATION, Kind.OP), _DDP)):
        return set()
    reducing = [
        (group, back) for (name, group), back in zip(known, in_backward.tolist(), strict=True) if name == "all_reduce"
    ]
    found = {group for group, back in reducing if back and not _is_other(group)}
    in_forward = {group for group, back in reducing if not back}
    return found - in_forward or found


def _groups_of_fsdp(t: Tables, known: Sequence[tuple[str, Group]], begun: Rows) -> set[Group]:
    """Return the groups in which FSDP gathers and scatters."""
    ranges = matching(t.trace, (Kind.ANNOTATION, Kind.OP, Kind.PYTHON), _FSDP)
    if not len(ranges):
        return set()
    inside = (covered(t.covering(ranges), begun, begun + 1) > 0).tolist()
    gathering = [(group, own) for (name, group), own in zip(known, inside, strict=True) if name in _SHARDED]
    found = {group for group, _ in gathering if not _is_other(group)}
    return {group for group, own in gathering if own} & found or found


def _in_backward(t: Tables, begun: Rows) -> Mask:
    """Return which times lie between the first and the last node of a step's backward."""
    backward = t.covering(matching(t.trace, (Kind.OP, Kind.ANNOTATION), BACKWARD))
    inside: Mask = covered(_stretched(backward, t), begun, begun + 1) > 0
    return inside


def _stretched(backward: Intervals, t: Tables) -> Intervals:
    """Return for each step the time from the first to the end of the last node of its backward."""
    if not len(backward.start):
        return backward
    step = np.searchsorted(t.steps.start, backward.start, side="right") - 1
    ids = np.flatnonzero(np.bincount(np.maximum(step, 0)))
    first = np.array([backward.start[step == i].min() if (step == i).any() else 0 for i in ids], np.int64)
    last = np.array([backward.end[step == i].max() if (step == i).any() else 0 for i in ids], np.int64)
    return Intervals(first, last)
