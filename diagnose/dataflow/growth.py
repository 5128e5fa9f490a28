"""Growth: what becomes longer from step to step or piece by piece, values that pile up, graphs of earlier steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from diagnose.dataflow.graph import Graph, Work
from diagnose.dataflow.names import base_name, is_copy
from diagnose.dataflow.numbering import value_numbers
from diagnose.dataflow.repeats import repeats
from diagnose.model.dataflow import Frame, Operator, Role, Use
from diagnose.model.shapes import num_elements

__all__ = [
    "CopiedAgain", "GrowingWork", "KeptGraph", "PiledUp", "copied_again", "growing_work", "kept_graph", "piled_up",
]  # fmt: skip

MIN_COPIED = 0.8  # of what a concatenation writes is one of the tensors that it reads
_LASTING: tuple[Role, ...] = ("parameter", "buffer", "optimizer state", "gradient")


@dataclass(frozen=True, slots=True)
class GrowingWork:
    """Operators of one line that read more in each step, part of it from earlier steps, or that it calls more often."""

    work: Work
    value_line: Frame | None  # that made what grows
    first_elements: int  # that they read in the step before
    last_elements: int
    first_calls: int  # of these operators in the step before
    last_calls: int


@dataclass(frozen=True, slots=True)
class CopiedAgain:
    """Concatenations of one line that copy what is stored to put little to it."""

    work: Work
    avoidable: float  # share of the work's time
    whole: tuple[int, ...]  # shape of the largest tensor that is stored
    piece: tuple[int, ...]  # of the largest that is put to it


@dataclass(frozen=True, slots=True)
class PiledUp:
    """Values that each step makes at one line and that outlive it."""

    line: Frame | None
    values: tuple[int, ...]  # of the first step that are there when the last one ends
    num_bytes: int

    @property
    def num_values(self) -> int:
        """Return how many values one step leaves."""
        return len(self.values)


@dataclass(frozen=True, slots=True)
class KeptGraph:
    """Operators of the backward pass whose forward ran in an earlier step."""

    work: Work
    num_operators: int  # of the step's backward pass
    value_line: Frame | None  # where the step reads what carries the graph


def growing_work(graph: Graph) -> tuple[GrowingWork, ...]:
    """Return operators of the last step that read more than in the step before, of what earlier steps left.

    A line that runs more often counts as well, by those of its calls that compute again what others of them have
    computed: what each step adds, such as a hook, then does the same for all steps before.
    """
    before, now = (_of_step(graph, step) for step in (graph.last_step - 1, graph.last_step))
    groups: dict[tuple[Frame | None, Frame | None], list[tuple[int, int, int]]] = defaultdict(list)
    grown: dict[int, Frame | None] = {}  # with the line that makes what grows, or joins what piles up
    for key, i in now.items():
        if key not in before:
            continue
        one, other = graph.operators[i], graph.operators[before[key]]
        first, last = _elements(other), _elements(one)
        if last <= first:
            continue
        grew = _grown_input(graph, one, other)
        sources = [made for value in graph.needs[i] if (made := graph.values[value].producer) in grown]
        if grew >= 0 or sources:
            grown[i] = (graph.made_at(grew) or one.place) if grew >= 0 else grown[sources[0]]
            groups[one.place, grown[i]].append((i, first, last))
    records = (
        GrowingWork(
            graph.work(i for i, _, _ in rows),
            line,
            sum(row[1] for row in rows),
            sum(row[2] for row in rows),
            len(rows),
            len(rows),
        )
        for (_, line), rows in groups.items()
    )
    return tuple(sorted((*records, *_called_more(graph, before, now)), key=lambda one: -one.work.share))


def _called_more(
    graph: Graph, before: dict[tuple[object, ...], int], now: dict[tuple[object, ...], int]
) -> list[GrowingWork]:
    """Return what lines compute again in the last step that they call more often than in the step before."""
    first, last = (Counter(key for key, _ in each) for each in (before, now))
    more = [key for key, num in last.items() if num > first[key] > 0]
    if not more:
        return []
    again = repeats(graph, value_numbers(graph))
    lines: dict[Frame | None, list[tuple[list[int], int, int]]] = defaultdict(list)
    for key in more:
        rows = [i for (name, _), i in now.items() if name == key and i in again]
        if len(rows) >= last[key] - first[key]:
            lines[graph.operators[now[key, 0]].place].append((rows, first[key], last[key]))
    return [
        GrowingWork(
            graph.work(i for rows, _, _ in each for i in rows),
            line,
            0,
            0,
            sum(num for _, num, _ in each),
            sum(num for _, _, num in each),
        )
        for line, each in lines.items()
    ]


def copied_again(graph: Graph) -> tuple[CopiedAgain, ...]:
    """Return the last step's concatenations that copy what earlier steps or the line itself left.

    One that gradients pass through is left out: they do not pass through a buffer that is written in place.
    """
    lines: dict[Frame | None, list[tuple[int, Use, Use]]] = defaultdict(list)
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        if base_name(one) == "cat" and len(one.reads) > 1 and not graph.backward[i]:
            *_, piece, whole = sorted(one.reads, key=lambda use: num_elements(use.shape))
            if num_elements(whole.shape) >= MIN_COPIED * _elements(one) > 0 and _is_stored(graph, whole.value, one):
                lines[one.place].append((i, whole, piece))
    records = []
    for rows in lines.values():
        work = graph.work(i for i, _, _ in rows)
        each = ((graph.operators[i], whole) for i, whole, _ in rows)
        copied = sum(one.host_ns * num_elements(whole.shape) / _elements(one) for one, whole in each)
        _, whole, piece = rows[-1]
        records.append(CopiedAgain(work, copied / max(graph.time(work.operators), 1), whole.shape, piece.shape))
    return tuple(sorted(records, key=lambda one: -one.work.share))


def _is_stored(graph: Graph, value: int, one: Operator) -> bool:
    made_by = graph.producer(value)
    is_grown = made_by is not None and (made_by.name, made_by.stack) == (one.name, one.stack)
    return is_grown or _is_of_earlier_steps(graph, value)


def _of_step(graph: Graph, step: int) -> dict[tuple[object, ...], int]:
    """Return a step's operators by name, line, and their number among those."""
    found: dict[tuple[object, ...], int] = {}
    numbers: dict[tuple[object, ...], int] = defaultdict(int)
    for i in graph.of_step(step):
        one = graph.operators[i]
        if graph.computes(i):
            key = (one.name, one.stack, one.phase)
            found[key, numbers[key]] = i
            numbers[key] += 1
    return found


def _elements(one: Operator) -> int:
    return sum(num_elements(use.shape) for use in one.reads)


def _is_of_earlier_steps(graph: Graph, value: int) -> bool:
    """Return whether a value was made before the last step, and is neither training's own state nor the next batch."""
    one, made_by = graph.values[value], graph.producer(value)
    source = graph.needs[one.producer][0] if made_by is not None and is_copy(made_by) else value
    if graph.comes_in(source):
        return False
    is_older = made_by.step < graph.last_step if made_by is not None else one.role in ("state", "constant")
    return is_older and one.role not in _LASTING


def _grown_input(graph: Graph, one: Operator, other: Operator) -> int:
    """Return the value of earlier steps that an operator reads more of than in the step before, -1 if none.

    What is longer was made of what the step before read, or what it read is read again with more: other pieces of what
    is stored, such as documents of several lengths, grow by chance.
    """
    older = [use.value for use in one.reads if _is_of_earlier_steps(graph, use.value)]
    if len(one.reads) > len(other.reads):
        again = {use.value for use in one.reads} & {use.value for use in other.reads}
        return older[0] if older and 2 * len(again) >= len(other.reads) else -1
    pairs = zip(one.reads, other.reads, strict=False)
    longer = ((new.value, old.value) for new, old in pairs if _size(graph, new) > _size(graph, old))
    return next((new for new, old in longer if new in older and _is_made_of(graph, new, old)), -1)


def _is_made_of(graph: Graph, value: int, source: int) -> bool:
    """Return whether an operator of the recorded steps made a value of another one, at one or more removes."""
    seen, left = set[int](), [value]
    while left:
        made_by = graph.values[left.pop()].producer
        needed = set(graph.needs[made_by]) - seen if made_by >= 0 else set[int]()
        if source in needed:
            return True
        seen |= needed
        left.extend(needed)
    return False


def _size(graph: Graph, use: Use) -> int:
    return num_elements(graph.values[use.value].shape)


def piled_up(graph: Graph) -> tuple[PiledUp, ...]:
    """Return the lines whose values of every recorded step are there at the end, the most bytes first."""
    held: dict[Frame | None, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for i in graph.flow.roots:
        made_by = graph.producer(i)
        if made_by is not None and graph.born[i] >= 0 and graph.values[i].role not in _LASTING:
            held[made_by.place][made_by.step].append(i)
    records = (
        PiledUp(line, tuple(by_step[0]), sum(graph.values[i].num_bytes for i in by_step[0]))
        for line, by_step in held.items()
        if len(by_step) == graph.flow.num_steps > 1
    )
    return tuple(sorted(records, key=lambda one: -one.num_bytes))


def kept_graph(graph: Graph) -> tuple[KeptGraph, ...]:
    """Return the part of the last step's backward pass that belongs to earlier steps."""
    step = graph.last_step
    operators = graph.operators
    forward = [operators[i].sequence_nr for i in graph.of_step(step) if operators[i].phase == "forward"]
    first = min((number for number in forward if number >= 0), default=-1)
    backward = [i for i in graph.of_step(step) if operators[i].phase == "backward"]
    old = [i for i in backward if _is_old(operators[i], operators, first)]
    if not old:
        return ()
    carries = next((i for i in graph.of_step(step) if any(_is_of_earlier_steps(graph, v) for v in graph.needs[i])), -1)
    line = operators[carries].place if carries >= 0 else None
    return (KeptGraph(graph.work(old), len(backward), line),)


def _is_old(one: Operator, operators: tuple[Operator, ...], first: int) -> bool:
    if one.forward >= 0:
        return operators[one.forward].step < one.step
    return 0 <= one.sequence_nr < first
