"""What is computed again: in one step (common subexpressions), and in each step from what stays the same.

Two values with the same number have the same content, whatever was looked at: a number stands for how a value was
computed, by the operator, its attributes and the numbers of what it read. Contents of which only a sample was compared
can then still be known to be equal.

An operator is constant if each value that it reads is known to be: it was there before the steps and nothing changed
it, or a constant operator made it. A value that came in with the step (a batch, or what Python made) counts as constant
only if its content is the same as in the step before, and says something: all zeros, or all True, may be luck.

A backward pass is linear in the gradient that it starts from. Several passes through the same functions whose results
are only added up are one pass that starts from the sum.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import Literal, NamedTuple

from diagnose.dataflow.graph import Graph, Work, base_name, components, is_copy, start_of_backward, starts_backward
from diagnose.model.dataflow import Frame, Operator, Use

__all__ = ["ComputedAgain", "ConstantWork", "computed_again", "constant_work", "repeats"]

MAX_SAMPLED_ZEROS = 0.9  # of 256 elements: the other 25 tell contents apart


class ComputedAgain(NamedTuple):
    """Operators whose results an earlier operator of the step had, and the backward pass of both where each has one."""

    # recomputed: the backward pass runs the forward again, to save memory; backward: several of these are one;
    # gradients: of the same outputs, by inputs in turn
    kind: Literal["repeated", "recomputed", "backward", "gradients"]
    work: Work
    value_line: Frame | None  # that computed it first; of two calls of one function, the lines of the calls
    use_line: Frame | None  # that computes it again
    is_certain: bool  # False if contents are equal, perhaps by chance, that were not computed alike
    with_gradients: bool  # a backward pass goes through what is computed again
    starts: tuple[Frame | None, ...] = ()  # of backward passes: the lines that start them, in order
    modules: tuple[str, ...] = ()  # the innermost ones that compute it, in the order in which they do
    inner: Frame | None = None  # of one line that computes it under several callers: the method that they all call
    callers: tuple[Frame, ...] = ()  # what calls both lines, or that method, innermost first; () if not the same
    stack: tuple[Frame, ...] = ()  # of one line that computes it again: from the operator outwards
    is_whole: bool = False  # whenever its modules run there in the step, they compute the same, and nothing is drawn
    is_parametrized: bool = False  # by parametrizations of weights
    is_kept_first: bool = True  # no backward pass goes through the first one alone: its result serves both


class ConstantWork(NamedTuple):
    """Operators that make the same in each step."""

    kind: str  # of the content that they make: "triangular", "one-hot", ""
    work: Work
    value_line: Frame | None  # that makes the last of it
    use_line: Frame | None  # the first use of that
    shape: tuple[int, ...]
    is_certain: bool  # no value that came in with the step is part of it
    callers: tuple[Frame, ...] = ()  # of that line, innermost first
    made_by_python: bool = False  # operators of the work bring in what Python has made
    is_whole: bool = False  # whatever its lines compute in the step is the same
    with_gradients: bool = False  # a backward pass goes through it


class _Same(NamedTuple):
    """What repeated operators that are one record have in common."""

    kind: Literal["repeated", "recomputed"]
    value_line: Frame | None
    use_line: Frame | None
    is_certain: bool


def computed_again(graph: Graph) -> tuple[ComputedAgain, ...]:
    """Return what the last step computes again, the longest first."""
    numbers = _value_numbers(graph)
    earlier = _repeats(graph, numbers)
    calls: dict[tuple[Frame, ...], Frame | None] = {}
    groups: dict[_Same, list[int]] = defaultdict(list)
    in_turn = _gradients_in_turn(graph, numbers, earlier)
    for i, j in earlier.items():
        one, other = graph.operators[i], graph.operators[j]
        if i in in_turn:
            continue
        if one.stack == other.stack:
            if one.stack not in calls:
                calls[one.stack] = _left_between(graph, j, i)
            lines = calls[one.stack], calls[one.stack]
        else:
            pairs = zip(other.stack, one.stack, strict=False)  # the calls of what both run
            lines = next((pair for pair in pairs if pair[0] != pair[1]), (other.place, one.place))
        writes = zip(one.writes, other.writes, strict=True)
        computed_alike = all(numbers[mine.value] == numbers[first.value] for mine, first in writes)
        again = (one.phase, other.phase) == ("backward", "forward")
        groups[_Same("recomputed" if again else "repeated", *lines, computed_alike)].append(i)
    records = []
    for same, rows in groups.items():
        more = [k for i in rows for k in _backward_of_both(graph, earlier, i)] if same.kind == "repeated" else []
        with_gradients = any(graph.backward[i] for i in rows)
        record = ComputedAgain(same.kind, graph.work([*rows, *more]), *same[1:], with_gradients)
        records.append(_with_calls(graph, record, {i: earlier[i] for i in rows}))
    records.extend(_passes_through_same(graph))
    if in_turn:
        starts = tuple(dict.fromkeys(line for lines in in_turn.values() for line in lines))
        work = graph.work([*in_turn, *(k for i in in_turn for k in _backward_of_both(graph, earlier, i))])
        records.append(ComputedAgain("gradients", work, starts[0], starts[-1], True, True, starts))
    return tuple(sorted(records, key=lambda one: -one.work.share))


def _gradients_in_turn(
    graph: Graph, numbers: Sequence[int], earlier: dict[int, int]
) -> dict[int, tuple[Frame | None, Frame | None]]:
    """Return the repeated operators of gradients that one pass would take by all inputs, each with lines of two passes.

    Two passes went through the same functions with the same gradients; or one went through what such two had made.
    """
    starts, start = dict[int, int](), -1  # of each operator the first one of its pass
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        if starts_backward(one):
            start = -1
        elif start < 0 and one.phase == "backward" and one.forward >= 0 and not one.is_view:
            start = i
        starts[i] = start
    found: dict[int, tuple[Frame | None, Frame | None]] = {}
    for i, j in sorted(earlier.items()):
        one, other = graph.operators[i], graph.operators[j]
        writes = zip(one.writes, other.writes, strict=True)
        if (one.phase, other.phase) != ("backward", "backward") or not all(
            numbers[mine.value] == numbers[first.value] for mine, first in writes
        ):
            continue
        if earlier.get(one.forward) == other.forward and one.forward in found:
            found[i] = found[one.forward]
        elif one.forward == other.forward >= 0 and earlier.get(starts[i]) == starts[j]:
            first, again = (start_of_backward(graph, starts[k]).stack for k in (j, i))
            pairs = zip(reversed(first), reversed(again), strict=False)  # the calls of what both run
            found[i] = next((pair for pair in pairs if pair[0] != pair[1]), (None, None))
    return found


def _passes_through_same(graph: Graph) -> Iterator[ComputedAgain]:
    """Yield what backward passes of the last step compute that one pass, of the sum of their losses, would do once."""
    passes = _backward_passes(graph)
    through = [{graph.operators[i].forward for i in one} for one in passes]
    again, used = list[int](), set[int]()
    for k, mine in enumerate(passes):
        others = [j for j in range(k + 1, len(passes)) if through[k] & through[j]]
        later = set[int]().union(*(through[j] for j in others))
        rows = [i for i in mine if graph.operators[i].forward in later]
        if others and (added := _only_added_up(graph, rows, mine, passes[others[-1]])):
            again += [*rows, *added]
            used |= {k, *others}
    if used:
        starts = tuple(start_of_backward(graph, passes[k][0]).place for k in sorted(used))
        yield ComputedAgain("backward", graph.work(again), starts[0], starts[-1], True, True, starts)


def _backward_passes(graph: Graph) -> list[list[int]]:
    """Return the operators of each backward pass of the last step whose forward operators are known.

    A pass calls the functions that were made last first: where their numbers go up, another pass starts.
    """
    passes, number = list[list[int]](), -1
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        if one.phase == "backward" and one.forward >= 0:
            if one.sequence_nr > number or not passes:
                passes.append([])
            passes[-1].append(i)
            number = one.sequence_nr
    return passes


def _only_added_up(graph: Graph, rows: list[int], of_pass: list[int], last: list[int]) -> set[int]:
    """Return the operators that add gradients of a pass to those of others; none if they are used in another way.

    They must still be there after the last pass, and before it no optimizer may step, and nothing may read them.
    """
    inside, added, end = set(of_pass), set[int](), last[-1]
    if any(graph.operators[i].phase == "optimizer" for i in range(of_pass[0], end)):
        return set()
    left = [(use.value, False) for i in rows for use in graph.operators[i].writes]
    while left:
        value, is_sum = left.pop()
        readers = [j for j in graph.readers[value] if j not in inside and not (is_sum and j > end)]
        # Autograd adds a gradient to that of a leaf, or makes it from a copy.
        own = (one for j in readers if (one := graph.operators[j]).phase == "backward" and one.forward < 0)
        if sum(base_name(one) == "add" or is_copy(one) for one in own) < len(readers):
            return set()
        if not readers and (is_sum or graph.values[value].role == "gradient"):
            changed_by = graph.values[graph.later[value]].producer if graph.later[value] >= 0 else end + 1
            if changed_by <= end or 0 <= graph.values[value].dies <= end:
                return set()
        added.update(readers)
        left += [(use.value, True) for j in readers for use in graph.operators[j].writes]
    return added


def constant_work(graph: Graph) -> tuple[ConstantWork, ...]:
    """Return what the last step computes as the one before did, the longest first."""
    numbers = _value_numbers(graph)
    before: dict[Hashable, list[int]] = defaultdict(list)
    for i in graph.of_step(graph.last_step - 1):
        if _can_be_kept(graph, i) or graph.brings_in(i):
            before[graph.operators[i].place, _equal_key(graph, numbers, i)].append(i)
    same: dict[int, int] = {}
    for i in (i for i in graph.of_step(graph.last_step) if _can_be_kept(graph, i) or graph.brings_in(i)):
        if match := before.get((graph.operators[i].place, _equal_key(graph, numbers, i))):
            pairs = zip(graph.operators[i].reads, graph.operators[match[0]].reads, strict=True)
            # The same in each step; contents were compared before.
            others = [use.value for use, other in pairs if use.value != other.value]
            others = [value for value in others if graph.values[value].producer not in same]
            if all(graph.comes_in(value) and graph.values[value].kind != "constant" for value in others):
                same[i] = match.pop(0) if len(match) > 1 else match[0]
    groups: dict[tuple[Frame, ...], list[list[int]]] = defaultdict(list)
    for group in components(graph, _without_changed(graph, same)):
        groups[graph.work(group).lines].append(group)
    every = Counter(graph.operators[i].place for i in graph.of_step(graph.last_step) if graph.makes_values(i))
    records = []
    for each in groups.values():
        rows, last = [i for group in each for i in group], graph.operators[each[0][-1]]
        made = last.writes[0]
        users = (graph.operators[i].place for i in graph.readers[made.value])
        is_certain = not any(graph.comes_in(value) for i in rows for value in graph.needs[i])
        made_by_python = any(map(graph.brings_in, rows))
        kind = graph.values[made.value].kind
        mine = Counter(graph.operators[i].place for i in rows if graph.makes_values(i))
        record = ConstantWork(
            kind,
            graph.work(rows),
            last.place,
            next(users, None),
            made.shape,
            is_certain and not made_by_python,
            last.stack[1:],
            made_by_python,
            is_whole=all(every[place] == num for place, num in mine.items()),
            with_gradients=any(graph.backward[i] for i in rows),
        )
        records.append(record)
    return tuple(sorted(records, key=lambda one: -one.work.share))


def repeats(graph: Graph) -> dict[int, int]:
    """Return the operators of the last step that compute what an earlier one of it has computed, with that one."""
    return _repeats(graph, _value_numbers(graph))


def _repeats(graph: Graph, numbers: Sequence[int]) -> dict[int, int]:
    first: dict[Hashable, int] = {}
    each = (i for i in graph.of_step(graph.last_step) if _can_be_kept(graph, i))
    pairs = ((i, first.setdefault(_equal_key(graph, numbers, i), i)) for i in each)
    return _without_changed(graph, {i: j for i, j in pairs if i != j})


def _backward_of_both(graph: Graph, earlier: dict[int, int], i: int) -> list[int]:
    """Return the backward operators of a repeated one, if the first one has a backward pass as well."""
    mine, others = ([k for k in graph.backward[n] if k not in earlier] for n in (i, earlier[i]))
    return mine if others else []


def _with_calls(graph: Graph, record: ComputedAgain, pairs: dict[int, int]) -> ComputedAgain:
    """Return a record with what calls its lines, told by the pair that takes longest."""
    i = max(pairs, key=lambda each: graph.operators[each].host_ns)
    one, other = graph.operators[i], graph.operators[pairs[i]]
    rows = sorted({*pairs, *pairs.values()})
    modules = tuple(dict.fromkeys(graph.operators[row].module for row in rows))
    at = next((n for n, frame in enumerate(one.stack) if frame == record.use_line), len(one.stack))
    inner = None
    if len(modules) > 1 and record.value_line == record.use_line:
        at = next((n for n in range(at, len(one.stack)) if one.stack[n].function == "forward"), len(one.stack))
        inner = next(iter(one.stack[at : at + 1]), None)
    alike = one.stack[at + 1 :] == other.stack[at + 1 :]
    calls = Counter(_call(graph.operators[row]) for row in rows)
    every = Counter(_call(graph.operators[row]) for row in graph.of_step(graph.last_step))
    stacks = {graph.operators[row].stack for row in rows}
    draws = any(graph.operators[row].draws and graph.operators[row].stack in stacks
                for row in graph.of_step(graph.last_step))  # fmt: skip
    return record._replace(
        modules=modules,
        inner=inner,
        callers=one.stack[at + 1 :] if alike else (),
        stack=one.stack if one.stack == other.stack else (),
        is_whole=not draws and all(every[call] == num for call, num in calls.items()),
        is_parametrized=all(".parametrizations." in f".{module}." for module in modules),
        is_kept_first=not graph.backward[i] or bool(graph.backward[pairs[i]]),
    )


def _call(one: Operator) -> Hashable:
    return one.name, one.phase, one.stack, re.sub(r"\d+", "", one.module)  # layers of a list are alike


def _left_between(graph: Graph, first: int, again: int) -> Frame | None:
    """Return the outermost frame of a stack that was left between two operators which both have that stack."""
    stack = graph.operators[again].stack
    stays = len(stack)
    for other in {graph.operators[i].stack for i in range(first, again)}:
        pairs = zip(reversed(stack), reversed(other), strict=False)
        stays = min(stays, next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(stack), len(other))))
    return next(iter(stack[max(len(stack) - stays - 1, 0) :]), None)


def _can_be_kept(graph: Graph, i: int) -> bool:
    """Return whether an operator's result could be kept: it is not drawn, and no change of what was there before."""
    one = graph.operators[i]
    return graph.makes_values(i) and not one.draws and all(graph.born[use.value] == one.step for use in one.writes)


def _without_changed(graph: Graph, earlier: dict[int, int]) -> dict[int, int]:
    """Return the pairs whose results nothing changes in place afterwards, but operators that are pairs themselves."""
    kept: dict[int, int] = {}
    for i in sorted(earlier, reverse=True):
        j = earlier[i]
        pairs = zip(graph.operators[i].writes, graph.operators[j].writes, strict=True)
        later = [(graph.later[one.value], graph.later[other.value]) for one, other in pairs]
        changed = [tuple(graph.values[value].producer for value in both) for both in later if max(both) >= 0]
        if all(min(both) >= 0 or max(both) < 0 for both in later) and all(kept.get(a) == b for a, b in changed):
            kept[i] = j
    return dict(sorted(kept.items()))


def _value_numbers(graph: Graph) -> tuple[int, ...]:
    """Return a number for each value."""
    numbers: dict[Hashable, int] = {}
    found = [-1] * len(graph.values)
    for i, value in enumerate(graph.values):
        if value.producer < 0:
            key: Hashable = ("content", value.fingerprint) if value.is_exact else ("value", i)
            found[i] = numbers.setdefault(key, len(numbers))
    for i, one in enumerate(graph.operators):
        key = ("operator", i)
        if not (one.draws or one.has_effects):
            read = tuple((found[use.value], _geometry(use)) for use in one.reads)
            needed = tuple(found[value] for value in graph.needs[i])
            key = one.name, one.attributes, read, needed, tuple(map(_geometry, one.writes))
        for position, use in enumerate(one.writes):
            found[use.value] = numbers.setdefault((key, position), len(numbers))
    return tuple(found)


def _equal_key(graph: Graph, numbers: Sequence[int], i: int) -> Hashable:
    """Return what two operators share that compute the same: name, attributes, contents read and written."""
    one = graph.operators[i]
    looks = tuple((_content(graph, numbers, use.value), _geometry(use)) for use in (*one.reads, *one.writes))
    return one.name, one.attributes, len(one.reads), looks


def _content(graph: Graph, numbers: Sequence[int], value: int) -> Hashable:
    """Return what stands for the content of a value: its fingerprint, or its number if that says too little.

    A sample of elements that are nearly all the same does not tell two contents apart.
    """
    one = graph.values[value]
    says_little = not one.is_exact and (one.kind in ("constant", "one-hot") or one.zeros > MAX_SAMPLED_ZEROS)
    return numbers[value] if says_little or not one.fingerprint else one.fingerprint


def _geometry(use: Use) -> Hashable:
    return use.shape, use.stride, use.offset, use.dtype
