"""Placement: what is copied to the device in each step without need, and what Python reads element by element."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal, NamedTuple

from diagnose.dataflow.graph import Graph, Work, reached
from diagnose.model.dataflow import Frame
from diagnose.model.shapes import num_elements

__all__ = ["HostRoundTrip", "ReadByElement", "host_round_trips", "read_by_element"]

MIN_READS = 8  # of one value at one line: a loop over its elements, and no few numbers that are printed


class HostRoundTrip(NamedTuple):
    """Copies to a device, and the host's operators that made what they copy."""

    kind: Literal["round-trip", "constant", "made-on-host"]
    work: Work
    value_line: Frame | None  # that makes it on the host; of a round trip, the copy off the device
    use_line: Frame | None  # that copies it to the device
    num_bytes: int


class ReadByElement(NamedTuple):
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
    reads: dict[tuple[Frame, ...], dict[int, int]] = defaultdict(lambda: defaultdict(int))  # number by stack and value
    sites: dict[tuple[Frame, ...], list[int]] = defaultdict(list)
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        sites[one.stack].append(i)
        if one.stack and one.reads_host and not one.writes:  # not a mask's, whose size is read
            for value in map(graph.taken_from, one.reads[:1]):
                reads[one.stack][value] += num_elements(graph.values[value].shape) > 1
    found: dict[tuple[object, ...], list[tuple[Frame, ...]]] = defaultdict(list)
    for stack, by_value in reads.items():
        if max(by_value.values()) >= MIN_READS:
            function = (stack[0].file, stack[0].function, stack[1:])
            found[function].append(stack)
    records = []
    for stacks in found.values():
        many = {value: num for stack in stacks for value, num in reads[stack].items() if num >= MIN_READS}
        rows = [i for stack in stacks for i in sites[stack]]
        num = sum(many.values())
        overhead = graph.cheapest_ns() * len(rows) * (1 - len(many) / num) / max(graph.step_ns[graph.last_step], 1)
        longest = max(stacks, key=lambda stack: graph.time(sites[stack]))
        made_at = graph.made_at(max(many, key=many.__getitem__))
        records.append(ReadByElement(graph.work(rows), longest[0], made_at, num, overhead))
    return tuple(sorted(records, key=lambda one: -one.work.share))


def host_round_trips(graph: Graph) -> tuple[HostRoundTrip, ...]:
    """Return the last step's copies to a device that a batch does not need, the longest first."""
    earlier = graph.read_before()
    groups: dict[tuple[Literal["round-trip", "constant", "made-on-host"], Frame | None, Frame | None], list[int]] = {}
    sizes: dict[int, int] = defaultdict(int)
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        if not (one.reads and one.writes):
            continue
        source, written = one.reads[0].value, one.writes[0].value
        if graph.values[source].device != "cpu" or graph.values[written].device == "cpu":
            continue
        made = _made_by(graph, source)
        uses = [(j, use.value) for j in made for use in (*graph.operators[j].reads, *graph.operators[j].writes)]
        back = [j for j, value in uses if graph.values[value].device != "cpu"]
        value = graph.values[source]
        kind: Literal["round-trip", "constant", "made-on-host"] = "made-on-host"
        line = graph.made_at(source)
        if back:
            kind, line = "round-trip", graph.operators[back[0]].place
        elif value.kind != "constant" and value.fingerprint in earlier:
            kind = "constant"
        elif not made or any(graph.comes_in(each) for _, each in uses):
            continue
        sizes[i] = sum(graph.values[use.value].num_bytes for use in one.writes)
        groups.setdefault((kind, line, one.place), []).extend((*made, i))
    records = (
        HostRoundTrip(kind, graph.work(rows), line, use, sum(sizes[i] for i in set(rows)))
        for (kind, line, use), rows in groups.items()
    )
    return tuple(sorted(records, key=lambda one: -one.work.share))


def _made_by(graph: Graph, value: int) -> list[int]:
    """Return the step's operators on the host that made a value, back to the copies off a device."""

    def makers(values: Iterable[int]) -> list[int]:
        made_by = (graph.values[each].producer for each in values if graph.values[each].device == "cpu")
        return [i for i in made_by if i >= 0 and graph.operators[i].step == graph.last_step]

    return sorted(reached(makers([value]), lambda i: makers(graph.needs[i])))
