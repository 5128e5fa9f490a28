"""Memory kept for the backward pass: what computing a call again in that pass frees, and what to compute again.

Each storage takes its bytes from the operator that makes it to the one after which it is freed. A call that is computed
again frees what only its own backward pass reads, from the last operator that reads it before to the first of that
pass. Its inputs are held until that pass ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, takewhile
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.dataflow.graph import Graph
from diagnose.model.dataflow import Frame

__all__ = [
    "Bytes", "Checkpoint", "KeptByLines", "KeptLine", "KeptMemory", "StepMemory", "checkpoints", "kept_by_line",
    "step_memory",
]  # fmt: skip

Bytes = npt.NDArray[np.int64]


class KeptMemory(NamedTuple):
    """All calls of one module or line, and what computing each of them again in its backward pass frees."""

    line: Frame | None  # that calls it
    caller: Frame | None  # that calls the function of a line
    module: str  # its qualified name, "" for a line
    operators: tuple[int, ...]  # of the forward pass, ascending
    changes: tuple[tuple[int, int, int], ...]  # first operator of the step, the one after the last, bytes

    def at(self, operator: int) -> int:
        """Return by how many bytes the memory changes at an operator of the step."""
        return sum(size for first, end, size in self.changes if first <= operator < end)

    def over(self, num_operators: int) -> Bytes:
        """Return the same at each operator of the step."""
        edges = np.zeros(num_operators + 1, np.int64)
        for first, end, size in self.changes:
            edges[first] += size
            edges[end] -= size
        return edges.cumsum()[:-1]


class StepMemory(NamedTuple):
    """The memory of the last step on one device, and which calls keep it."""

    device: str
    held: Bytes  # at each operator of the step
    kept: tuple[KeptMemory, ...]


class _Storage(NamedTuple):
    num_bytes: int
    made_by: int  # operator, -1 for what the step began with
    end: int  # the operator after the one that it is freed after
    reads: tuple[int, ...]  # operators of the step


class KeptLine(NamedTuple):
    """One line of the forward pass that makes what the backward pass reads."""

    line: Frame | None
    num_bytes: int
    operators: tuple[int, ...]  # of the line, in the forward pass


class KeptByLines(NamedTuple):
    """What the forward pass of the last step makes for the backward pass, by line, the most bytes first."""

    device: str
    peak_bytes: int  # that the step holds
    num_bytes: int  # of all lines
    lines: tuple[KeptLine, ...]


def step_memory(graph: Graph) -> StepMemory:
    """Return what the last step holds on the device that keeps most for the backward pass."""
    step, device = _last_step(graph), _device(graph)
    storages = _storages(graph, device, step)
    kept = tuple(one for one in _kept(graph, storages, step) if any(size < 0 for _, _, size in one.changes))
    return StepMemory(device, _held(storages, step), kept)


def kept_by_line(graph: Graph) -> KeptByLines:
    """Return the same by the lines that make what is kept, of those that the backward pass goes through.

    Each storage counts once. Lines that no gradient flows through make batches and masks.
    """
    step, device = _last_step(graph), _device(graph)
    storages = _storages(graph, device, step)
    sizes: dict[Frame | None, dict[int, int]] = defaultdict(dict)
    for value in graph.values:
        made_by = graph.operators[value.producer] if value.producer in step else None
        if value.is_kept and value.storage in storages and made_by is not None and made_by.phase == "forward":
            sizes[made_by.place][value.storage] = value.num_bytes
    operators: dict[Frame | None, list[int]] = defaultdict(list)
    for i in step:
        if graph.operators[i].phase == "forward":
            operators[graph.operators[i].place].append(i)
    lines = [
        KeptLine(line, sum(each.values()), tuple(operators[line]))
        for line, each in sizes.items()
        if any(graph.backward[i] for i in operators[line])
    ]
    total = sum(one.num_bytes for one in lines)
    peak = int(_held(storages, step).max(initial=0))
    return KeptByLines(device, peak, total, tuple(sorted(lines, key=lambda one: -one.num_bytes)))


def _device(graph: Graph) -> str:
    """Return the device that keeps most for the backward pass."""
    sizes: dict[str, int] = defaultdict(int)
    for value in graph.values:
        sizes[value.device] += value.num_bytes * value.is_kept
    return max(sizes, key=lambda name: sizes[name], default="")


def _held(storages: dict[int, _Storage], step: range) -> Bytes:
    """Return the bytes that are held at each operator of the step."""
    edges = np.zeros(len(step) + 1, np.int64)
    for one in storages.values():
        edges[max(one.made_by, step.start) - step.start] += one.num_bytes
        edges[one.end - step.start] -= one.num_bytes
    return edges.cumsum()[:-1]


def _last_step(graph: Graph) -> range:
    rows = [*graph.of_step(graph.last_step)]
    return range(min(rows, default=0), max(rows, default=-1) + 1)


def _storages(graph: Graph, device: str, step: range) -> dict[int, _Storage]:
    """Return the storages that the step holds at any time."""
    reads: dict[int, dict[int, None]] = defaultdict(dict)
    for i in step:
        for use in graph.operators[i].reads:
            reads[graph.values[use.value].storage][i] = None
    made_by: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, value in enumerate(graph.values):
        if value.device == device:
            made_by.setdefault(value.storage, value.producer if value.version == 0 else -1)
            last[value.storage] = number
    found = {}
    for storage, number in last.items():
        value = graph.values[number]
        end = min(value.dies + 1, step.stop) if value.dies >= 0 else step.stop
        if end > step.start:
            found[storage] = _Storage(value.num_bytes, made_by[storage], end, tuple(reads[storage]))
    return found


def _kept(graph: Graph, storages: dict[int, _Storage], step: range) -> Iterator[KeptMemory]:
    backward: dict[int, list[int]] = defaultdict(list)
    for i in step:
        backward[graph.operators[i].forward].append(i)
    made: dict[int, list[int]] = defaultdict(list)
    for storage, one in storages.items():
        made[one.made_by].append(storage)
    places: dict[tuple[int, ...], tuple[str, tuple[Frame, ...]]] = {}
    for place, rows in _places(graph, step).items():
        places.setdefault(tuple(rows), place)
    for operators, (module, stack) in places.items():
        changes = tuple(
            (max(first, step.start) - step.start, end - step.start, size)
            for call in _calls(graph, operators)
            for first, end, size in _changes(graph, call, backward, storages, made)
            if end > first
        )
        frames = stack[:2]
        if not frames:  # of a module: the innermost frame that all operators have in common
            stacks = (reversed(graph.operators[i].stack) for i in operators)
            levels = takewhile(lambda level: len(set(level)) == 1, zip(*stacks, strict=False))
            frames = tuple(level[0] for level in levels)[-1:]
        line, caller = (*frames, None, None)[:2]
        yield KeptMemory(line, caller, module, operators, changes)


def _places(graph: Graph, step: range) -> dict[tuple[str, tuple[Frame, ...]], list[int]]:
    """Return the forward pass by what can be computed again: a module with all in it, a line with all that it calls."""
    found: dict[tuple[str, tuple[Frame, ...]], list[int]] = defaultdict(list)
    for i in step:
        one = graph.operators[i]
        if one.phase == "forward":
            names = one.module.split(".") if one.module else []
            for name in accumulate(names, "{}.{}".format):
                found[name, ()].append(i)
            for num in range(len(one.stack)):
                found["", one.stack[num:]].append(i)
    return found


def _calls(graph: Graph, operators: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the operators of each call: all calls run the same ones."""
    names = [(one.name, one.module, one.stack) for one in (graph.operators[i] for i in operators)]
    num = len(names)
    length = next(n for n in range(1, num + 1) if num % n == 0 and names[n:] == names[:-n])
    yield from (operators[first : first + length] for first in range(0, num, length))


def _changes(
    graph: Graph,
    call: Sequence[int],
    backward: dict[int, list[int]],
    storages: dict[int, _Storage],
    made: dict[int, list[int]],
) -> Iterator[tuple[int, int, int]]:
    """Yield what a call no longer holds, and what it holds for longer, with the operators from and to."""
    mine = set(call)
    own = [i for forward in call for i in backward.get(forward, ())]
    if not own:
        return
    first, end = min(own), max(own) + 1
    inside = [storage for i in call for storage in made.get(i, ())]
    for storage in inside:
        one = storages[storage]
        later = [graph.operators[i].forward for i in one.reads if i >= first]
        if later and mine.issuperset(later):
            yield max((i for i in one.reads if i < first), default=one.made_by) + 1, first, -one.num_bytes
    taken = {graph.values[use.value].storage for i in call for use in graph.operators[i].reads}
    for storage in (taken & storages.keys()).difference(inside):
        yield storages[storage].end, end, storages[storage].num_bytes


class Checkpoint(NamedTuple):
    """What to compute again, one after the other."""

    number: int  # of the calls given
    freed_bytes: int  # by which the step's peak falls
    peak_bytes: int  # then


def checkpoints(held: Bytes, kept: Sequence[KeptMemory], times: Sequence[float], most: int) -> list[Checkpoint]:
    """Return what to compute again until at most ``most`` bytes are held: next what lowers the peak most for its time.

    The list is as long as it can be if that many bytes cannot be reached. ``times`` are those of the calls; those of
    which none is known are left out. A call that includes chosen ones can replace them.
    """
    chosen: list[int] = []
    members = [frozenset(one.operators) for one in kept]
    while held.max(initial=0) > most and (choice := _next(held, kept, times, members, chosen)) is not None:
        held = held + _change(held, kept, choice) - _change(held, kept, chosen)
        chosen = choice
    for one in tuple(chosen):
        without = held - kept[one].over(len(held))
        if without.max(initial=0) <= most:
            held = without
            chosen.remove(one)
    held, found = held - _change(held, kept, chosen), []
    for one in chosen:
        before, held = int(held.max()), held + kept[one].over(len(held))
        found.append(Checkpoint(one, before - int(held.max()), int(held.max())))
    return found


def _next(
    held: Bytes,
    kept: Sequence[KeptMemory],
    times: Sequence[float],
    members: Sequence[frozenset[int]],
    chosen: list[int],
) -> list[int] | None:
    """Return the chosen calls with one more, None if none lowers the memory where it is highest."""
    moment, peak = int(held.argmax()), int(held.max())
    offers = []
    for i, mine in enumerate(members):
        met = [each for each in chosen if not mine.isdisjoint(members[each])]
        time = times[i] - sum(times[each] for each in met)
        if times[i] > 0 and all(members[each] < mine for each in met):
            less = sum(kept[each].at(moment) for each in met) - kept[i].at(moment)
            if less > 0:
                offers.append((less / max(time, 1.0), less, max(time, 1.0), i, met))
    best, found = (0.0, 0.0), None
    for bound, _, time, i, met in sorted(offers, key=lambda offer: offer[:2], reverse=True):
        if bound < best[0]:
            break
        then = held + kept[i].over(len(held)) - _change(held, kept, met)
        rating = ((peak - int(then.max())) / time, bound)
        if rating > best:
            best, found = rating, [each for each in chosen if each not in met] + [i]
    return found


def _change(held: Bytes, kept: Sequence[KeptMemory], chosen: Sequence[int]) -> Bytes:
    return sum((kept[each].over(len(held)) for each in chosen), held * 0)
