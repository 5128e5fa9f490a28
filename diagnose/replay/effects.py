"""What a change makes of a graph, at least and at most: a share of a cause goes, or single tasks take less.

What a finding costs may itself be off: few steps were recorded, and recording them took time. What a step loses is a
mean of the recorded steps, and a run has others: it lies as much above that mean as below it. So a recorded loss is no
upper end of what a change saves, and no lower one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Floats, Ints
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, covered
from diagnose.model.limits import MIN_RECURRENCES
from diagnose.model.rules import FREES_HOST, Cause
from diagnose.model.statistics import mean_error
from diagnose.replay.build import replay_base
from diagnose.replay.graph import Graph, Transform
from diagnose.replay.transforms import remove_cause, scale_host, scale_pauses, shorten_tasks
from diagnose.replay.unrecorded import HIDDEN_EVENT_NS
from diagnose.tables import Tables
from diagnose.tables.host_gaps import loads_in_process, waits_for_workers
from diagnose.tables.run_steps import MIN_RUN_STEPS as MIN_PLAIN
from diagnose.tables.run_steps import PLAIN, usable_steps
from diagnose.text.numbers import percent

# Without a device: what the rest of the step gains at most where what is gone no longer takes its caches and pages, as
# a share of the rest, and of what is saved. Of twelve repaired fixtures the rest took 0 to 43 % less
# (evaluation/pages/pairs.md). What is only done elsewhere takes most of them all the same.
REST_GAINS, MAX_GAIN, MAX_GAIN_MOVED = 0.45, 0.3, 0.1
MAX_ERROR = 1.0  # of what comes in one step of ten: the quantile stands for means of values that are more alike


class CostError(NamedTuple):
    """Shares by which a finding may cost less and more per step than it says."""

    less: float = 0.0
    more: float = 0.0


EXACT = CostError()


def cost_error(t: Tables, finding: Finding, cause: Cause, bare_ns: float, *, is_moved: bool = False) -> CostError:
    """Return by which shares a finding may cost less or more per step than the recorded steps show, 95 %.

    ``bare_ns`` is the step without what recording cost. Loading on the training thread is timed in steps without the
    # Whose costs differ: the quantile for two is 12.7 standard errors, which states nothing.
    profiler too: what it takes of those is within both ends. Nothing is known of fewer than `MIN_RECURRENCES` steps.
    ``is_moved``: what the finding is about is done elsewhere, and not gone.
    """
    part = replay_base(t).t
    if finding.share is not None or finding.lost_ns <= 0:
        return EXACT
    sampled = 0.0
    if part.steps.num >= MIN_RECURRENCES:
        edges = np.append(part.steps.start, part.steps.window_end)
        # The time of each step that the finding's rule accounts for: without the device, or without work.
        inside = covered(t.causes.pieces(finding.rule), edges[:-1], edges[1:])
        of_causes = inside.astype(np.float64)
        sampled = min(mean_error((of_causes + _of_tasks(t, finding, edges)).tolist()), MAX_ERROR)
    unrecorded = _plain_loading(t) * bare_ns / finding.lost_ns if cause == "loading" else 0.0
    rest_ns = max(bare_ns - finding.lost_ns, 0.0)
    most_gained = MAX_GAIN_MOVED if is_moved else MAX_GAIN
    gains = min(REST_GAINS * rest_ns / finding.lost_ns, most_gained) if t.device_id < 0 else 0.0
    return CostError(
        less=max(sampled, 1 - unrecorded if unrecorded else 0.0, _recording_left(t, finding)),
        more=max(sampled, min(unrecorded - 1, MAX_ERROR)) + gains,
    )


def _recording_left(t: Tables, finding: Finding) -> float:
    """Return which share of a cost without a device may be what recording its events took, where none was taken out."""
    if t.device_id >= 0 or t.capture.event_cost_ns:
        return 0.0
    rows = t.causes.of(finding.rule)
    begun = t.trace.events.start[t.host_rows(Kind.OP, Kind.ANNOTATION)]
    inside = np.searchsorted(begun, t.causes.end[rows]) - np.searchsorted(begun, t.causes.start[rows])
    per_step = float(inside.sum()) / max(t.steps.num, 1)
    return min(per_step * HIDDEN_EVENT_NS / finding.lost_ns, 1.0)


def _plain_loading(t: Tables) -> float:
    """Return the share of steps without the profiler that loading takes on the training thread; 0 where not timed."""
    run = t.capture.run
    if run is None or t.device_id >= 0 or not loads_in_process(t):
        return 0.0
    rows = np.flatnonzero(usable_steps(run, t.capture) & (run.state == PLAIN) & (run.step_ns > 0))
    if len(rows) < MIN_PLAIN:
        return 0.0
    return float(np.median(run.phase("loading")[rows] / run.step_ns[rows]))


def _of_tasks(t: Tables, finding: Finding, edges: Ints) -> Floats:
    """Return the time of the device tasks that the finding accounts for, by the step that they end in."""
    start, end = t.tasks.start[finding.tasks], t.tasks.end[finding.tasks]
    step = np.searchsorted(edges, end, side="left") - 1
    inside = (step >= 0) & (step < len(edges) - 1)
    return np.bincount(step[inside], (end - start)[inside].astype(np.float64), len(edges) - 1).astype(np.float64)


class Effect(NamedTuple):
    """What a change makes of a graph."""

    least: Transform | None  # None: at least nothing changes
    most: Transform
    limit_ns: float = float("inf")  # what it can save at most, per step
    assumption: str = ""  # what the two ends rest on, one sentence
    error: CostError = EXACT  # how far the cost, of the few steps that were recorded, may be off


def effect_of_share(t: Tables, finding: Finding, cause: Cause, shares: tuple[float, float]) -> Effect | None:
    """Return the effect of taking a share of the cause away, at least and at most; None where no graph shows it."""
    least, most = shares
    transform = remove_cause(t, finding, cause, most)
    if transform is None:
        return None
    part = f"{percent(least, 0)} to {percent(most, 0)}" if least < most else f"{percent(most, 0)}"
    assumption = f"Assumes that the change removes {part} of this cause."
    limit_ns = limit_of(t, finding, frees_host=cause in FREES_HOST or finding.without is not None)
    if cause == "device-wait":
        assumption, limit_ns = "Nothing else needs the value at once.", t.steps.step_ns
    return Effect(remove_cause(t, finding, cause, least), transform, limit_ns, assumption)


def limit_of(t: Tables, finding: Finding, *, frees_host: bool) -> float:
    """Return what a change saves at most, ns per step.

    What makes the host faster lets it run ahead, which may cover more idle time than the cause itself left behind: the
    replay shows how much, where it shows what the step waits for. Where the step waits for workers that load, it shows
    that no longer: a host that runs ahead would wait for them. Anything else saves at most what its finding costs.
    """
    whole = frees_host and t.device_id >= 0 and replay_base(t).is_reliable
    return (
        t.steps.step_ns if whole and not waits_for_workers(t, finding.rule) else min(finding.lost_ns, t.steps.step_ns)
    )


def effect_of_tasks(
    t: Tables,
    finding: Finding,
    tasks: npt.NDArray[np.intp],
    spared: tuple[Floats, Floats],
    assumption: str,
    *,
    host: Intervals | None = None,
    host_left: tuple[float, float] = (1.0, 1.0),
    pauses_left: tuple[float, float] = (1.0, 1.0),
    frees_host: bool = False,
) -> Effect:
    """Return the effect of tasks that take so much less, ns each, at least and at most.

    ``host_left`` is what stays, at least and at most saved, of the host's work in ``host``; None stands for the time
    that the finding names. ``pauses_left`` is the same of the pauses before the tasks on their streams: a kernel that
    is no longer launched leaves none. ``frees_host`` is that of ``limit_of``.
    """
    order = np.argsort(t.tasks.row[tasks], kind="stable")
    rows = t.tasks.row[tasks][order]
    pieces = t.causes.pieces(finding.rule) if host is None else host

    def transform(less: Floats, host_factor: float, pause_factor: float) -> Transform:
        def all_three(graph: Graph) -> Graph:
            if len(rows):
                graph = scale_pauses(shorten_tasks(graph, rows, less[order]), rows, pause_factor)
            return scale_host(graph, pieces, host_factor) if host_factor < 1 and len(pieces.start) else graph

        return all_three

    return Effect(
        transform(spared[0], host_left[0], pauses_left[0]),
        transform(spared[1], host_left[1], pauses_left[1]),
        limit_of(t, finding, frees_host=frees_host),
        assumption,
    )
