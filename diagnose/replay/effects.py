"""What a prescription changes in a graph: at least, at most, and in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import Intervals
from diagnose.replay.graph import Graph
from diagnose.replay.remove_cause import shorten_tasks
from diagnose.replay.transforms import scale_host
from diagnose.tables import Tables

__all__ = ["Change", "Effect", "Floats", "of_tasks"]

Change: TypeAlias = Callable[[Graph], Graph]
Floats: TypeAlias = npt.NDArray[np.float64]


class Effect(NamedTuple):
    """What a prescription changes in a graph; None where no graph can tell."""

    least: Change | None
    most: Change | None
    middle: Change | None
    most_ns: float  # what it can save at most, per step
    assumes: str


def of_tasks(  # noqa: PLR0913  # each says something else
    t: Tables,
    finding: Finding,
    tasks: npt.NDArray[np.intp],
    spared: tuple[Floats, Floats],
    told: str,
    *,
    host: Intervals | None = None,
    left: tuple[float, float] = (1.0, 1.0),
) -> Effect:
    """Return the effect of tasks that take so much less, ns each, at least and at most.

    ``left`` is what stays, at least and at most saved, of the host's work in ``host``; None stands for the time that
    the finding names. No change saves more than its finding costs.
    """
    order = np.argsort(t.tasks.row[tasks], kind="stable")
    rows = t.tasks.row[tasks][order]
    of = t.causes.of(finding.rule)
    pieces = Intervals(t.causes.start[of], t.causes.end[of]) if host is None else host

    def change(less: Floats, factor: float) -> Change:
        def both(graph: Graph) -> Graph:
            shorter = shorten_tasks(graph, rows, less[order]) if len(rows) else graph
            return scale_host(shorter, pieces, factor) if factor < 1 and len(pieces.start) else shorter

        return both

    return Effect(
        change(spared[0], left[0]),
        change(spared[1], left[1]),
        change((spared[0] + spared[1]) / 2, sum(left) / 2),
        min(finding.lost_ns, t.steps.step_ns),
        told,
    )
