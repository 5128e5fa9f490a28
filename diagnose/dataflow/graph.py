"""The table of a step as a graph: which operator needs which value, and what all analyses read of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from diagnose.model.dataflow import Dataflow, Frame, Operator, Use, Value
from diagnose.model.shapes import num_elements

__all__ = ["Graph", "Work", "by_line", "components", "graph_of", "num_bytes", "parting", "plain_name"]

# These write every element of their target whatever it held; each also as a `_foreach` form.
_OVERWRITES = frozenset({"zero_", "fill_", "copy_", "normal_", "uniform_", "exponential_", "bernoulli_", "random_"})
_ITEM_BYTES = {"bool": 1, "bfloat16": 2, "float16": 2, "half": 2, "float64": 8, "double": 8, "int64": 8, "long": 8}
_ITEM_BYTES |= {"int8": 1, "uint8": 1, "int16": 2, "complex64": 8, "complex128": 16}
_BRINGS_IN = "lift_fresh"  # what torch.tensor and its like have made of Python's numbers
_COMPUTES_NOTHING = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", _BRINGS_IN})
_LIVES_ON = frozenset({"parameter", "buffer", "optimizer state"})


@dataclass(frozen=True, slots=True)
class Work:
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
    needs: tuple[tuple[int, ...], ...]  # values, for each operator
    readers: tuple[tuple[int, ...], ...]  # operators, for each value; a view reads nothing
    backward: tuple[tuple[int, ...], ...]  # operators of the backward pass, for each operator
    later: tuple[int, ...]  # for each value the next version of its storage, -1 for the last one
    lives_on: tuple[bool, ...]  # for each value: whether its storage holds what outlives the steps
    born: tuple[int, ...]  # for each value the step in which its storage came to be, -1 if it was there before
    step_ns: tuple[int, ...]  # operator time of each step

    @property
    def operators(self) -> tuple[Operator, ...]:
        """Return the operators in their order."""
        return self.flow.operators

    @property
    def values(self) -> tuple[Value, ...]:
        """Return the values in their order."""
        return self.flow.values

    @property
    def last_step(self) -> int:
        """Return the number of the last step, which the recording itself disturbs least."""
        return self.flow.num_steps - 1

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

    def comes_in(self, value: int) -> bool:
        """Return whether a value came with the step: a batch, or what Python made."""
        made_by = self.producer(value)
        if made_by is None:
            return self.values[value].role == "input"
        return plain_name(made_by.name) == _BRINGS_IN

    def made_at(self, value: int) -> Frame | None:
        """Return the line that made a value."""
        made_by = self.producer(value)
        return made_by.place if made_by is not None else None

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
        """Return operators of one step with their share and lines."""
        rows = tuple(sorted(operators))
        return Work(rows, self.share(rows), tuple(line for line, _ in by_line(self, rows)))


def graph_of(flow: Dataflow) -> Graph:
    """Return the edges of a data flow."""
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
    before = {}
    for use in one.writes:
        value = flow.values[use.value]
        if value.version and (old := version.get((value.storage, value.version - 1))) is not None:
            before[old] = _overwrites(one, use, value)
    read = dict.fromkeys(use.value for use in one.reads if not before.get(use.value, False))
    return tuple(read | dict.fromkeys(old for old, is_lost in before.items() if not is_lost))


def _overwrites(one: Operator, use: Use, value: Value) -> bool:
    name, _, overload = one.name.rpartition("::")[2].partition(".")
    is_full = num_bytes(use) >= value.num_bytes
    return is_full and (name.removeprefix("_foreach_") in _OVERWRITES or overload.endswith("out"))


def num_bytes(use: Use) -> int:
    """Return the bytes of what an operator sees of a value."""
    return num_elements(use.shape) * _ITEM_BYTES.get(use.dtype, 4)


def plain_name(name: str) -> str:
    """Return an operator's name without namespace and overload: "aten::mm.out" is "mm"."""
    return name.rpartition("::")[2].partition(".")[0]


def by_line(graph: Graph, operators: Iterable[int]) -> list[tuple[Frame, int]]:
    """Return the lines of some operators and their times, the longest first."""
    times: dict[Frame, int] = {}
    for i in operators:
        place = graph.operators[i].place
        if place is not None:
            times[place] = times.get(place, 0) + graph.operators[i].host_ns
    return sorted(times.items(), key=lambda item: -item[1])


def parting(one: tuple[Frame, ...], other: tuple[Frame, ...]) -> tuple[Frame | None, Frame | None]:
    """Return where two stacks part, from the outermost frame on; their innermost lines if they are the same."""
    for first, second in zip(reversed(one), reversed(other), strict=False):
        if first != second:
            return first, second
    return (one[0] if one else None), (other[0] if other else None)


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
