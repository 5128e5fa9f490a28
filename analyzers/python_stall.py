"""User Python between operators keeps the device waiting.

What it looks for
    Idle in intervals of at least a millisecond (a tenth of the step in short steps) in which the training thread ran
    no operator and made no call: preprocessing, logging, checkpoints, evaluation code, files. Operators that launch
    nothing, such as views and slices of the host's tensors, do not end an interval unless they cover half of it.

Why it costs
    Python runs while nothing is queued.

What to do
    What computes in Python: make it cheaper (vectorised, or less often), or do it in another process, as the
    DataLoader's workers are; a thread would only take turns with the training. What waits for files or sockets: a
    background thread. What lies within a model's forward, the loss or the backward is wanted at once: vectorise it, or
    compute once what stays the same; no thread and no process takes it over. A list that the line searches becomes a
    set, and a deque that it indexes a list.

How sure
    High where the sampler or recorded frames name the line; medium where marks surround it or it comes back; low where
    only the launching thread's own operators before and behind it show that the thread lived.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding
from diagnose.analyzers.common.sample_work import lookup_at
from diagnose.model.diagnosis import Confidence, Facts, Finding, Where
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, intersect, overlaps, total, union
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.host_gaps import (
    gaps_of_every_step,
    min_host_gap_ns,
    ready_share,
    recurring_gaps,
    waiting_share,
)
from diagnose.tables.names import TO_HOST
from diagnose.tables.passes import share_in_passes
from diagnose.tables.run_steps import is_loop_head
from diagnose.text.numbers import duration, percent, plural

META = RuleMeta(
    id="python-stall",
    kind="idle",
    order=120,
    host_order=80,
    legend=Legend("Python code ran between operators", "#2fa36b"),
    changes=("save-in-background", "load-mapped", "python-off-the-loop"),
    also=("save-less-often",),
    inflated=True,
    cause="between-operators",
    pause="python",
    paced_by="host",
)

MIN_SAMPLES = 5
MAX_NUMBER_BYTES = 64
MAX_NAMED = 3


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle in long intervals between operators, where something shows that the thread was in the loop.

    Where the thread was runnable but not scheduled for as long as that, they may be nothing but that, and those alone
    are claimed that come at the same place of most steps.
    """
    found = intersect(intersect(left, t.gaps.unlaunched()), t.python_gaps)
    if total(found) > ready_share(t) * (t.steps.window[1] - t.steps.window[0]):
        return found
    return intersect(found, gaps_of_every_step(t))


def find(t: Tables) -> list[Finding]:
    """Name the idle time of Python between operators."""
    intervals = t.host_gaps
    text = (
        f"{plural(len(intervals.start), 'interval')} of over {min_host_gap_ns(t) / 1e6:.1f} ms without an "
        f"operator, {duration(total(intervals) / t.steps.num)} a step."
    )
    title = "Python between operators holds the step up"
    rule = IdleRule(
        META.id,
        title,
        probe="middle",
        confidence=_confidence(t),
        evidence=lambda t, o: [text, *_idle_operators(t, o.pieces)],
        facts=_facts(t),
        cause=META.cause if not ready_share(t) else None,
    )
    return [  # a loop's head comes last: what it fetches another line made
        _with_lookup(t, replace(found, where=tuple(sorted(found.where, key=lambda place: is_loop_head(place.code)))))
        for found in idle_finding(t, rule)
    ]


def _with_lookup(t: Tables, found: Finding) -> Finding:
    """Return the finding with the list or the deque that its first line goes through each time, if it does."""
    first = found.where[0] if found.where else Where()
    lookup = lookup_at(t, [(first.file, first.line)]) if first.file and first.line else {}
    if not lookup:
        return found
    does = "Indexing the deque" if lookup.get("indexed") else "Searching the list"
    title = f"{does} {lookup['name']} takes longer the more it holds"
    made = Where(first.file, int(str(lookup["built"])))
    return replace(found, title=title, where=(first, made, *found.where[1:]), facts={**found.facts, "lookup": lookup})


def _idle_operators(t: Tables, pieces: Intervals) -> list[str]:
    """Name the operators within the pieces: they launch nothing."""
    events, rows = t.trace.events, t.host_rows(Kind.OP)
    rows = rows[overlaps(pieces, events.start[rows], events.end[rows])]
    if not len(rows):
        return []
    share = total(intersect(t.covering(rows), pieces)) / total(pieces)
    names = Counter(t.name(row) for row in rows.tolist())
    listed = ", ".join(f"{name} ({num:,}×)" for name, num in names.most_common(MAX_NAMED))
    return [f"Operators that launch nothing cover {percent(share)} of them: {listed}."]


def _confidence(t: Tables) -> Confidence:
    """Return high where frames or samples show most of the Python, medium where marks or its coming back show it."""
    rows = t.causes.of(META.id)
    pieces = Intervals(t.causes.start[rows], t.causes.end[rows])
    if t.capture.samples is not None or _is_mostly(pieces, t.covering(t.host_rows(Kind.PYTHON))):
        return "high"
    marked = union(t.covering(t.host_rows(Kind.ANNOTATION)), recurring_gaps(t))
    return "medium" if _is_mostly(pieces, marked) else "low"


def _is_mostly(pieces: Intervals, shown: Intervals) -> bool:
    return 2 * total(intersect(pieces, shown)) > total(pieces)


def _facts(t: Tables) -> Facts:
    """Return the share of the samples there that found the thread waiting, and shares of the time.

    These are of what follows a read, of what lies between the forward and the backward of an operator, and of an
    optimizer's steps. The share of samples is None where there are too few.
    """
    rows = t.causes.of(META.id)
    pieces = Intervals(t.causes.start[rows], t.causes.end[rows])
    seen, waiting = waiting_share(t, pieces)
    num = int(seen.sum())
    return {
        "waiting_share": int(waiting.sum()) / num if num >= MIN_SAMPLES else None,
        "after_read": _share_after_reads(t, pieces),
        "in_pass": share_in_passes(t, pieces),
        "has_device": t.device_id >= 0,
        "in_optimizer": total(intersect(pieces, t.updates)) / max(total(pieces), 1),
    }


def _share_after_reads(t: Tables, pieces: Intervals) -> float:
    """Return the share of the idle time before which the last work that was queued is a copy of data to the host.

    The Python there works on what the device computed in this step: it cannot come before the step. A single number, as
    a loss that is printed, is nothing to work on.
    """
    if t.device_id < 0 or not len(pieces.start):
        return 0.0
    queued = np.flatnonzero(t.tasks.launch >= 0)
    start = t.trace.events.start[t.tasks.launch[queued]]
    order = np.argsort(start, kind="stable")
    is_read = t.tasks_matching(TO_HOST) & (t.trace.events.size[t.tasks.row] > MAX_NUMBER_BYTES)
    reads = np.append(is_read[queued[order]], False)
    last = np.searchsorted(start[order], pieces.start) - 1
    length = pieces.end - pieces.start
    return float(length[reads[last]].sum() / length.sum())
