"""Which function of the user's issues operators one by one: a loop over tensors or numbers.

Python frames show it; where so many operators run that none were recorded, the lines that the sampler saw around them.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ints, Mask, Rows
from diagnose.model.events import Kind
from diagnose.model.frozen import dataclass
from diagnose.model.intervals import EMPTY, Intervals, contains, union
from diagnose.tables import Tables, shared_table
from diagnose.tables.host import Layers, host_rows, outermost
from diagnose.tables.names import FRAME, LOADER_NEXT
from diagnose.tables.no_grad_calls import HEAVY
from diagnose.tables.optimizer_spans import updates

__all__ = ["MIN_IN_MODEL", "Issuer", "called_by_functions", "issued", "issuer_of"]

MAX_LOOKED_AT = 20_000  # operators: the first of the window stand for the rest
MIN_SHARE = 0.3  # of the operators that Python calls: below it no function stands out
MIN_PER_STEP = 50
MAX_HEAVY = 0.05  # of the operators that a function calls as samples show: products and convolutions are a model's
MIN_IN_MODEL = 200  # of a function that a module calls: fewer are a model of many layers
MIN_EACH_CALL = 30  # of such a function, operators in each of its calls: fewer are a layer, which is called for each
NUM_NAMED = 3
# Recorded with its stack an operator takes 20 to 100 µs to be called, on a busy machine several times that; one that
# takes longer in the median works.
MAX_NS = 200_000
MAX_PAUSE_NS = 1_000_000  # of Python between two operators of a loop
_MODULE = re.compile(r"^nn\.Module: |torch/nn/modules/module\.py\(\d+\): (_wrapped)?_call_impl$")
_BACKWARD = re.compile(r"torch/autograd/.*: (backward|grad|_engine_run_backward)$")
_OPTIMIZER = re.compile(r"(^|/)torch/optim/")
_LIBRARY = re.compile(r"(^|/)(site-packages|dist-packages|lib/python3[^/]*|torch|numpy|diagnose)/|^<")
READ = "aten::item"
ENGINE = "autograd::engine::"
NO_LAYERS = Layers((), (), EMPTY.end)


@dataclass(frozen=True, slots=True)
class Issuer:
    """A function that calls operators itself, not through a module's layers; figures are for a step."""

    frame: str  # as the profiler names it
    file: str
    line: int  # the function's first; of samples the one that most are at
    function: str
    num: float  # operators
    share: float  # of the operators that Python calls outside the optimizer
    reads: float  # numbers read back, each with a call of its own
    median_ns: int  # of an operator
    in_model: bool  # a module calls it
    names: tuple[str, ...]  # of the commonest operators


_Owner: TypeAlias = tuple[str, bool]  # the frame of a function, and whether a module calls it


@shared_table
def issuer_of(t: Tables) -> Issuer | None:
    """Return the function that issues most, where one stands out; None where neither frames nor samples show it."""
    if _has_frames(t):
        return _main_issuer(t.named)
    sampled = _sampled(t)
    return None if sampled is None else sampled[0]


@shared_table
def issued(t: Tables) -> Intervals:
    """Return the time in which the issuer calls its operators, short Python between two of them included.

    A step of the timing window is matched with one of the attribution window that calls the same operators in the
    same order; a step without a match is left out, and so is a function whose operators do work.
    """
    issuer, named = issuer_of(t), t.named
    if issuer is None or issuer.median_ns > MAX_NS:
        return EMPTY
    if not _has_frames(t):
        return _issued_by_samples(t)
    known = dict(_owners_of(named, rows) for rows in _by_step(named))
    starts, ends = [], []
    for rows in _by_step(t):
        owners = known.get(_names_of(t, rows))
        if owners is None:
            continue
        mine = np.array([owner is not None and owner[0] == issuer.frame for owner in owners], bool)
        start, end = t.trace.events.start[rows], t.trace.events.end[rows]
        starts.append(start[mine])
        ends.append(_reaching(start, end, mine)[mine])
    return union((np.concatenate(starts), np.concatenate(ends))) if starts else EMPTY


@shared_table
def called_by_functions(t: Tables) -> dict[str, Rows]:
    """Return the operators that functions of the user's call themselves, not through torch's layers, by the frame.

    They are known of the steps that the attribution window has a like of: the same operators in the same order.
    """
    if not _has_frames(t):
        return {}
    known = dict(_owners_of(t.named, rows) for rows in _by_step(t.named))
    found: dict[str, list[int]] = {}
    for rows in _by_step(t):
        for row, owner in zip(rows.tolist(), known.get(_names_of(t, rows), ()), strict=False):
            if owner is not None:
                found.setdefault(owner[0], []).append(row)
    return {frame: np.array(rows, np.intp) for frame, rows in found.items()}


def _reaching(start: Ints, end: Ints, mine: Mask) -> Ints:
    """Return the operators' ends, moved to the next one's start where that follows soon and is the function's too."""
    following = np.append(start[1:], end[-1:])
    chained = np.append(mine[1:], False) & (following - end < MAX_PAUSE_NS)
    reached: Ints = np.where(chained, following, end)
    return reached


def _issued_by_samples(t: Tables) -> Intervals:
    sampled, rows = _sampled(t), _all_called(t)
    if sampled is None:
        return EMPTY
    mine = np.isin(rows, sampled[1])
    start, end = t.trace.events.start[rows], t.trace.events.end[rows]
    return union((start[mine], _reaching(start, end, mine)[mine]))


def _has_frames(t: Tables) -> bool:
    named = t.named
    return bool(named.frame_layers.get(named.main, NO_LAYERS).rows)


def _by_step(t: Tables) -> list[Rows]:
    """Return the operators of each step that Python calls, in the order of their starts."""
    rows = _all_called(t)
    cuts = np.searchsorted(t.trace.events.start[rows], t.steps.start)
    return [part for part in np.split(rows, cuts)[1:] if len(part)]


def _owners_of(t: Tables, rows: Rows) -> tuple[tuple[str, ...], list[_Owner | None]]:
    """Return the operators' names and their owners; a loop has few stacks, and each is looked at once."""
    names, owners, found = t.trace.names, dict[bytes, "_Owner | None"](), list["_Owner | None"]()
    for stack in _stacks(t, rows):
        key = stack.tobytes()
        if key not in owners:
            owners[key] = _owner([names[i] for i in reversed(stack.tolist()) if i >= 0])
        found.append(owners[key])
    return _names_of(t, rows), found


def _stacks(t: Tables, rows: Rows) -> npt.NDArray[np.int32]:
    """Return for each operator the names of the frames around it, outermost first, -1 where there are no more."""
    events, frames = t.trace.events, t.frame_layers.get(t.main, NO_LAYERS)
    found = np.full((len(rows), max(len(frames.rows), 1)), -1, np.int32)
    is_open = np.ones(len(rows), bool)
    for depth in range(len(frames.rows)):
        row = frames.open_in(depth, events.start[rows])
        is_open &= row >= 0
        found[is_open, depth] = events.name[row[is_open]]
    return found


def _names_of(t: Tables, rows: Rows) -> tuple[str, ...]:
    names = t.trace.names
    return tuple([names[i] for i in t.trace.events.name[rows].tolist()])


def _main_issuer(t: Tables) -> Issuer | None:
    rows = _all_called(t)[:MAX_LOOKED_AT]
    if not len(rows) or not len(t.steps.start):
        return None
    called, owners = _owners_of(t, rows)
    counted = Counter(owner for owner in owners if owner is not None)
    if not counted:
        return None
    owner, num = counted.most_common(1)[0]
    match = FRAME.match(owner[0])
    steps = t.steps.num * len(rows) / len(_all_called(t))
    if match is None or num < MIN_SHARE * len(rows) or num / steps < MIN_PER_STEP:
        return None
    if owner[1] and num < MIN_EACH_CALL * _num_calls(t, owner[0], steps):
        return None
    is_mine = np.array([one == owner for one in owners], bool)
    mine = Counter(name for name, own in zip(called, is_mine.tolist(), strict=True) if own)
    length = (t.trace.events.end - t.trace.events.start)[rows[is_mine]]
    return Issuer(
        frame=owner[0],
        file=match["file"],
        line=int(match["line"]),
        function=match["function"],
        num=num / steps,
        share=num / len(rows),
        reads=mine[READ] / steps,
        median_ns=int(np.median(length)),
        in_model=owner[1],
        names=tuple(name for name, _ in mine.most_common(NUM_NAMED)),
    )


def _num_calls(t: Tables, frame: str, steps: float) -> float:
    """Return how often a function is called in so many steps."""
    frames = t.in_window(t.host_rows(Kind.PYTHON))
    names = np.array([name == frame for name in t.trace.names], bool)
    return int(names[t.trace.events.name[frames]].sum()) * steps / t.steps.num


@shared_table
def _sampled(t: Tables) -> tuple[Issuer, Rows] | None:
    """Return the function that most operators lie in by samples, and these; None for one that does a model's work.

    An operator is a function's where the sampler saw the thread in that function on both sides of it.
    """
    samples, rows = t.capture.samples, _all_called(t)
    if samples is None or len(samples.time_ns) < 2 or not len(rows) or not t.trace.epoch_ns:
        return None
    functions = sorted({(file, function) for file, _, function in samples.places})
    number = {each: i for i, each in enumerate(functions)}
    of_place = np.array([number[file, function] for file, _, function in samples.places] + [-1], np.int64)
    seen = of_place[samples.place]
    after = np.searchsorted(samples.time_ns - t.trace.epoch_ns, t.trace.events.start[rows])
    inside = (after > 0) & (after < len(seen))
    after = np.clip(after, 1, len(seen) - 1)
    owner = np.where(inside & (seen[after] == seen[after - 1]), seen[after], -1)
    if not (owner >= 0).any():
        return None
    most = int(np.bincount(owner[owner >= 0]).argmax())
    mine, (file, function) = rows[owner == most], functions[most]
    called = Counter(_names_of(t, mine))
    heavy = sum(num for name, num in called.items() if HEAVY.match(name))
    if _LIBRARY.search(file) or heavy > MAX_HEAVY * len(mine) or len(mine) < MIN_SHARE * len(rows):
        return None
    if len(mine) / t.steps.num < MIN_PER_STEP:
        return None
    lines = Counter(samples.places[i][1] for i in samples.place[seen == most].tolist())
    line = lines.most_common(1)[0][0]
    issuer = Issuer(
        frame=f"{file}({line}): {function}",
        file=file,
        line=line,
        function=function,
        num=len(mine) / t.steps.num,
        share=len(mine) / len(rows),
        reads=called[READ] / t.steps.num,
        median_ns=int(np.median((t.trace.events.end - t.trace.events.start)[mine])),
        in_model=False,
        names=tuple(name for name, _ in called.most_common(NUM_NAMED)),
    )
    return issuer, mine


@shared_table
def _all_called(t: Tables) -> Rows:
    """Return the operators of the training thread that Python calls itself, outside of the loader and the optimizer."""
    rows = t.in_window(host_rows(t.trace, t.main, Kind.OP))
    outer = outermost(t.trace, rows)
    is_engine = np.array([name.startswith(ENGINE) for name in t.trace.names], bool)
    outer = outer[~is_engine[t.trace.events.name[outer]]]
    start = t.trace.events.start[outer]
    loading = t.covering(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP))
    kept: Rows = outer[~contains(updates(t), start) & ~contains(loading, start)]
    return kept


def _owner(frames: list[str]) -> _Owner | None:
    """Return the user's function that calls an operator, and whether a module calls that; innermost frame first.

    None where one of torch's own modules stands between, a backward pass or an optimizer of torch's: these are no calls
    of the function's own, and a loop in them is not the user's to change.
    """
    for at, frame in enumerate(frames):
        kind = _kind_of(frame)
        if kind == "torch":
            return None
        if kind == "user":
            return frame, any(_MODULE.search(above) for above in frames[at + 1 :])
    return None


@lru_cache(maxsize=4096)  # all stacks have few different ones
def _kind_of(frame: str) -> Literal["torch", "user", "other"]:
    """Return whether a frame is of a module, a backward pass or an optimizer of torch's, or of the user's files."""
    if _MODULE.search(frame) or _BACKWARD.search(frame) or _OPTIMIZER.search(frame):
        return "torch"
    match = FRAME.match(frame)
    return "user" if match and not _LIBRARY.search(match["file"]) else "other"
