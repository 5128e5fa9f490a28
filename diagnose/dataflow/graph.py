"""The table of a step as a graph: which operator needs which value, kinds of operators, and what all analyses read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from diagnose.model.dataflow import Dataflow, Frame, Operator, Use, Value
from diagnose.model.operators import POINTWISE, REDUCTIONS
from diagnose.model.shapes import num_elements

__all__ = [
    "Graph", "Work", "base_name", "components", "graph_of", "is_arithmetic", "is_copy", "is_pointwise", "is_product",
    "is_reduction", "num_bytes", "plain_name", "reached", "start_of_backward", "starts_backward",
]  # fmt: skip

# These write every element of their target whatever it held; each also as a `_foreach` form.
_OVERWRITES = frozenset({"zero_", "fill_", "copy_", "normal_", "uniform_", "exponential_", "bernoulli_", "random_"})
_ITEM_BYTES = {"bool": 1, "bfloat16": 2, "float16": 2, "half": 2, "float64": 8, "double": 8, "int64": 8, "long": 8}
_ITEM_BYTES |= {"int8": 1, "uint8": 1, "int16": 2, "complex64": 8, "complex128": 16}
_BRINGS_IN = "lift_fresh"  # what torch.tensor and its like have made of Python's numbers
_COMPUTES_NOTHING = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", _BRINGS_IN})
_LIVES_ON = frozenset({"parameter", "buffer", "optimizer state"})

_PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "linear", "matmul", "_addmm"})
_REDUCTIONS = REDUCTIONS | {
    "logsumexp", "softmax", "_softmax", "log_softmax", "_log_softmax", "_softmax_backward_data", "cumsum",
    "_log_softmax_backward_data", "native_layer_norm", "native_layer_norm_backward", "native_group_norm",
    "nll_loss_forward", "nll_loss_backward",
}  # fmt: skip
_POINTWISE = POINTWISE | {"native_dropout", "bernoulli", "cat", "stack"}
_ARITHMETIC = _PRODUCTS | _POINTWISE | _REDUCTIONS
_COPIES = frozenset({"clone", "contiguous", "_to_copy", "copy"})


def plain_name(name: str) -> str:
    """Return an operator's name without namespace and overload: "aten::mm.out" is "mm"."""
    return name.rpartition("::")[2].partition(".")[0]


def base_name(one: Operator) -> str:
    """Return an operator's plain name without the mark of a change in place."""
    return plain_name(one.name).removesuffix("_")


def is_product(one: Operator) -> bool:
    """Return whether an operator multiplies matrices."""
    return base_name(one) in _PRODUCTS


def is_pointwise(one: Operator) -> bool:
    """Return whether each element of the result depends on one element of each argument; joining counts."""
    return base_name(one) in _POINTWISE


def is_reduction(one: Operator) -> bool:
    """Return whether an operator reduces or normalises along dimensions."""
    return base_name(one) in _REDUCTIONS


def is_arithmetic(one: Operator) -> bool:
    """Return whether an operator is a product, pointwise or a reduction."""
    return base_name(one) in _ARITHMETIC


def is_copy(one: Operator) -> bool:
    """Return whether all an operator does is to copy or convert."""
    return base_name(one) in _COPIES


class Work(NamedTuple):
    """Operators of one step, and what they are of it."""

    operators: tuple[int, ...]  # indices, ascending
    share: float  # of the operator time of their step
    lines: tuple[Frame, ...]  # the user's lines, the one that takes longest first

    @property
    def line(self) -> Frame | None:
        """Return the line where most of the time goes."""
        return self.lines[0] if self.lines else None


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A data flow with its edges. An in-place operator needs what it changes, unless it overwrites all of it."""

    flow: Dataflow
    operators: tuple[Operator, ...]
    values: tuple[Value, ...]
    last_step: int  # which the recording itself disturbs least
    needs: tuple[tuple[int, ...], ...]  # values, for each operator
    readers: tuple[tuple[int, ...], ...]  # operators, for each value; a view reads nothing
    backward: tuple[tuple[int, ...], ...]  # operators of the backward pass, for each operator
    later: tuple[int, ...]  # for each value the next version of its storage, -1 for the last one
    lives_on: tuple[bool, ...]  # for each value: whether its storage holds what outlives the steps
    born: tuple[int, ...]  # for each value the step in which its storage came to be, -1 if it was there before
    step_ns: tuple[int, ...]  # operator time of each step

    def of_step(self, step: int) -> Iterator[int]:
        """Yield the operators of a step."""
        return (i for i, operator in enumerate(self.operators) if operator.step == step)

    def time(self, operators: Iterable[int]) -> int:
        """Return the time of some operators, ns."""
        return sum(self.operators[i].host_ns for i in operators)

    def share(self, operators: Iterable[int]) -> float:
        """Return what operators of one step are of its operator time."""
        rows = tuple(operators)
        return self.time(rows) / max(self.step_ns[self.operators[rows[0]].step], 1) if rows else 0.0

    def producer(self, value: int) -> Operator | None:
        """Return the operator that made a value, None for one that was there before."""
        made_by = self.values[value].producer
        return self.operators[made_by] if made_by >= 0 else None

    def makers(self, operator: int) -> Iterator[int]:
        """Yield the operators that made what an operator needs."""
        return (made for value in self.needs[operator] if (made := self.values[value].producer) >= 0)

    def made_of(self, value: int) -> tuple[int, ...]:
        """Return the values that the operator needs which made one, none if it was there before."""
        made_by = self.values[value].producer
        return self.needs[made_by] if made_by >= 0 else ()

    def comes_in(self, value: int) -> bool:
        """Return whether a value came with the step: a batch, or what Python made."""
        made_by = self.producer(value)
        if made_by is None:
            return self.values[value].role == "input"
        return plain_name(made_by.name) == _BRINGS_IN

    def brings_in(self, operator: int) -> bool:
        """Return whether an operator brings in what Python has made, if the content tells it from other contents."""
        one = self.operators[operator]
        is_told = all(self.values[use.value].kind != "constant" for use in one.writes)
        return plain_name(one.name) == _BRINGS_IN and bool(one.writes) and is_told

    def made_at(self, value: int) -> Frame | None:
        """Return the line that made a value."""
        made_by = self.producer(value)
        return made_by.place if made_by is not None else None

    def taken_from(self, use: Use) -> int:
        """Return the value that a number was taken from; operators on single numbers may have changed it on the way."""
        one = self.producer(use.value)
        while one is not None and one.reads and {num_elements(u.shape) for u in (use, *one.reads, *one.writes)} == {1}:
            use = one.reads[0]
            one = self.producer(use.value)
        return use.value

    def read_before(self) -> set[str]:
        """Return the fingerprints of what the steps before the last one read."""
        before = (one for one in self.operators if one.step < self.last_step)
        return {self.values[use.value].fingerprint for one in before for use in one.reads} - {""}

    def makes_values(self, operator: int) -> bool:
        """Return whether an operator only makes new values, or also says how many there are: they could be kept."""
        one = self.operators[operator]
        has_effects = one.is_view or one.is_collective or one.is_opaque
        return bool(one.writes) and not has_effects and plain_name(one.name) not in _COMPUTES_NOTHING

    def computes(self, operator: int) -> bool:
        """Return whether all an operator does is to make new values, so that it could be left out."""
        return self.makes_values(operator) and not self.operators[operator].reads_host

    def work(self, operators: Iterable[int]) -> Work:
        """Return operators of one step, each once, with their share and lines."""
        rows = tuple(sorted(set(operators)))
        times: dict[Frame, int] = {}
        for i in rows:
            for place in self.operators[i].stack[:1]:
                times[place] = times.get(place, 0) + self.operators[i].host_ns
        return Work(rows, self.share(rows), tuple(sorted(times, key=lambda line: -times[line])))

    def cheapest_ns(self) -> float:
        """Return what an operator of the last step takes that has next to nothing to do: a tenth of them take less."""
        times = sorted(self.operators[i].host_ns for i in self.of_step(self.last_step) if self.computes(i))
        return times[len(times) // 10] if times else 0.0


def graph_of(flow: Dataflow) -> Graph:
    """Return a data flow with its edges."""
    version = {(value.storage, value.version): i for i, value in enumerate(flow.values)}
    later = tuple(version.get((value.storage, value.version + 1), -1) for value in flow.values)
    needs = tuple(_needs(flow, one, version) for one in flow.operators)
    readers: list[list[int]] = [[] for _ in flow.values]
    for i, values in enumerate(needs):
        for value in () if flow.operators[i].is_view else values:
            readers[value].append(i)
    backward: list[list[int]] = [[] for _ in flow.operators]
    for i, one in enumerate(flow.operators):
        if one.phase == "backward" and one.forward >= 0:
            backward[one.forward].append(i)
    held = {flow.values[root].storage for root in flow.roots}
    held |= {value.storage for value in flow.values if value.role in _LIVES_ON}
    step_ns = [0] * max(flow.num_steps, 1)
    for one in flow.operators:
        step_ns[one.step] += one.host_ns
    born = {
        value.storage: flow.operators[value.producer].step
        for value in flow.values
        if value.version == 0 and value.producer >= 0
    }
    return Graph(
        flow=flow,
        operators=flow.operators,
        values=flow.values,
        last_step=flow.num_steps - 1,
        needs=needs,
        readers=tuple(map(tuple, readers)),
        backward=tuple(map(tuple, backward)),
        later=later,
        lives_on=tuple(value.storage in held for value in flow.values),
        born=tuple(born.get(value.storage, -1) for value in flow.values),
        step_ns=tuple(step_ns),
    )


def _needs(flow: Dataflow, one: Operator, version: dict[tuple[int, int], int]) -> tuple[int, ...]:
    """Return the values whose contents can change what an operator writes."""
    read = dict.fromkeys(use.value for use in one.reads)
    for use in one.writes:
        value = flow.values[use.value]
        old = version.get((value.storage, value.version - 1))
        if old is not None:
            read[old] = None
            name, _, overload = one.name.rpartition("::")[2].partition(".")
            overwrites = name.removeprefix("_foreach_") in _OVERWRITES or overload.endswith("out")
            if overwrites and num_bytes(use) >= value.num_bytes:
                del read[old]
    return tuple(read)


def num_bytes(use: Use) -> int:
    """Return the bytes of what an operator sees of a value."""
    return num_elements(use.shape) * _ITEM_BYTES.get(use.dtype, 4)


def reached(start: Iterable[int], following: Callable[[int], Iterable[int]]) -> set[int]:
    """Return what ``following`` leads to from some operators or values, and these."""
    found, left = set[int](), list(start)
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left.extend(following(one))
    return found


def components(
    graph: Graph, operators: Iterable[int], joins: Callable[[int], bool] = lambda _value: True
) -> list[list[int]]:
    """Return groups of operators that hand each other values that ``joins``, in the order of their first ones."""
    rows = sorted(operators)
    group = {i: i for i in rows}

    def root(i: int) -> int:
        while group[i] != i:
            group[i] = group[group[i]]
            i = group[i]
        return i

    for i in rows:
        for value in graph.needs[i]:
            made_by = graph.values[value].producer
            if made_by in group and joins(value):
                first, second = sorted((root(made_by), root(i)))
                group[second] = first
    found: dict[int, list[int]] = {}
    for i in rows:
        found.setdefault(root(i), []).append(i)
    return list(found.values())


def is_weight(graph: Graph, value: int) -> bool:
    """Return whether a value is a parameter, or converted from one."""
    while (one := graph.producer(value)) is not None and is_copy(one) and one.reads:
        value = one.reads[0].value
    return graph.values[value].role == "parameter"


def start_of_backward(graph: Graph, i: int) -> Operator:
    """Return the operator that makes the first gradient of an operator's backward pass."""
    before = (graph.operators[j] for j in range(i, -1, -1))
    return next(filter(starts_backward, before), graph.operators[i])


def starts_backward(one: Operator) -> bool:
    """Return whether an operator makes the first gradient of a backward pass."""
    return one.forward < 0 and plain_name(one.name) == "ones_like"
