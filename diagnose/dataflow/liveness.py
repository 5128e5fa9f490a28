"""Dead work: what reaches no parameter, no state that outlives the steps, no host read and no collective.

Liveness is conservative. What the script still holds at the end of the recorded steps is needed, and so is what an
operator made whose effects its schema may not name. Therefore the last step shows little: the first one is judged.
Gradients that are left at the end are needed as long as nothing else is known. If optimizers ran in each step and no
operator read them, the record of what made them is there, but it is not certain.

A product with the number zero needs nothing of its other factor, nor does what the backward pass makes of it: a
function of that pass makes zeros of gradients that are zero. The number has to be zero in each recorded step, and no
operator may have computed it.

An update with a learning rate of 0 writes what is there already: it is no reason to compute a gradient. The rate has to
be 0 in each recorded step, without a scheduler that starts elsewhere, and the parameter the same in each.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import accumulate
from typing import Literal, NamedTuple, TypeAlias

from diagnose.dataflow.graph import (
    Graph,
    Work,
    base_name,
    components,
    plain_name,
    reached,
    start_of_backward,
    starts_backward,
)
from diagnose.model.dataflow import ASKS_FOR_GRADIENT, Frame, Operator, Use

__all__ = ["DeadWork", "dead_work"]

_JOINS = frozenset({"add", "sub", "cat", "stack"})  # of zeros and others: not zero throughout
_TIMES_ZERO = re.compile(r"\bother=-?0(\.0*)?(,|$)")
Kind: TypeAlias = Literal["gradient", "result", "zero factor"]


class DeadWork(NamedTuple):
    """Operators that hand values to each other, the last of which nobody reads.

    Where the backward pass goes on for nothing, ``value_line`` made what is not to be differentiated, and ``use_line``
    is where its gradient comes from. Gradients of parameters that no optimizer changes have the line that starts the
    backward pass for both. A result has no ``use_line``, and its line is the outermost call of which nothing is needed.
    What is multiplied by zero has as its ``use_line`` that of the product.
    """

    kind: Kind
    work: Work
    value_line: Frame | None
    use_line: Frame | None
    draws: bool  # random numbers: without the work, later draws are others
    is_certain: bool
    parameters: tuple[str, ...] = ()  # of which gradients are taken, and which no optimizer changes
    avoidable: float = 1.0  # share of the operators' time
    with_inner: bool = False  # what these operators call goes whole: the sums of a bias's gradient
    frozen: tuple[str, ...] = ()  # parameters that the gradient goes back through: none of them gets one
    below: str = ""  # the module that needs no gradient of its input, if all below is frozen; "" if not known
    asked_line: Frame | None = None  # that asks for the gradient of a value, for whose sake the pass goes on
    ends_early: bool = False  # another pass needs the gradient of what was asked for
    is_apart: bool = False  # nothing that ``value_line`` calls needs a gradient
    unused: tuple[str, ...] = ()  # parameters whose gradients are all that is dead: another backward pass trains them
    call_line: Frame | None = None  # that calls the modules which have them
    has_no_rate: bool = False  # whether an optimizer has the parameters, with a learning rate of 0


class _Place(NamedTuple):
    """What groups of dead operators that are one record have in common."""

    kind: Kind
    value_line: Frame | None
    use_line: Frame | None = None
    is_certain: bool = False
    is_frozen: bool = False


def dead_work(graph: Graph, step: int = 0) -> tuple[DeadWork, ...]:
    """Return the dead work of a step, the longest first; what the last one leaves behind may all be read later."""
    updating = {one.step for one in graph.operators if one.phase == "optimizer" and one.writes}
    with_gradients = len(updating) < graph.flow.num_steps
    zeros, still = _zeros(graph), _still(graph)
    surely_live, live = (_live(graph, zeros | still, with_gradients=each) for each in (True, with_gradients))
    reached = _live(graph, still, with_gradients=with_gradients)  # what would be needed with another factor
    writes = ((one, use.value) for one in graph.operators for use in one.writes)
    updated = [graph.values[value] for one, value in writes if one.phase == "optimizer" and value not in still]
    changed, storages = {value.name for value in updated}, {value.storage for value in updated}
    needed = {one.stack for i in graph.of_step(step) if i in live and not (one := graph.operators[i]).is_view}
    stacks = {stack[n:] for stack in needed for n in range(len(stack))}  # below which a needed operator runs
    frozen: dict[_Place, set[str]] = {}
    found: dict[_Place, list[int]] = {}
    dead = [i for i in graph.of_step(step) if i not in live and graph.computes(i)]
    of_zeros = components(graph, (i for i in dead if i in reached))
    made = (graph.values[use.value] for i in dead if graph.operators[i].phase == "backward"
            for use in graph.operators[i].writes)  # fmt: skip
    needless = {value.name for value in made if value.role == "gradient"}
    for group in (*of_zeros, *components(graph, (i for i in dead if i not in reached))):
        written = {use.value: graph.values[use.value] for i in group for use in graph.operators[i].writes}
        names = {value.name for at, value in written.items() if value.role == "gradient" or at in still}
        if group[0] in reached:
            # The line where most of the needless term is computed, and the one that multiplies it by zero.
            readers = (j for i in group for use in graph.operators[i].writes for j in graph.readers[use.value])
            each = (graph.operators[i] for i in (*group, *readers) if _makes(graph, i, zeros))
            product = next((one for one in each if one.phase != "backward"), graph.operators[group[0]])
            place = _Place("zero factor", graph.work(group).line, product.place)
        elif not still.isdisjoint(written) and not names <= needless:  # the norm of all gradients, say, needs theirs
            continue
        elif names and (names.isdisjoint(changed) or not still.isdisjoint(written)):
            line = start_of_backward(graph, group[0]).place
            place = _Place("gradient", line, line, is_frozen=True)
        elif 2 * graph.time(i for i in group if graph.operators[i].phase == "backward") <= graph.time(group):
            place = _result(graph, group, stacks)
        else:
            place = _Place("gradient", *_end_in_backward(graph, group))
        place = place._replace(is_certain=surely_live.isdisjoint(group))
        found.setdefault(place, []).extend(group)
        frozen.setdefault(place, set()).update(names)
    records = []
    for place, rows in found.items():
        record = DeadWork(
            *(place.kind, graph.work(rows), place.value_line, place.use_line),
            draws=any(graph.operators[i].draws for i in rows),
            is_certain=place.is_certain,
            parameters=tuple(sorted(frozen[place])) * place.is_frozen,
            has_no_rate=place.is_frozen and frozen[place] <= {graph.values[value].name for value in still},
        )
        goes_on = place.kind == "gradient" and not place.is_frozen
        records.append(_with_source(graph, record, live, storages) if goes_on else record)
    partly = _partly_dead(graph, step, live, surely_live, with_gradients=with_gradients)
    records += [_with_source(graph, record, live, storages) for record in partly]
    return tuple(sorted(records, key=lambda one: -one.work.share * one.avoidable))


def _with_source(graph: Graph, record: DeadWork, live: set[int], changed: set[int]) -> DeadWork:
    """Return a record of gradients with what they are taken of: frozen parameters, or what has others."""
    rows = record.work.operators
    passed = {i: one.forward for i in rows if (one := graph.operators[i]).forward >= 0}
    starts = [i for i in range(len(graph.operators)) if starts_backward(graph.operators[i])]
    passes = {bisect_right(starts, i) for i in rows}
    needed_rows = {
        i
        for i in live
        if not (one := graph.operators[i]).is_view and one.phase == "backward" and bisect_right(starts, i) in passes
    }
    dead = {i for i in passed.values() if needed_rows.isdisjoint(graph.backward[i])}
    weights = {
        i: [v for use in graph.operators[i].reads if (v := graph.values[use.value]).role == "parameter"]
        for i in {*passed.values()}
    }
    through = [value for i in sorted(dead, reverse=True) for value in weights[i]]
    taken = [
        value.name
        for i in passed
        for value in weights[passed[i]]
        for use in graph.operators[i].writes
        if sorted(use.shape) == sorted(value.shape) and live.isdisjoint(graph.readers[use.value])
    ]
    if taken and not dead:
        stack = graph.operators[rows[0]].stack
        outside = next((n for n in range(len(stack), 0, -1) if stack[n - 1].function == "forward"), 0)
        return record._replace(unused=tuple(dict.fromkeys(taken)), call_line=next(iter(stack[outside:]), None))
    if taken or not changed.isdisjoint(value.storage for value in through):
        return record
    names = tuple(dict.fromkeys(value.name for value in through))
    needed = (
        made for i in rows for v in graph.needs[i] if (made := graph.values[v].producer) >= 0 and made not in rows
    )
    modules = (graph.operators[i].module for i in needed if graph.operators[i].phase == "backward")
    before = reached((use.value for i in passed.values() for use in graph.operators[i].reads), graph.made_of)
    asked = [one for one in graph.operators if one.name == ASKS_FOR_GRADIENT and one.reads[0].value in before]
    if any(_has_needed_gradient(graph, one.reads[0], live) for one in asked):
        return record._replace(ends_early=True)
    asks = (one.place for one in asked)
    live_stacks = (graph.operators[i].stack for i in needed_rows)
    # The outermost module around this one that has none of the frozen parameters.
    module = next(modules, "")
    paths = accumulate(module.split("."), "{}.{}".format)
    apart = (path for path in paths if not any(f"{name}.".startswith(f"{path}.") for name in names))
    return record._replace(
        frozen=names,
        below=next(apart, module),
        asked_line=next(asks, None),
        is_apart=record.value_line is not None and not any(record.value_line in stack for stack in live_stacks),
    )


def _has_needed_gradient(graph: Graph, use: Use, live: set[int]) -> bool:
    """Return whether a pass takes a gradient of a value that is needed, as forces are those of positions."""
    made = (each for i in graph.readers[use.value] for j in graph.backward[i] if j in live
            for each in graph.operators[j].writes)  # fmt: skip
    return any(each.shape == use.shape for each in made)


def _partly_dead(
    graph: Graph, step: int, live: set[int], surely_live: set[int], *, with_gradients: bool
) -> Iterator[DeadWork]:
    """Yield the needed operators of the backward pass that make a product which is not needed beside one that is.

    Of a convolution the gradients of input and weight take a product each; that of the bias takes little.
    """
    found: dict[_Place, list[int]] = {}
    for i in graph.of_step(step):
        one = graph.operators[i]
        if i in live and plain_name(one.name) == "convolution_backward":
            products = [use.value for use in one.writes if len(graph.values[use.value].shape) > 2]
            needed, surely = (
                [v for v in products if _stays(graph, v, gradients) or not among.isdisjoint(graph.readers[v])]
                for among, gradients in ((live, with_gradients), (surely_live, True))
            )
            if len(needed) == 1 < len(products):
                lines = _parting(one, start_of_backward(graph, i))
                found.setdefault(_Place("gradient", *lines, surely == needed), []).append(i)
    for place, rows in found.items():
        sums = [use.value for i in rows for use in graph.operators[i].writes if len(graph.values[use.value].shape) == 1]
        is_needed = any(_stays(graph, v, with_gradients) or not live.isdisjoint(graph.readers[v]) for v in sums)
        lines = place[1:3]
        work = graph.work(rows)
        yield DeadWork("gradient", work, *lines, False, place.is_certain, (), 0.5, with_inner=not is_needed)


def _end_in_backward(graph: Graph, group: list[int]) -> tuple[Frame | None, Frame | None]:
    """Return where the forward lines of most of a dead gradient and of the gradient that it is made from part."""
    largest = graph.operators[max(group, key=lambda i: graph.operators[i].host_ns)]
    needed = [graph.values[value].producer for i in group for value in graph.needs[i]]
    for made_by in (i for i in needed if i >= 0 and i not in group):
        if graph.operators[made_by].phase == "backward":
            return _parting(largest, graph.operators[made_by])
    return graph.operators[group[0]].place, None


def _parting(one: Operator, other: Operator) -> tuple[Frame | None, Frame | None]:
    """Return where the stacks of two operators part, from the outermost frame on; their lines if they are the same."""
    pairs = zip(reversed(one.stack), reversed(other.stack), strict=False)
    return next((pair for pair in pairs if pair[0] != pair[1]), (one.place, other.place))


def _result(graph: Graph, group: list[int], stacks: set[tuple[Frame, ...]]) -> _Place:
    ends = [i for i in group if not any(graph.readers[use.value] for use in graph.operators[i].writes)]
    last = graph.operators[(ends or group)[-1]]
    calls = (last.stack[n] for n in range(len(last.stack) - 1, -1, -1) if last.stack[n:] not in stacks)
    return _Place("result", next(calls, last.place))


def _stays(graph: Graph, value: int, with_gradients: bool) -> bool:
    """Return whether the script holds a value at the end of the recorded steps, as it is."""
    is_last = graph.lives_on[value] and graph.later[value] < 0
    return is_last and (with_gradients or graph.values[value].role != "gradient")


def _live(graph: Graph, known: set[int], *, with_gradients: bool) -> set[int]:
    """Return the operators whose results or effects are needed, views among them: a view does nothing.

    What only makes some values that are known without it is not needed.
    """
    ends = (
        i
        for i, one in enumerate(graph.operators)
        if one.has_effects
        or not (one.writes or one.is_view)
        or any(_stays(graph, use.value, with_gradients) for use in one.writes)
    )
    live = reached(ends, lambda i: () if _makes(graph, i, known) else graph.makers(i))
    return {i for i in live if not _makes(graph, i, known)} | {
        i for i, one in enumerate(graph.operators) if one.is_view
    }


def _makes(graph: Graph, i: int, values: set[int]) -> bool:
    """Return whether an operator makes nothing but some values."""
    writes = graph.operators[i].writes
    return bool(writes) and all(use.value in values for use in writes)


def _still(graph: Graph) -> set[int]:
    """Return the values that updates with a learning rate of 0 write; some also write the gradients that they read."""
    contents: dict[tuple[int, bool], set[str]] = defaultdict(set)  # of parameters, whole or of a sample
    for value in graph.values:
        if value.role == "parameter" and value.storage in graph.flow.held and value.fingerprint:
            contents[value.storage, value.is_exact].add(value.fingerprint)
    still = set[int]()
    for one in graph.operators if all(len(each) == 1 for each in contents.values()) else ():
        written = {use.value: graph.values[use.value] for use in one.writes if one.phase == "optimizer"}
        own = {value.storage for value in written.values() if value.role != "gradient"}
        if own and own <= graph.flow.held:
            still.update(written)
    return still


def _zeros(graph: Graph) -> set[int]:
    """Return the values that are zero because of products with the number zero."""
    products, zeros = _products_with_zero(graph), set[int]()
    for i, one in enumerate(graph.operators):
        if i in products or one.forward in products or _passes_zeros(graph, one, zeros):
            zeros |= {use.value for use in one.writes if graph.values[use.value].zeros == 1}
    return zeros


def _products_with_zero(graph: Graph) -> set[int]:
    """Return the products with zero of the forward pass that each step has."""
    same: dict[tuple[object, ...], dict[int, bool]] = defaultdict(dict)
    num = Counter[tuple[object, ...]]()
    for i, one in enumerate(graph.operators):
        if base_name(one) == "mul" and one.phase in ("forward", "other"):
            key = one.step, one.name, one.stack
            num[key] += 1
            # By the number zero, or by a single one that no operator has computed.
            numbers = (use.value for use in one.reads if not use.shape and graph.values[use.value].zeros == 1)
            given = [v for v in numbers if graph.producer(v) is None or graph.comes_in(v)]
            is_zero = any(graph.values[v].role != "parameter" for v in given)
            same[num[key], one.name, one.stack][i] = is_zero or bool(_TIMES_ZERO.search(one.attributes))
    return {i for each in same.values() if all(each.values()) for i in each}


def _passes_zeros(graph: Graph, one: Operator, zeros: set[int]) -> bool:
    """Return whether an operator of the backward pass gets gradients that are zero; what it makes is zero as well."""
    if one.phase != "backward" or one.forward < 0:
        return False
    made = ((use.value, graph.producer(use.value)) for use in one.reads)
    read = {v: by.forward == one.forward for v, by in made if by is not None and by.phase == "backward"}
    may_differ = base_name(one) not in _JOINS  # what its own function has made besides
    return not zeros.isdisjoint(read) and all(v in zeros or (is_own and may_differ) for v, is_own in read.items())
