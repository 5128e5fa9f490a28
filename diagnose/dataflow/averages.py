"""State that one line moves towards parameters, of which some never change: their average is what they are."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from diagnose.dataflow.graph import Graph, Work
from diagnose.model.dataflow import Frame

__all__ = ["UnchangedAverage", "unchanged_averages"]


class UnchangedAverage(NamedTuple):
    """Updates of one line that read parameters which no step changed, beside others of it that read those which did."""

    work: Work
    names: tuple[str, ...]  # of the parameters that did not change
    num_changed: int  # parameters that the line reads and that changed


def unchanged_averages(graph: Graph) -> tuple[UnchangedAverage, ...]:
    """Return the last step's updates of state by what does not change, the longest first."""
    changed = {value.storage for value in graph.values if value.version > 0}
    reads: dict[Frame | None, set[int]] = defaultdict(set)  # parameters, by the line that moves state towards them
    moved_by: dict[int, int] = {}  # the parameter, by the storage of the state
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        written = _storages(graph, i)
        if one.phase in ("backward", "optimizer") or len(written) != 1 or not _writes_state(graph, i):
            continue
        storage = next(iter(written))
        read = [use.value for use in one.reads if graph.values[use.value].storage != storage]
        parameters = [value for value in read if graph.values[value].role == "parameter"]
        if len(read) == len(parameters) == 1:
            reads[one.place].add(parameters[0])
            moved_by[storage] = parameters[0]
    found = []
    for line, values in reads.items():
        still = {value for value in values if graph.values[value].storage not in changed}
        storages = {storage for storage, value in moved_by.items() if value in still}
        updates = (i for i in graph.of_step(graph.last_step) if graph.operators[i].place == line)
        rows = [i for i in updates if _writes_state(graph, i) and storages & _storages(graph, i)]
        if rows and len(still) < len(values):
            names = tuple(graph.values[value].name for value in sorted(still))
            found.append(UnchangedAverage(graph.work(rows), names, len(values) - len(still)))
    return tuple(sorted(found, key=lambda one: -one.work.share))


def _storages(graph: Graph, i: int) -> set[int]:
    return {graph.values[use.value].storage for use in graph.operators[i].writes}


def _writes_state(graph: Graph, i: int) -> bool:
    """Return whether an operator changes in place what was there before the step."""
    one = graph.operators[i]
    return bool(one.writes) and all(
        graph.values[use.value].version > 0 and graph.lives_on[use.value] and graph.born[use.value] != one.step
        for use in one.writes
    )
