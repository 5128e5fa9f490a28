"""What the step takes after changes: the one place where it is computed.

The report's cards, its waterfall, `diagnose what-if` and the prediction that `diagnose prove` compares with are made
here: of the same steps, from the same base. The base is the measured step; a replay gives the share by which a change
makes it shorter. Changes are replayed together, never added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot

import numpy as np

from diagnose.model.diagnosis import middle_ns
from diagnose.model.intervals import grouped
from diagnose.replay.build import ReplayBase, replay_base
from diagnose.replay.effects import Effect
from diagnose.replay.graph import Graph, Transform
from diagnose.replay.simulate import critical_path, shares, simulate
from diagnose.replay.unrecorded import HIDDEN_EVENT_NS, USUAL_EVENT_NS, with_recording, without_events
from diagnose.tables import Tables

# Of what a change saves: what a replay misses it by. The pairs of evaluation/pages/pairs.md miss steps by 4 and 6 %.
REPLAY_ERROR = 0.05
MAX_MORE_OF_REST = 0.7  # what remains of a step never goes whole; of two repaired scripts 0.61 and 0.66 of it did
MAX_RATIO_HIDDEN = 1.1  # of recorded and unrecorded steps: beyond it what recording costs is measured


@dataclass(frozen=True, slots=True)
class Predicted:
    """The step after some changes: the graphs with the most and the least that each does, and the range between."""

    most: Graph
    least: Graph
    low_ns: float
    high_ns: float
    replayed_ns: tuple[float, float]  # from step to step in a replay of either graph
    changes: tuple[tuple[Transform, ...], tuple[Transform, ...]]  # what made either graph of the measured one

    @property
    def step_ns(self) -> float:
        """Return the prediction."""
        return middle_ns(self.low_ns, self.high_ns)


def unchanged(t: Tables) -> Predicted:
    """Return the step as it was measured."""
    base, step_ns = replay_base(t), t.steps.step_ns
    return Predicted(base.graph, base.graph, step_ns, step_ns, (base.period_ns, base.period_ns), ((), ()))


def predict(t: Tables, before: Predicted, effect: Effect) -> Predicted:
    """Return the step after one more change.

    A change saves no more than its limit: where the replay of its upper end goes beyond, the whole range is scaled to
    it, so that what the replay leaves open stays open. Both ends then move apart by what the replay itself may miss by,
    and by what the mean of a few steps may: the limit, which is such a mean, by the latter alone, and never beyond the
    step. The lower end is that of the slowest host that recording leaves possible. A change with a limit never makes
    the step longer; one without, which a user asked about, may, and is not widened.
    """
    base = replay_base(t)
    graphs = (effect.most(before.most), effect.least(before.least) if effect.least is not None else before.least)
    changes = (
        (*before.changes[0], effect.most),
        (*before.changes[1], effect.least) if effect.least is not None else before.changes[1],
    )
    replayed = [replayed_ns(t, graph, made_by) for graph, made_by in zip(graphs, changes, strict=True)]
    scale = t.steps.step_ns / base.period_ns if base.period_ns > 0 else 0.0
    most, least = ((a - b) * scale for a, b in zip(before.replayed_ns, replayed, strict=True))
    most, least = (
        min(saved, max(step_ns - least_step_ns(t, graph), 0.0))
        for saved, step_ns, graph in zip((most, least), (before.low_ns, before.high_ns), graphs, strict=True)
    )
    if effect.limit_ns < float("inf"):
        most = max(most, _behind_recording(t, before.most, graphs[0]) * scale)
        least = min(least, _with_recording_left(t, before.least, graphs[1]))
        # In order, without its negative part, and scaled so that the upper end keeps the limit.
        least, most = sorted((max(least, 0.0), max(most, 0.0)))
        within = min(effect.limit_ns / most, 1.0) if most > 0 else 0.0
        least, most = least * within, most * within
        missed = max(REPLAY_ERROR, base.error) * middle_ns(least, most)
        # Neither end is widened far beyond what the device itself takes then.
        floor_ns = min(_device_ns(base, graphs[0]), replayed[0]) * scale
        left_ns = max(before.low_ns - most, 0.0)
        room_ns = max(left_ns - floor_ns, REPLAY_ERROR * left_ns)
        limit_ns = max(effect.limit_ns, min(effect.limit_ns * (1 + effect.error.more), t.steps.step_ns))
        less_ns = min(hypot(missed, effect.error.less * least), room_ns)
        more_ns = min(hypot(missed, effect.error.more * most), room_ns, MAX_MORE_OF_REST * left_ns)
        least = max(least - less_ns, 0.0)
        most = max(most, min(most + more_ns, limit_ns))
    low_ns = max(before.low_ns - most, _least_left(before.low_ns, replayed[0] * scale))
    ends = sorted((low_ns, max(before.high_ns - least, 0.0)))
    return Predicted(*graphs, ends[0], ends[1], (replayed[0], replayed[1]), changes)


def least_step_ns(t: Tables, graph: Graph) -> float:
    """Return what the tasks of the busiest stream take in a mean step after what was done to a graph of the replay.

    No step is shorter. The steps that are replayed may idle more than the mean of all does.
    """
    base = replay_base(t)
    before_ns = _device_ns(base, base.graph)
    if not before_ns:
        return 0.0
    stream = grouped(t.tasks.stream).of
    longest_ns = float(np.bincount(stream, t.tasks.end - t.tasks.start).max()) / t.steps.num
    return min(longest_ns, (1 - t.partition.idle) * t.steps.step_ns) * _device_ns(base, graph) / before_ns


def _device_ns(base: ReplayBase, graph: Graph) -> float:
    """Return what the tasks of the busiest stream take per step: no step is shorter."""
    tasks = graph.is_task
    if not tasks.any():
        return 0.0
    stream = grouped(graph.lane[tasks]).of
    return float(np.bincount(stream, graph.duration[tasks]).max()) / base.t.steps.num


def _behind_recording(t: Tables, before: Graph, after: Graph) -> float:
    """Return what a change saves where the device hid what recording costs the host, ns; 0 where it did not.

    Where steps take no longer while they are recorded, the device was the limit, and what an event costs the host is
    not known, or only what it costs at least. A change that makes the host the limit then saves more than a replay
    with that host shows.
    """
    info, base, cost_ns = t.capture.info, replay_base(t), HIDDEN_EVENT_NS - t.capture.event_cost_ns
    if t.device_id < 0 or info is None or not info.light_ms or not info.unprofiled_ms or cost_ns <= 0:
        return 0.0
    if np.median(info.light_ms) > MAX_RATIO_HIDDEN * np.median(info.unprofiled_ms):
        return 0.0

    def step(graph: Graph) -> float:
        cheaper = without_events(base.t, graph, cost_ns)
        return base.period_of(cheaper, simulate(cheaper))

    return step(before) - step(after)


def _with_recording_left(t: Tables, before: Graph, after: Graph) -> float:
    """Return what a change saves where less was to be taken out for recording, ns; infinity where that is known.

    A host that waits for the device hides how long its own work takes: it only waits less. A change that takes the
    wait away then uncovers that work, and saves less than a replay with the quickest host shows.
    """
    base = replay_base(t)
    if t.device_id < 0 or t.capture.event_cost_error_ns <= 0:
        return float("inf")

    def step(graph: Graph) -> float:
        slower = with_recording(base.t, base.graph, graph)
        return base.period_of(slower, simulate(slower))

    whole = t.cached("step with recording left", lambda: step(base.graph))
    return (step(before) - step(after)) / whole * t.steps.step_ns if whole > 0 else float("inf")


def replayed_ns(t: Tables, graph: Graph, changes: tuple[Transform, ...]) -> float:
    """Return the time from step to step in a replay of ``graph``, which these changes made of the measured one.

    The same changes are asked for by a prescription, by the waterfall and by what a finding's cause costs: they are
    replayed once.
    """
    base = replay_base(t)
    return (
        t.cached(("replayed", changes), lambda: base.period_of(graph, simulate(graph))) if changes else base.period_ns
    )


def plain_ns(t: Tables, graph: Graph, changes: tuple[Transform, ...]) -> float:
    """Return the same without what recording costs the host, where no steps without the profiler show that cost."""
    info = t.capture.info
    if t.device_id < 0 or (info is not None and info.unprofiled_ms):
        return replayed_ns(t, graph, changes)

    def step() -> float:
        base = replay_base(t)
        plain = without_events(base.t, graph, USUAL_EVENT_NS)
        return base.period_of(plain, simulate(plain))

    return t.cached(("without recording", changes), step)


def predict_bound(before: Predicted, saves_ns: tuple[float, float], step_ns: float) -> Predicted:
    """Return the step after a change that no graph shows: it saves between these bounds of the measured step.

    What it saves may be the same as what changes before it save: of several bounds the largest holds for certain, and
    at most they add up, but to no more than goes of what remains of a step.
    """
    least, most = saves_ns
    high_ns = min(before.high_ns, step_ns - least)
    low_ns = max(before.low_ns - most, _least_left(before.low_ns, max(step_ns - most, 0.0)))
    low_ns = min(low_ns, high_ns)
    return Predicted(before.most, before.least, low_ns, high_ns, before.replayed_ns, before.changes)


def _least_left(before_ns: float, alone_ns: float) -> float:
    """Return what remains for certain of a step that one change or another leaves so much of."""
    return (1 - MAX_MORE_OF_REST) * min(before_ns, alone_ns)


def path_shares(t: Tables, predicted: Predicted) -> Mapping[str, float]:
    """Return what the critical path consists of then, by category: the mean of both ends; it sums to 1."""
    part = replay_base(t).t
    ends = [shares(part, graph, critical_path(graph, simulate(graph))) for graph in (predicted.most, predicted.least)]
    whole = [end for end in ends if end]
    return {kind: sum(end[kind] for end in whole) / len(whole) for kind in whole[0]} if whole else {}
