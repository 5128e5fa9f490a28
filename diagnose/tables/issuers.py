"""Which function of the user's issues operators one by one: a loop over tensors or numbers.

Python frames show it; where so many operators run that none were recorded, the lines that the sampler saw around them.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from diagnose.model.arrays import Ints, Mask, Rows
from diagnose.model.intervals import EMPTY, Intervals, among, union
from diagnose.model.limits import FEW, LONG_NS, MAJORITY, PREVAILS
from diagnose.model.locations import FRAME
from diagnose.tables import Tables
from diagnose.tables.call_frames import (
    MODULE_CALL,
    NO_LAYERS,
    is_rollout,
    kind_of,
    names_of_open_frames,
    num_calls,
    stacks,
)
from diagnose.tables.python_calls import HEAVY, LIBRARY, PASSES_ON, READ, Issuer, names_of, repeats
from diagnose.tables.run_steps import functions_of

# Which loop of the script's holds most of what a function does, by the lines that the sampler saw.


class SampledLoop(NamedTuple):
    """A `for` or `while` statement."""

    head: int  # its line
    last: int  # that of its body's end
    share: float  # of the function's samples


def sampled_loop(t: Tables, file: str, function: str) -> SampledLoop | None:
    """Return the innermost loop that has most of a function's samples, None where the capture holds no such loop."""
    samples, loops = t.capture.samples, t.capture.loops.get(file)
    if samples is None or not loops:
        return None
    seen: Counter[int] = Counter()
    for row, num in Counter(samples.place.tolist()).items():
        place = samples.places[row] if row >= 0 else ("", 0, "")
        if (place[0], place[2]) == (file, function) and not PASSES_ON.search(t.capture.lines.get(place[:2], "")):
            seen[place[1]] += num
    total = sum(seen.values())
    within = {(head, last): sum(num for line, num in seen.items() if head <= line <= last) for head, last in loops}
    large = [loop for loop, num in within.items() if total and num >= MAJORITY * total]
    if not large:
        return None
    head, last = min(large, key=lambda loop: loop[1] - loop[0])
    return SampledLoop(head, last, within[head, last] / total)


MIN_IN_LOOP = 100  # operators a step that one function of the script calls itself
MIN_IN_MODEL = 200  # of a function that a module calls: fewer are a model of many layers
MIN_EACH_CALL = 30  # of such a function, operators in each of its calls: fewer are a layer, which is called for each


class _Owner(NamedTuple):
    frame: str  # of a function
    in_model: bool  # a module calls it


def issuer_of(t: Tables) -> Issuer | None:
    """Return the function that issues most, where one stands out; None where neither frames nor samples show it."""
    if _has_frames(t):
        return _main_issuer(t.named)
    sampled = sampled_issuer(t)
    return None if sampled is None else sampled[0]


def issued(t: Tables) -> Intervals:
    """Return the time in which the issuer calls its operators, short Python between two of them included.

    A step of the timing window is matched with one of the attribution window that calls the same operators in the
    same order; a step without a match is left out.
    """
    issuer, named = t.issuer, t.named
    if issuer is None:
        return EMPTY
    if not _has_frames(t):
        sampled, rows = sampled_issuer(t), t.called_by_python
        if sampled is None:
            return EMPTY
        mine = among(rows, sampled[1])
        start, end = t.trace.events.start[rows], t.trace.events.end[rows]
        return union((start[mine], _reaching(start, end, mine)[mine]))
    known = dict(_owners_of(named, rows) for rows in _by_step(named))
    starts, ends = [], []
    for rows in _by_step(t):
        owners = known.get(names_of(t, rows))
        if owners is None:
            continue
        mine = np.array([owner is not None and owner.frame == issuer.frame for owner in owners], bool)
        start, end = t.trace.events.start[rows], t.trace.events.end[rows]
        starts.append(start[mine])
        ends.append(_reaching(start, end, mine)[mine])
    return union((np.concatenate(starts), np.concatenate(ends))) if starts else EMPTY


def issued_in_loop(t: Tables) -> Intervals:
    """Return the time in which the issuer calls its operators if they are so many that it has a loop."""
    issuer = t.issuer
    is_loop = issuer is not None and issuer.num >= (MIN_IN_MODEL if issuer.in_model else MIN_IN_LOOP)
    return t.issued if is_loop else EMPTY


def _reaching(start: Ints, end: Ints, mine: Mask) -> Ints:
    """Return the operators' ends, moved to the next one's start where that follows soon and is the function's too."""
    following = np.append(start[1:], end[-1:])
    # Of Python between two operators of a loop.
    chained = np.append(mine[1:], False) & (following - end < LONG_NS)
    reached: Ints = np.where(chained, following, end)
    return reached


def _has_frames(t: Tables) -> bool:
    named = t.named
    return bool(named.frame_layers.get(named.main, NO_LAYERS).rows)


def _by_step(t: Tables) -> list[Rows]:
    """Return the operators of each step that Python calls, in the order of their starts."""
    rows = t.called_by_python
    cuts = np.searchsorted(t.trace.events.start[rows], t.steps.start)
    return [part for part in np.split(rows, cuts)[1:] if len(part)]


def _owners_of(t: Tables, rows: Rows) -> tuple[tuple[str, ...], list[_Owner | None]]:
    """Return the operators' names and their owners; a loop has few stacks, and each is looked at once."""
    names, owners, found = t.trace.names, dict[bytes, "_Owner | None"](), list["_Owner | None"]()
    for stack in stacks(t, rows):
        key = stack.tobytes()
        if key not in owners:
            owners[key] = _owner([names[i] for i in reversed(stack.tolist()) if i >= 0])
        found.append(owners[key])
    return names_of(t, rows), found


def _main_issuer(t: Tables) -> Issuer | None:
    # The first of the window stand for the rest.
    rows = t.called_by_python[:20_000]
    if not len(rows) or not len(t.steps.start):
        return None
    _, owners = _owners_of(t, rows)
    counted = Counter(owner for owner in owners if owner is not None)
    if not counted:
        return None
    (frame, in_model), num = counted.most_common(1)[0]
    match = FRAME.match(frame)
    steps = t.steps.num * len(rows) / len(t.called_by_python)
    if match is None or num < MIN_ISSUED_SHARE * len(rows) or num / steps < MIN_PER_STEP:
        return None
    if in_model and num < MIN_EACH_CALL * num_calls(t, {frame})[frame] * steps / t.steps.num:
        return None
    mine = rows[np.array([one == (frame, in_model) for one in owners], bool)]
    if not in_model and is_rollout(t, mine):
        return None
    is_open = t.trace.names.index(frame) in names_of_open_frames(t)  # its line is not the function's first then
    issuer = _issuer(t, match, mine, len(rows), steps)
    return replace(issuer, line=None if is_open else issuer.line, in_model=in_model)


def _issuer(t: Tables, frame: re.Match[str], mine: Rows, num_rows: int, steps: float) -> Issuer:
    """Return the function of a frame that issues the operators ``mine`` of so many in so many steps."""
    called = Counter(names_of(t, mine))
    return Issuer(
        frame=frame.string,
        file=frame["file"],
        line=int(frame["line"]),
        function=frame["function"],
        num=len(mine) / steps,
        share=len(mine) / num_rows,
        reads=called[READ] / steps,
        median_ns=int(np.median((t.trace.events.end - t.trace.events.start)[mine])),
        in_model=False,
        names=tuple(name for name, _ in called.most_common(3)),
        repeats=repeats(t, mine),
    )


def _owner(frames: list[str]) -> _Owner | None:
    """Return the user's function that calls an operator, and whether a module calls that; innermost frame first.

    None where one of torch's own modules stands between, a backward pass or an optimizer of torch's: these are no calls
    of the function's own, and a loop in them is not the user's to change.
    """
    for at, frame in enumerate(frames):
        kind = kind_of(frame)
        if kind == "torch":
            return None
        if kind == "user":
            return _Owner(frame, any(MODULE_CALL.search(above) for above in frames[at + 1 :]))
    return None


# The function whose lines the sampler saw around operators.

MIN_ISSUED_SHARE = 0.3  # of the operators that Python calls: below it no function stands out
MIN_PER_STEP = 50
MIN_ISSUER_SAMPLES = 8


def sampled_issuer(t: Tables) -> tuple[Issuer, Rows] | None:
    """Return the function that most operators lie in by samples, and these; None for one that does a model's work.

    An operator is a function's where the sampler saw the thread in that function on both sides of it.
    """
    samples, rows = t.capture.samples, t.called_by_python
    if samples is None or len(samples.time_ns) < 2 or not len(rows) or not t.trace.epoch_ns:
        return None
    functions, seen = functions_of(samples)
    after = np.searchsorted(samples.time_ns - t.trace.epoch_ns, t.trace.events.start[rows])
    inside = (after > 0) & (after < len(seen))
    after = np.clip(after, 1, len(seen) - 1)
    owner = np.where(inside & (seen[after] == seen[after - 1]), seen[after], -1)
    if t.device_id < 0:
        main = _main_function(t, seen, len(functions))
        owner = np.where(main >= 0, main, owner)
    if not (owner >= 0).any():
        return None
    most = int(np.bincount(owner[owner >= 0]).argmax())
    mine, (file, function) = rows[owner == most], functions[most]
    called = Counter(names_of(t, mine))
    heavy = sum(num for name, num in called.items() if HEAVY.match(name))
    # Of the operators that a function calls: products and convolutions are a model's.
    if LIBRARY.search(file) or heavy > FEW * len(mine) or len(mine) < MIN_ISSUED_SHARE * len(rows):
        return None
    if len(mine) / t.steps.num < MIN_PER_STEP:
        return None
    lines = Counter(samples.places[i][1] for i in samples.place[seen == most].tolist())
    line = lines.most_common(1)[0][0]
    frame = FRAME.match(f"{file}({line}): {function}")
    return None if frame is None else (_issuer(t, frame, mine, len(rows), t.steps.num), mine)


def _main_function(t: Tables, seen: Ints, num_functions: int) -> int:
    """Return the function that nearly all samples are in, lines left out that only pass on what others called; else -1.

    Without a device operators take the thread's time where they are called, however far apart the samples are.
    """
    assert t.capture.samples is not None
    lines = (t.capture.lines.get((file, line), "") for file, line, _ in t.capture.samples.places)
    passes = [PASSES_ON.search(text) is not None for text in lines]
    at = t.capture.samples.place
    counted = np.bincount(seen[(at >= 0) & ~np.array([*passes, False])[at]], minlength=num_functions)
    most = int(counted.argmax())
    return most if counted[most] >= max(MIN_ISSUER_SAMPLES, PREVAILS * counted.sum()) else -1
