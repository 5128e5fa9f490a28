"""What rules of a busy device share: tasks by name, and the finding made of some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from diagnose.analyzers.common.locate import ranked_places
from diagnose.model.arrays import Rows
from diagnose.model.diagnosis import Confidence, Facts, Finding
from diagnose.model.intervals import distinct, grouped, intersect, total, union
from diagnose.tables import Tables
from diagnose.text.numbers import duration, percent, plural

SHAPES_DOUBT = "without the shapes of operators, which kernels read what others write is inferred"


@dataclass(frozen=True)
class KernelRule:
    """How a rule of a busy device describes itself: what ``kernel_finding`` cannot derive."""

    rule: str
    title: str
    min_share: float = 0.05  # of the busy time, or of the step with the host's time; less is not worth a line
    kept_ns: float = 0.0  # of the tasks' time, what stays when the cause is gone
    evidence: Sequence[str] = ()
    confidence: Confidence = "high"
    facts: Facts = field(default_factory=dict)
    doubt: str = ""


def busy_part(t: Tables, tasks: Rows) -> int:
    """Return for how long (ns over the window) one of the tasks ran; tasks side by side count once."""
    return total(intersect(union((t.tasks.start[tasks], t.tasks.end[tasks])), t.occupancy.busy))


def is_minor(t: Tables, tasks: Rows, min_share: float) -> bool:
    """Return whether tasks take less than this share of the busy time, and of the step with the host.

    Where the device idles the host takes as much for a short kernel as for a long one: of idle time the tasks have
    their share of the launches. What their finding costs is replayed, and what costs little is not listed.
    """
    time, busy = busy_part(t, tasks), total(t.occupancy.busy)
    if not len(tasks) or not busy:
        return True
    window = t.steps.window[1] - t.steps.window[0]
    launches, mine = (distinct(rows[rows >= 0]) for rows in (t.tasks.launch, t.tasks.launch[tasks]))
    issuing = (window - busy) * len(mine) / max(len(launches), 1)
    return time < min_share * busy and time + issuing < min_share * window


def kernel_finding(t: Tables, waste: KernelRule, tasks: Rows) -> list[Finding]:
    """Return the finding of these tasks, or nothing where they take too little; they are the rule's from then on."""
    time, busy = busy_part(t, tasks), total(t.occupancy.busy)
    length = (t.tasks.end - t.tasks.start)[tasks]
    if is_minor(t, tasks, waste.min_share):
        return []
    kept = min(waste.kept_ns / max(int(length.sum()), 1), 1.0)
    longest = np.argsort(-length, kind="stable")
    longest = longest[t.tasks.launch[tasks[longest]] >= 0][:200]
    rows, events = t.tasks.launch[tasks[longest]], t.trace.events
    places = ranked_places(t, events.thread[rows], events.start[rows], length[longest])
    return [
        Finding(
            rule=waste.rule,
            title=waste.title,
            lost_ns=time * (1 - kept) / t.steps.num,
            count=len(tasks),
            total_ns=time,
            median_ns=int(np.median(length)),
            tasks=tasks,
            evidence=(
                f"{plural(len(tasks) / t.steps.num, 'kernel')} a step: {duration(time / t.steps.num)} of it, "
                f"{percent(time / busy, 0)} of the busy time.",
                *waste.evidence,
            ),
            where=tuple(where for where, _ in places[:3]),
            confidence=waste.confidence,
            doubt=waste.doubt,
            facts=waste.facts,
        )
    ]


def top_kernels(t: Tables, tasks: Rows, *, most: int = 3) -> list[str]:
    """State which kernels take the tasks' time, those of one name together."""
    ids = t.trace.events.name[t.tasks.row[tasks]]
    names, _, inverse = grouped(ids)
    cost = np.bincount(inverse, (t.tasks.end - t.tasks.start)[tasks].astype(np.float64))
    count = np.bincount(inverse)
    return [
        f"{t.trace.names[int(names[i])][:80]}: {count[i] / t.steps.num:.0f} a step, {duration(cost[i] / t.steps.num)}."
        for i in np.argsort(-cost)[:most].tolist()
    ]
