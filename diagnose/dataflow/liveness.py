"""Dead work: what reaches no parameter, no state that outlives the steps, no host read and no collective.

Liveness is conservative. What the script still holds at the end of the recorded steps is needed, and so is what an
operator made whose effects its schema may not name. Therefore the last step shows little: the first one is judged.
Gradients that are left at the end are needed as long as nothing else is known. If optimizers ran in each step and no
operator read them, the record of what made them is there, but it is not certain.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from diagnose.dataflow.graph import Graph, Work, components, parting, plain_name
from diagnose.model.dataflow import Frame

__all__ = ["DeadWork", "dead_work"]


@dataclass(frozen=True, slots=True)
class DeadWork:
    """Operators that hand values to each other, the last of which nobody reads.

    Where the backward pass goes on for nothing, ``value_line`` made what is not to be differentiated, and ``use_line``
    is where its gradient comes from. Gradients of parameters that no optimizer changes have the line that starts the
    backward pass for both. A result has no ``use_line``, and its line is the outermost call of which nothing is needed.
    """

    kind: Literal["gradient", "result"]
    work: Work
    value_line: Frame | None
    use_line: Frame | None
    draws: bool  # random numbers: without the work, later draws are others
    is_certain: bool
    parameters: tuple[str, ...] = ()  # of which gradients are taken, and which no optimizer changes
    avoidable: float = 1.0  # share of the operators' time


class _Place(NamedTuple):
    """What a group computes, and its lines."""

    kind: Literal["gradient", "result"]
    value_line: Frame | None
    use_line: Frame | None = None
    is_frozen: bool = False


class _Key(NamedTuple):
    """What groups of dead operators that are one record have in common."""

    place: _Place
    is_certain: bool


def dead_work(graph: Graph) -> tuple[DeadWork, ...]:
    """Return the dead work of the first step, the longest first."""
    surely_live = _live(graph, _roots(graph, with_gradients=True))
    updates = _optimizers_ran(graph)
    live = _live(graph, _roots(graph, with_gradients=False)) if updates else surely_live
    changed = {
        graph.values[use.value].name for one in graph.operators for use in one.writes if one.phase == "optimizer"
    }
    stacks = _needed_stacks(graph, live)
    frozen: dict[_Key, set[str]] = {}
    found: dict[_Key, list[int]] = {}
    for group in components(graph, (i for i in graph.of_step(0) if i not in live and graph.computes(i))):
        names = _with_gradients(graph, group)
        if not _is_backward(graph, group):
            place = _result(graph, group, stacks)
        elif updates and names and names.isdisjoint(changed) and (line := _starts_backward(graph, group[0])):
            place = _Place("gradient", line, line, is_frozen=True)
        else:
            place = _ends_in_backward(graph, group)
        key = _Key(place, surely_live.isdisjoint(group))
        found.setdefault(key, []).extend(group)
        frozen.setdefault(key, set()).update(names)
    records = (
        DeadWork(
            key.place.kind,
            graph.work(rows),
            key.place.value_line,
            key.place.use_line,
            any(graph.operators[i].draws for i in rows),
            key.is_certain,
            tuple(sorted(frozen[key])) if key.place.is_frozen else (),
        )
        for key, rows in found.items()
    )
    partly = _partly_dead(graph, live, surely_live, with_gradients=not updates)
    return tuple(sorted((*records, *partly), key=lambda one: -one.work.share * one.avoidable))


def _partly_dead(graph: Graph, live: set[int], surely_live: set[int], *, with_gradients: bool) -> list[DeadWork]:
    """Return the needed operators of the backward pass that make a product which is not needed beside one that is.

    Of a convolution the gradients of input and weight take a product each; that of the bias takes little.
    """
    found: dict[_Key, list[int]] = {}
    for i in graph.of_step(0):
        one = graph.operators[i]
        if i in live and one.phase == "backward" and plain_name(one.name) == "convolution_backward":
            products = [use.value for use in one.writes if len(graph.values[use.value].shape) > 2]
            needed = [value for value in products if _is_needed(graph, live, value, with_gradients=with_gradients)]
            surely = [value for value in products if _is_needed(graph, surely_live, value, with_gradients=True)]
            starts = _start_of_backward(graph, i)
            if len(products) > 1 and len(needed) == 1 and starts is not None:
                place = _Place("gradient", *parting(one.stack, graph.operators[starts].stack))
                found.setdefault(_Key(place, surely == needed), []).append(i)
    return [
        DeadWork("gradient", graph.work(rows), *key.place[1:3], False, key.is_certain, avoidable=0.5)
        for key, rows in found.items()
    ]


def _is_needed(graph: Graph, live: set[int], value: int, *, with_gradients: bool) -> bool:
    return _stays(graph, value, with_gradients=with_gradients) or any(i in live for i in graph.readers[value])


def _ends_in_backward(graph: Graph, group: list[int]) -> _Place:
    """Return where the forward lines of most of a dead gradient and of the gradient that it is made from part."""
    inside = set(group)
    largest = graph.operators[max(group, key=lambda i: graph.operators[i].host_ns)]
    for i in group:
        for value in graph.needs[i]:
            made_by = graph.values[value].producer
            if made_by >= 0 and made_by not in inside and graph.operators[made_by].phase == "backward":
                return _Place("gradient", *parting(largest.stack, graph.operators[made_by].stack))
    return _Place("gradient", graph.operators[group[0]].place)


def _with_gradients(graph: Graph, group: list[int]) -> set[str]:
    """Return the parameters whose gradients some operators write."""
    written = (graph.values[use.value] for i in group for use in graph.operators[i].writes)
    return {value.name for value in written if value.role == "gradient" and value.name}


def _starts_backward(graph: Graph, i: int) -> Frame | None:
    """Return the line that asks for the backward pass of an operator."""
    starts = _start_of_backward(graph, i)
    return graph.operators[starts].place if starts is not None else None


def _start_of_backward(graph: Graph, i: int) -> int | None:
    """Return the operator that makes the first gradient of an operator's backward pass."""
    for j in range(i, -1, -1):
        one = graph.operators[j]
        if one.phase == "backward" and one.forward < 0 and plain_name(one.name) == "ones_like":
            return j
    return None


def _result(graph: Graph, group: list[int], stacks: set[tuple[Frame, ...]]) -> _Place:
    ends = [i for i in group if not any(graph.readers[use.value] for use in graph.operators[i].writes)]
    stack = graph.operators[(ends or group)[-1]].stack
    calls = (stack[n] for n in range(len(stack) - 1, -1, -1) if stack[n:] not in stacks)
    return _Place("result", next(calls, stack[0] if stack else None))


def _needed_stacks(graph: Graph, live: set[int]) -> set[tuple[Frame, ...]]:
    """Return the calls below which a needed operator runs in the first step: its stack from each frame on."""
    needed = {one.stack for i in graph.of_step(0) if i in live and not (one := graph.operators[i]).is_view}
    return {stack[n:] for stack in needed for n in range(len(stack))}


def _is_backward(graph: Graph, rows: list[int]) -> bool:
    return 2 * graph.time(i for i in rows if graph.operators[i].phase == "backward") > graph.time(rows)


def _optimizers_ran(graph: Graph) -> bool:
    updating = {one.step for one in graph.operators if one.phase == "optimizer" and one.writes}
    return len(updating) == graph.flow.num_steps


def _roots(graph: Graph, *, with_gradients: bool) -> list[int]:
    """Return the operators that are needed for what they do."""
    return [
        i
        for i, one in enumerate(graph.operators)
        if one.reads_host
        or one.is_collective
        or one.is_opaque
        or not (one.writes or one.is_view)
        or any(_stays(graph, use.value, with_gradients=with_gradients) for use in one.writes)
    ]


def _stays(graph: Graph, value: int, *, with_gradients: bool) -> bool:
    """Return whether the script holds a value at the end of the recorded steps, as it is."""
    is_last = graph.lives_on[value] and graph.later[value] < 0
    return is_last and (with_gradients or graph.values[value].role != "gradient")


def _live(graph: Graph, roots: Iterable[int]) -> set[int]:
    """Return the operators whose results are needed, views among them: a view does nothing."""
    live, left = set[int](), list(roots)
    while left:
        i = left.pop()
        if i not in live:
            live.add(i)
            left.extend(made for value in graph.needs[i] if (made := graph.values[value].producer) >= 0)
    return live | {i for i, one in enumerate(graph.operators) if one.is_view}
