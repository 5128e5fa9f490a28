"""What a change makes of a graph, at least and at most: a share of a cause goes, or single tasks take less."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Floats
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import Intervals
from diagnose.model.rules import FREES_HOST, Cause
from diagnose.replay.base import replay_base
from diagnose.replay.graph import Graph, Transform
from diagnose.replay.remove_cause import remove_cause
from diagnose.replay.sampling import EXACT, CostError
from diagnose.replay.transforms import scale_host, scale_pauses, shorten_tasks
from diagnose.tables import Tables
from diagnose.tables.host_work import waits_for_workers
from diagnose.text.numbers import percent

__all__ = ["Effect", "effect_of_share", "effect_of_tasks", "limit_of"]


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
    limit_ns = limit_of(t, finding, frees_host=cause in FREES_HOST)
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
    of = t.causes.of(finding.rule)
    pieces = Intervals(t.causes.start[of], t.causes.end[of]) if host is None else host

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
