"""Calls of modules that compute what an earlier call has computed, and what follows from them in the backward pass.

The capture compares inputs and weights (`capture.record.repeated_calls`). Functions of the backward pass carry a number
from a counter, which the operators of the forward carry as well: those between the numbers at a call's begin and end
are its own, and where gradients of gradients are taken, so are those that its functions make in turn.

A result can be used again wherever it has no gradient to give. One that has is gone with its backward pass, which frees
what it needs, and with an update of the optimizer's, which changes in place what it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from diagnose.model.arrays import Ints, Rows
from diagnose.model.events import Kind
from diagnose.model.frozen import NamedTuple
from diagnose.model.intervals import EMPTY, Intervals, contains, distinct, subtract, total, union
from diagnose.model.records import RepeatRecord
from diagnose.tables import Tables, shared_table
from diagnose.tables.host import host_rows
from diagnose.tables.matching_operators import matched_steps
from diagnose.tables.names import BACKWARD, matching
from diagnose.tables.optimizer_spans import updates
from diagnose.tables.program import program_of
from diagnose.text.patterns import lazy_pattern

__all__ = ["RepeatedCall", "call_of", "extent", "numbered", "repeated_calls"]

MAX_TURNS = 4  # gradients of gradients of gradients
_FUNCTION = lazy_pattern(r"Backward\d*$")

Place: TypeAlias = tuple[str, int, str]  # file, line, function
_Range: TypeAlias = tuple[int, int]  # of numbers, the second exclusive


class RepeatedCall(NamedTuple):
    """The calls of one module that could be left out; figures are for a step."""

    module: str  # its class
    begins: Ints  # of the calls in the attribution window
    host: Intervals  # of the calls that could be left out, and of their functions in the backward pass
    num: float  # calls
    spare: float  # of them could be left out
    is_constant: bool  # the same in several steps
    with_gradients: bool  # a backward pass goes through calls that could be left out
    places: tuple[Place, ...] = ()  # the script's lines that compute it again, where the capture noted them


class _Call(NamedTuple):
    """A call of the timing window."""

    number: int  # in the record
    begin: int
    end: int
    host: Intervals  # with its functions in backward passes
    backward: int | None  # when the first of these begins, None where there is none
    is_freed: bool  # that backward pass leaves no further one: it makes no gradients of gradients


@shared_table
def repeated_calls(t: Tables) -> tuple[RepeatedCall, ...]:
    """Return the modules that compute again what they have computed, the one that takes longest first.

    A call within another that is repeated counts with that one.
    """
    info, named = t.capture.info, t.named
    if info is None or t.capture.attribution is None or not info.repeats or not named.trace.epoch_ns:
        return ()
    found, taken, calls = [], EMPTY, EMPTY
    for record in sorted(info.repeats, key=_longest, reverse=True):
        begins = np.array(record.began_ns, np.int64)
        if len(begins) != len(record.ended_ns) or contains(calls, begins).any():
            continue  # inside another's calls
        one = _of_record(t, record)
        if one is None:
            continue
        found.append(one._replace(host=subtract(one.host, taken)))
        taken = union(taken, one.host)
        calls = union(calls, (begins, np.array(record.ended_ns, np.int64)))
    found.sort(key=lambda one: -total(one.host))
    return tuple(found)


def _longest(record: RepeatRecord) -> int:
    return max((end - begin for begin, end in zip(record.began_ns, record.ended_ns, strict=False)), default=0)


def _of_record(t: Tables, record: RepeatRecord) -> RepeatedCall | None:
    named = t.named
    begins = np.array(record.began_ns, np.int64) - named.trace.epoch_ns
    ends = np.array(record.ended_ns, np.int64) - named.trace.epoch_ns
    is_constant = len(distinct(np.searchsorted(named.steps.start, begins, side="right"))) > 1
    parts, num, left_out = [EMPTY], 0, list[_Call]()
    again = set[int]()
    for step in matched_steps(t):
        middle = (named.trace.events.start[step.named] + named.trace.events.end[step.named]) // 2
        of = call_of(begins, ends, middle)
        calls = [_call(t, i, step.rows[of == i]) for i in distinct(of[of >= 0]).tolist()]
        groups = _same_results(t, calls)
        spare = [one for group in groups for one in _spare(group, is_constant)]
        if not spare:
            continue
        again.update(one.number for group in groups for one in (group if is_constant else group[1:]))
        num, left_out = num + len(calls), left_out + spare
        parts.append(union(*[one.host for one in spare]))
    host = union(*parts)
    if not len(host.start):
        return None
    return RepeatedCall(
        module=record.module,
        begins=begins,
        host=host,
        num=num / t.steps.num,
        spare=len(left_out) / t.steps.num,
        is_constant=is_constant,
        with_gradients=any(one.backward is not None for one in left_out),
        places=tuple(record.places[i] for i in sorted(again) if i < len(record.places) and record.places[i][0]),
    )


def _call(t: Tables, number: int, rows: Rows) -> _Call:
    events = t.trace.events
    host, turns = _turns(t, rows)
    first = int(events.start[turns[0]].min()) if turns else None
    # Beside a device the engine makes gradients of gradients in a thread of its own, with numbers of its own.
    keeps = len(turns) > 1 or (t.device_id >= 0 and program_of(t).second_derivatives)
    return _Call(number, int(events.start[rows].min()), int(events.end[rows].max()), host, first, not keeps)


def _same_results(t: Tables, calls: Sequence[_Call]) -> list[list[_Call]]:
    """Return a step's calls, those together of which one result can serve all; in the order of their starts."""
    groups: list[list[_Call]] = []
    for call in calls:
        group = next((each for each in groups if all(_serves(t, one, call) for one in each)), None)
        if group is None:
            groups.append([call])
        else:
            group.append(call)
    return groups


def _serves(t: Tables, one: _Call, later: _Call) -> bool:
    """Return whether a call's result can stand for that of a later call with the same inputs and weights.

    Its values can for a call whose values are all that is used. For its gradients it must have some, and its backward
    pass must not have freed them.
    """
    if one.backward is None and later.backward is None:
        return True
    update = updates(t)
    if ((update.start < later.begin) & (update.end > one.end)).any():
        return False
    if later.backward is None:
        return True
    return one.backward is not None and not (one.is_freed and one.backward < later.begin)


def _spare(group: Sequence[_Call], is_constant: bool) -> list[_Call]:
    """Return the calls that could be left out: all but the longest, and all where each step has the same.

    The one that stays has gradients where any has.
    """
    if is_constant and all(one.backward is None for one in group):
        return list(group)
    kept = max(range(len(group)), key=lambda i: (group[i].backward is not None, total(group[i].host)))
    return [one for i, one in enumerate(group) if i != kept]


def call_of(begins: Ints, ends: Ints, times: Ints) -> Ints:
    """Return for each time the number of the call that it lies in, -1 outside of all."""
    i = np.searchsorted(begins, times, side="right") - 1
    found: Ints = np.where((i >= 0) & (times < ends[np.maximum(i, 0)]), i, -1)
    return found


def extent(t: Tables, rows: Rows) -> tuple[Intervals, bool]:
    """Return the time of a call and of what follows from it in backward passes, and whether anything does."""
    host, turns = _turns(t, rows)
    return host, bool(turns)


def _turns(t: Tables, rows: Rows) -> tuple[Intervals, list[Rows]]:
    """Return the time of a call and of what follows, and the functions: its own, those of its gradients, and so on."""
    events = t.trace.events
    begin, end = int(events.start[rows].min()), int(events.end[rows].max())
    parts = [(np.array([begin], np.int64), np.array([end], np.int64))]
    turns: list[Rows] = []
    pending = _numbers(t, begin, end)
    for _ in range(MAX_TURNS):
        functions = _functions(t, pending)
        if not len(functions):
            break
        start, ended = events.start[functions], events.end[functions]
        parts.append((start, ended))
        turns.append(functions)
        pending = [each for a, b in zip(start.tolist(), ended.tolist(), strict=True) for each in _numbers(t, a, b)]
    return union(*parts), turns


def _numbers(t: Tables, begin: int, end: int) -> list[_Range]:
    """Return the numbers of the functions that operators within a time of the training thread leave behind."""
    rows, number = numbered(t)
    start = t.trace.events.start[rows]
    first, last = np.searchsorted(start, (begin, end))
    if first == last or last == len(start) or number[last] <= number[first]:
        return []
    return [(int(number[first]), int(number[last]))]


@shared_table
def numbered(t: Tables) -> tuple[Rows, Ints]:
    """Return rows and numbers of the training thread's operators that are called while gradients are on."""
    events = t.trace.events
    rows = host_rows(t.trace, t.main, Kind.OP)
    is_function = np.array([_FUNCTION.search(name) is not None for name in t.trace.names], bool)
    rows = rows[(events.sequence[rows] >= 0) & ~is_function[events.name[rows]]]
    return rows, events.sequence[rows]


def _functions(t: Tables, numbers: list[_Range]) -> Rows:
    """Return the functions of the backward pass that have one of these numbers."""
    rows, number = _all_functions(t)
    found = [rows[(number >= low) & (number < high)] for low, high in numbers]
    return np.concatenate(found) if found else rows[:0]


@shared_table
def _all_functions(t: Tables) -> tuple[Rows, Ints]:
    """Return the engine's functions with their numbers, those of other threads where no gradient has gradients.

    Each thread has a counter of its own, and a function that is made in another thread has a number of that.
    """
    events = t.trace.events
    rows = matching(t.trace, (Kind.OP, Kind.ANNOTATION), _FUNCTION)
    rows = rows[events.sequence[rows] >= 0]
    is_outer = np.array([BACKWARD.match(name) is not None for name in t.trace.names], bool)
    rows = rows[~is_outer[events.name[rows]]]
    if program_of(t).second_derivatives:
        rows = rows[events.thread[rows] == t.main]
    return rows, events.sequence[rows]
