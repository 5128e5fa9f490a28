"""Placement: what is copied to the device in each step without need, and what Python reads element by element."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from diagnose.dataflow.graph import Graph, Work
from diagnose.dataflow.loops import cheapest_ns
from diagnose.model.dataflow import Frame, Use
from diagnose.model.shapes import num_elements

__all__ = ["HostRoundTrip", "ReadByElement", "host_round_trips", "read_by_element"]

MIN_READS = 8  # of one value at one line: a loop over its elements, and no few numbers that are printed


@dataclass(frozen=True, slots=True)
class HostRoundTrip:
    """Copies to a device, and the host's operators that made what they copy."""

    kind: Literal["round-trip", "constant", "made-on-host"]
    work: Work
    value_line: Frame | None  # that makes it on the host; of a round trip, the copy off the device
    use_line: Frame | None  # that copies it to the device
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ReadByElement:
    """Operators of a line that reads parts of one value one by one, and of their backward pass."""

    work: Work
    line: Frame
    value_line: Frame | None  # that makes what is read
    num_reads: int
    overhead_share: float  # of the step's operator time: calling the operators, but for one turn's


def read_by_element(graph: Graph) -> tuple[ReadByElement, ...]:
    """Return where Python reads parts of a value one by one in the last step, the longest first.

    Lines of one function that do so, called from one place, are one record: a loop reads at several lines in turns.
    """
    reads: dict[tuple[Frame, ...], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    sites: dict[tuple[Frame, ...], list[int]] = defaultdict(list)
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        sites[one.stack].append(i)
        if one.reads_host and one.reads and not one.writes and one.stack:  # not a mask's, whose size is read
            value = _taken_from(graph, one.reads[0])
            if num_elements(graph.values[value].shape) > 1:
                reads[one.stack][value].append(i)
    found: dict[tuple[object, ...], list[tuple[Frame, ...]]] = defaultdict(list)
    for stack, by_value in reads.items():
        if any(len(rows) >= MIN_READS for rows in by_value.values()):
            found[stack[0].file, stack[0].function, stack[1:]].append(stack)
    return tuple(
        sorted((_read(graph, stacks, reads, sites) for stacks in found.values()), key=lambda one: -one.work.share)
    )


def _taken_from(graph: Graph, use: Use) -> int:
    """Return the value that a number was taken from, which operators on single numbers may have changed on the way."""
    one = graph.producer(use.value)
    while (
        one is not None and one.reads and all(num_elements(each.shape) == 1 for each in (use, *one.reads, *one.writes))
    ):
        use = one.reads[0]
        one = graph.producer(use.value)
    return use.value


def _read(
    graph: Graph,
    stacks: list[tuple[Frame, ...]],
    reads: Mapping[tuple[Frame, ...], Mapping[int, list[int]]],
    sites: Mapping[tuple[Frame, ...], list[int]],
) -> ReadByElement:
    many = {value: len(rows) for stack in stacks for value, rows in reads[stack].items() if len(rows) >= MIN_READS}
    rows = [i for stack in stacks for i in sites[stack]]
    num = sum(many.values())
    overhead = cheapest_ns(graph) * len(rows) * (1 - len(many) / num) / max(graph.step_ns[graph.last_step], 1)
    first = max(stacks, key=lambda stack: graph.time(sites[stack]))[0]
    return ReadByElement(graph.work(rows), first, graph.made_at(max(many, key=many.__getitem__)), num, overhead)


def host_round_trips(graph: Graph) -> tuple[HostRoundTrip, ...]:
    """Return the last step's copies to a device that a batch does not need, the longest first."""
    earlier = graph.read_before()
    groups: dict[tuple[Literal["round-trip", "constant", "made-on-host"], Frame | None, Frame | None], list[int]] = {}
    sizes: dict[int, int] = {}
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        source = next((use.value for use in one.reads if use.value in graph.needs[i]), None)
        if source is None or not one.writes or _device(graph, source) != "cpu":
            continue
        if _device(graph, one.writes[0].value) == "cpu":
            continue
        made = _made_by(graph, source)
        back = [j for j in made if any(_device(graph, use.value) != "cpu" for use in graph.operators[j].reads)]
        value = graph.values[source]
        kind: Literal["round-trip", "constant", "made-on-host"]
        if back:
            kind, line = "round-trip", graph.operators[back[0]].place
        elif value.kind != "constant" and value.fingerprint in earlier:
            kind, line = "constant", graph.made_at(source)
        elif made and not any(graph.comes_in(each) for j in made for each in (*graph.needs[j], *_made(graph, j))):
            kind, line = "made-on-host", graph.made_at(source)
        else:
            continue
        sizes[i] = sum(graph.values[use.value].num_bytes for use in one.writes)
        groups.setdefault((kind, line, one.place), []).extend((*made, i))
    records = (
        HostRoundTrip(kind, graph.work(set(rows)), line, use, sum(sizes.get(i, 0) for i in set(rows)))
        for (kind, line, use), rows in groups.items()
    )
    return tuple(sorted(records, key=lambda one: -one.work.share))


def _made(graph: Graph, i: int) -> list[int]:
    return [use.value for use in graph.operators[i].writes]


def _device(graph: Graph, value: int) -> str:
    return graph.values[value].device


def _made_by(graph: Graph, value: int) -> list[int]:
    """Return the step's operators on the host that made a value, back to the copies off a device."""
    found, left = set[int](), [value]
    while left:
        i = graph.values[left.pop()].producer
        if i >= 0 and i not in found and graph.operators[i].step == graph.last_step:
            found.add(i)
            left.extend(each for each in graph.needs[i] if _device(graph, each) == "cpu")
    return sorted(found)
