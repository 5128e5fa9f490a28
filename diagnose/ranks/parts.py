"""Work that every rank does for all ranks: each computes the whole, and reads the part of its own number only.

The recorded data flow shows of each value which part of it anything reads. Where that is one of as many parts as there
are ranks, and another one on each rank, all but one part of the work is thrown away on each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from diagnose.model.dataflow import Dataflow, Frame, Operator, Use
from diagnose.model.locations import Where
from diagnose.model.shapes import num_elements
from diagnose.ranks.profile import KeptPart, RankProfile
from diagnose.tables import Tables


class WholeWork(NamedTuple):
    """What all ranks compute alike; times are means over ranks."""

    where: tuple[Where, ...]  # the call that computes the whole, and where a part is taken
    whole_ns: float  # a step
    saved_ns: float  # of it, what a rank does for the others
    functions: frozenset[tuple[str, str]]  # file and name of what runs for the whole alone


def kept_parts(t: Tables) -> tuple[KeptPart, ...]:
    """Return the values of which a rank reads one of as many parts as there are ranks, with what making them takes."""
    flow, world = t.flow, t.trace.world_size
    if flow is None or t.capture.dataflow is None or world < 2:
        return ()
    found, recorded = list[KeptPart](), t.capture.dataflow
    for value, (part, at) in _parts(recorded, world).items():
        makers = _makers(recorded, value)
        if any(recorded.operators[i].is_collective for i in makers):
            continue  # others computed their part of it
        ns = _time_of(t, flow.rows, makers)
        if ns > 0:
            made = recorded.operators[recorded.values[value].producer]
            whole = next((frame for frame in made.stack if frame[::2] == at[::2]), made.place) or at
            text = t.capture.lines.get
            stacks = [*(recorded.operators[i].stack for i in makers), *(t.capture.run.paths if t.capture.run else ())]
            inner = dict.fromkeys((file, name) for each in stacks for file, _, name in _within(each, whole))
            code, cut = text(whole[:2], ""), text(at[:2], "")
            found.append(KeptPart(*whole, code, at.line, cut, part.offset, ns, tuple(inner)[:32]))
    return tuple(sorted(found, key=lambda each: -each.made_ns)[:8])  # of a rank, those that take longest


def _parts(flow: Dataflow, world: int) -> dict[int, tuple[Use, Frame]]:
    """Return the values of the last step of which one part alone is read, with that part and where it is taken."""
    step = max((one.step for one in flow.operators), default=0)
    reads, taken = defaultdict[int, list[Use]](list), dict[int, Operator]()
    for one in flow.operators:
        for use in one.reads if one.step == step else ():
            if not one.is_view:
                reads[use.value].append(use)
            elif num_elements(use.shape) == num_elements(flow.values[use.value].shape):
                taken.setdefault(use.value, one)
    found = {}
    for value, uses in reads.items():
        known, taker = flow.values[value], taken.get(value)
        whole, part = num_elements(known.shape), num_elements(uses[0].shape)
        is_one = len({(use.offset, num_elements(use.shape)) for use in uses}) == 1 and part < whole
        is_made = known.producer >= 0 and flow.operators[known.producer].step == step
        if is_one and is_made and taker is not None and taker.place and abs(part * world - whole) < part:
            found[value] = uses[0], taker.place
    return found


def _within(stack: Sequence[tuple[str, int, str]], whole: Frame) -> Sequence[tuple[str, int, str]]:
    """Return the frames of a stack, recorded or sampled, that the call of the whole leads to."""
    return stack[: stack.index(whole)] if whole in stack else ()


def _makers(flow: Dataflow, value: int) -> list[int]:
    """Return the operators of the step that a value comes from."""
    step = flow.operators[flow.values[value].producer].step
    found, left = set[int](), [flow.values[value].producer]
    while left:
        one = left.pop()
        if one >= 0 and one not in found and flow.operators[one].step == step:
            found.add(one)
            left += [flow.values[use.value].producer for use in flow.operators[one].reads]
    return sorted(found)


def _time_of(t: Tables, rows: Sequence[np.ndarray[tuple[int], np.dtype[np.intp]]], makers: Sequence[int]) -> float:
    """Return how long a step works on what some operators make, with the Python around them, ns.

    That begins where the operator before them ends; other operators between them do not count.
    """
    events, mine = t.trace.events, np.zeros(len(t.trace.events), bool)
    for i in makers:
        mine[rows[i]] = True
    every = np.sort(np.concatenate([np.empty(0, np.intp), *rows]))
    every = every[events.thread[every] == t.main]
    step = np.searchsorted(t.steps.start, events.start[every], side="right") - 1
    spent = 0
    for number in range(t.steps.num):
        here = every[step == number]
        own = np.flatnonzero(mine[here])
        if not len(own):
            continue
        before = int(events.end[here[own[0] - 1]]) if own[0] else int(t.steps.start[number])
        between = here[own[0] : own[-1] + 1]
        others = between[~mine[between]]
        spent += int(events.end[here[own[-1]]]) - before - int((events.end[others] - events.start[others]).sum())
    return spent / t.steps.num


def whole_work(ranks: Sequence[RankProfile]) -> WholeWork | None:
    """Return the work of which each rank keeps another part, the longest; None where there is none."""
    by_place = [{(each.file, each.cut_line): each for each in reversed(p.kept)} for p in ranks]
    found = []
    for place in set(by_place[0]).intersection(*by_place[1:]) if len(ranks) > 1 else ():
        each = [parts[place] for parts in by_place]
        if len({one.offset for one in each}) == len(ranks):
            ns, one = float(np.mean([part.made_ns for part in each])), each[0]
            whole = Where(one.file, one.line, one.function, code=one.code or None)
            cut = Where(one.file, one.cut_line, one.function, code=one.cut_code or None)
            functions = frozenset(function for part in each for function in part.functions)
            found.append(WholeWork((whole, cut), ns, ns * (1 - 1 / len(ranks)), functions))
    return max(found, key=lambda work: work.saved_ns, default=None)
