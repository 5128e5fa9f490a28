"""What the step would take after changes, and what a finding costs: both by replay, never by adding gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import Intervals
from diagnose.replay.build import build
from diagnose.replay.graph import Graph
from diagnose.replay.remove_cause import HOST_WORK, Change, syncs_before
from diagnose.replay.simulate import simulate
from diagnose.replay.transforms import drop_waits, scale_host, typical_delays
from diagnose.tables import Tables

__all__ = ["Change", "PredictedStep", "graph_of", "predict", "replayed_savings", "without_cause"]


@dataclass(frozen=True, slots=True)
class PredictedStep:
    """A step after changes."""

    step_ns: float  # mean over the window
    error: float  # share by which a replay with usual instead of measured delays misses the measured window


def graph_of(t: Tables) -> Graph:
    """Return the graph of the window, built once."""
    return t.cached("replay", lambda: build(t))


def predict(t: Tables, changes: Sequence[Change]) -> PredictedStep:
    """Replay all changes together; without any this is the measured step."""
    graph = graph_of(t)
    return PredictedStep(_step_ns(t, _changed(graph, changes)), _error(t))


def replayed_savings(t: Tables, finding: Finding) -> tuple[float, float] | None:
    """Return how much shorter the step gets without the finding's cause: (least, most) in ns per step.

    The cause is taken away whole: a prescription that takes away a part of it saves less. The two ends come from two
    replays, with the measured delays and with the usual ones. Both lie between 0 and the step. None for a rule whose
    cause is not work or waiting of the host, and where the trace has no device.
    """
    if t.device_id < 0:
        return None
    change = without_cause(t, finding.rule)
    if change is None:
        return None
    saved = []
    for graph in (graph_of(t), typical_delays(graph_of(t))):
        step = _step_ns(t, graph)
        share = 1 - _step_ns(t, change(graph)) / step if step > 0 else 0.0
        saved.append(min(max(share, 0.0), 1.0) * t.steps.step_ns)
    return min(saved), max(saved)


def without_cause(t: Tables, rule: str) -> Change | None:
    """Return the change that takes a rule's cause away, None where it is not work or waiting of the host."""
    rows = t.causes.of(rule)
    pieces: Intervals = Intervals(t.causes.start[rows], t.causes.end[rows])
    if rule == "host-sync":
        return partial(drop_waits, calls=syncs_before(t, pieces))
    if rule in HOST_WORK:
        return partial(scale_host, stretches=pieces, factor=0.0)
    return None


def _changed(graph: Graph, changes: Sequence[Change]) -> Graph:
    for change in changes:
        graph = change(graph)
    return graph


def _step_ns(t: Tables, graph: Graph) -> float:
    return simulate(graph).window_ns / t.steps.num


def _error(t: Tables) -> float:
    def look() -> float:
        return abs(_step_ns(t, typical_delays(graph_of(t))) / t.steps.step_ns - 1)

    return t.cached("replay error", look)
