"""Memory kept for the backward pass: how much each line keeps, and what it would take to compute it again."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from diagnose.dataflow.graph import Graph
from diagnose.model.dataflow import Frame

__all__ = ["KeptMemory", "kept_memory"]


@dataclass(frozen=True, slots=True)
class KeptMemory:
    """What one line leaves for the backward pass."""

    line: Frame | None
    module: str
    num_bytes: int
    recompute_share: float  # of the step's operator time: the line's operators that made it


def kept_memory(graph: Graph) -> tuple[KeptMemory, ...]:
    """Return the lines of the last step that keep memory for backward, the most bytes first."""
    kept: dict[tuple[Frame | None, str], dict[int, int]] = defaultdict(dict)
    makers: dict[tuple[Frame | None, str], set[int]] = defaultdict(set)
    for value in graph.values:
        if value.is_kept and value.producer >= 0 and graph.operators[value.producer].step == graph.last_step:
            one = graph.operators[value.producer]
            if one.phase != "forward":
                continue
            kept[one.place, one.module][value.storage] = value.num_bytes
            makers[one.place, one.module].add(value.producer)
    records = (
        KeptMemory(line, module, sum(sizes.values()), graph.share(makers[line, module]))
        for (line, module), sizes in kept.items()
    )
    return tuple(sorted(records, key=lambda one: -one.num_bytes))
