"""What a compiled function does on the host before its first launch: guards, its inputs, the trees of CUDA graphs."""

from __future__ import annotations

import numpy as np

from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, intersect, total, union
from diagnose.tables import Tables, shared_table
from diagnose.tables.names import GRAPH_LAUNCH, LAUNCH
from diagnose.text.patterns import lazy_pattern

__all__ = ["before_graphs", "share_before_graphs"]

_REGION = lazy_pattern(r"^(Torch-Compiled Region|TorchDynamo Cache Lookup|CompiledFunction(Backward)?$)")


@shared_table
def before_graphs(t: Tables) -> Intervals:
    """Return the time from a compiled function's begin to its first launch, where that is the launch of a graph.

    What begins no later than the function and ends within it, as the look-up of its guards does, is part of it.
    """
    events = t.trace.events
    regions = t.in_window(t.calls(_REGION, Kind.OP, Kind.ANNOTATION))
    launches = t.calls(LAUNCH)
    if not len(regions) or not len(launches):
        return EMPTY
    graphs = set(t.calls(GRAPH_LAUNCH).tolist())
    starts, ends = [], []
    for thread in t.threads:
        mine = launches[events.thread[launches] == thread]
        mine = mine[np.argsort(events.start[mine], kind="stable")]
        own = regions[events.thread[regions] == thread]
        first = np.searchsorted(events.start[mine], events.start[own])
        for region, at in zip(own.tolist(), first.tolist(), strict=True):
            is_look_up = t.name(region).startswith("TorchDynamo")
            if (
                at < len(mine)
                and int(mine[at]) in graphs
                and (is_look_up or events.start[mine[at]] < events.end[region])
            ):
                starts.append(int(events.start[region]))
                ends.append(int(min(events.start[mine[at]], events.end[region])))
    return union((np.array(starts, np.int64), np.array(ends, np.int64))) if starts else EMPTY


def share_before_graphs(t: Tables, pieces: Intervals) -> float:
    """Return the share of idle pieces in which a compiled function had not launched its graph yet."""
    whole = total(pieces)
    return total(intersect(pieces, before_graphs(t))) / whole if whole else 0.0
