"""Growth: what becomes longer from step to step or piece by piece, values that pile up, graphs of earlier steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

from diagnose.dataflow.graph import Graph, Work, base_name, is_copy, reached
from diagnose.dataflow.repeats import repeats
from diagnose.model.dataflow import Frame, Operator, Role, line_words
from diagnose.model.shapes import num_elements
from diagnose.text.numbers import enumeration, plural, size_words

__all__ = [
    "CopiedAgain", "GrowingWork", "KeptGraph", "PiledUp", "copied_again", "growing_work", "held_words", "kept_graph",
    "piled_up",
]  # fmt: skip

MIN_COPIED = 0.8  # of what a concatenation writes is one of the tensors that it reads
_LASTING: tuple[Role, ...] = ("parameter", "buffer", "optimizer state", "gradient")

_Call: TypeAlias = tuple[tuple[object, ...], int]  # name, stack and phase of an operator, and its number among those


class GrowingWork(NamedTuple):
    """Operators of one line that read more in each step, part of it from earlier steps, or that it calls more often."""

    work: Work
    value_line: Frame | None  # that made what grows
    first_elements: int  # that they read in the step before
    last_elements: int
    first_calls: int  # of these operators in the step before
    last_calls: int


class CopiedAgain(NamedTuple):
    """Concatenations of one line that copy what is stored to put little to it."""

    work: Work
    avoidable: float  # share of the work's time
    whole: tuple[int, ...]  # shape of the largest tensor that is stored
    piece: tuple[int, ...]  # of the largest that is put to it


class PiledUp(NamedTuple):
    """Values that each step makes at one line and that outlive it."""

    line: Frame | None
    values: tuple[int, ...]  # of the first step that are there when the last one ends
    num_bytes: int

    @property
    def num_values(self) -> int:
        """Return how many values one step leaves."""
        return len(self.values)


class KeptGraph(NamedTuple):
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
    for i, j in ((i, before[key]) for key, i in now.items() if key in before):
        one, other = graph.operators[i], graph.operators[j]
        first, last = _elements(other), _elements(one)
        if last > first:
            lines = [graph.made_at(value) or one.place for value in _grown_inputs(graph, one, other)]
            producers = (graph.values[value].producer for value in graph.needs[i])
            for line in [*lines, *(grown[made] for made in producers if made in grown)][:1]:
                grown[i] = line
                groups[one.place, line].append((i, first, last))
    records = [
        GrowingWork(graph.work(each), line, sum(first), sum(last), len(each), len(each))
        for (_, line), rows in groups.items()
        for each, first, last in (zip(*rows, strict=True),)
    ]
    records += _called_more(graph, before, now)
    return tuple(sorted(records, key=lambda one: -one.work.share))


def _called_more(graph: Graph, before: dict[_Call, int], now: dict[_Call, int]) -> list[GrowingWork]:
    """Return what lines compute again in the last step that they call more often than in the step before."""
    first, last = (Counter(key for key, _ in each) for each in (before, now))
    more = [key for key, num in last.items() if num > first[key] > 0]
    repeated = repeats(graph) if more else {}
    lines: dict[Frame | None, list[tuple[list[int], int, int]]] = defaultdict(list)
    for key in more:
        rows = [i for (name, _), i in now.items() if name == key and i in repeated]
        if len(rows) >= last[key] - first[key]:
            lines[graph.operators[now[key, 0]].place].append((rows, first[key], last[key]))
    return [
        GrowingWork(graph.work(chain(*again)), line, 0, 0, sum(first), sum(last))
        for line, each in lines.items()
        for again, first, last in (zip(*each, strict=True),)
    ]


def copied_again(graph: Graph) -> tuple[CopiedAgain, ...]:
    """Return the last step's concatenations that copy what earlier steps or the line itself left.

    One that gradients pass through is left out: they do not pass through a buffer that is written in place.
    """
    lines: dict[Frame | None, list[CopiedAgain]] = defaultdict(list)
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        if base_name(one) == "cat" and len(one.reads) > 1 and not graph.backward[i]:
            *_, piece, whole = sorted(one.reads, key=lambda use: num_elements(use.shape))
            avoidable = num_elements(whole.shape) / max(_elements(one), 1)
            made_by = graph.producer(whole.value)
            is_grown = made_by is not None and (made_by.name, made_by.stack) == (one.name, one.stack)
            if avoidable >= MIN_COPIED and (is_grown or _is_of_earlier_steps(graph, whole.value)):
                lines[one.place].append(CopiedAgain(graph.work([i]), avoidable, whole.shape, piece.shape))
    records = []
    for each in lines.values():
        work = graph.work(i for one in each for i in one.work.operators)
        copied = sum(graph.time(one.work.operators) * one.avoidable for one in each)
        records.append(each[-1]._replace(work=work, avoidable=copied / max(graph.time(work.operators), 1)))
    return tuple(sorted(records, key=lambda one: -one.work.share))


def _of_step(graph: Graph, step: int) -> dict[_Call, int]:
    """Return what a step computes, by call."""
    found: dict[_Call, int] = {}
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


def _grown_inputs(graph: Graph, one: Operator, other: Operator) -> Sequence[int]:
    """Return the values of earlier steps that an operator reads more of than in the step before.

    What is longer was made of what the step before read, or what it read is read again with more: other pieces of what
    is stored, such as documents of several lengths, grow by chance.
    """
    older = [use.value for use in one.reads if _is_of_earlier_steps(graph, use.value)]
    if len(one.reads) > len(other.reads):
        again = {use.value for use in one.reads} & {use.value for use in other.reads}
        return older * (2 * len(again) >= len(other.reads))
    pairs = [(new.value, old.value) for new, old in zip(one.reads, other.reads, strict=False)]
    sizes = (tuple(num_elements(graph.values[value].shape) for value in pair) for pair in pairs)
    longer = (pair for pair, (now, before) in zip(pairs, sizes, strict=True) if now > before)
    return [new for new, old in longer if new in older and old in reached([new], graph.made_of)]


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


def held_words(lines: Sequence[PiledUp]) -> str:
    """Return what each recorded step leaves, and the lines that make most of it; there is at least one line."""
    num = plural(sum(one.num_values for one in lines), "value")
    size = size_words(sum(one.num_bytes for one in lines))
    named = enumeration([f"{line_words(one.line)} ({size_words(one.num_bytes)})" for one in lines[:3]])
    return f"Each step leaves {num} ({size}) still held after the next one, made at {named}."


def kept_graph(graph: Graph) -> tuple[KeptGraph, ...]:
    """Return the part of the last step's backward pass that belongs to earlier steps."""
    now = [(i, graph.operators[i]) for i in graph.of_step(graph.last_step)]
    forward = [one.sequence_nr for _, one in now if one.phase == "forward"]
    first = min((number for number in forward if number >= 0), default=-1)
    backward = [(i, one) for i, one in now if one.phase == "backward"]
    of_before = {i for i, one in enumerate(graph.operators) if one.step < graph.last_step}
    old = [i for i, one in backward if one.forward in of_before or (one.forward < 0 <= one.sequence_nr < first)]
    if not old:
        return ()
    carrying = (one.place for i, one in now if any(_is_of_earlier_steps(graph, value) for value in graph.needs[i]))
    return (KeptGraph(graph.work(old), len(backward), next(carrying, None)),)
