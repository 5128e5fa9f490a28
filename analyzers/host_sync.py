"""The CPU waits for the GPU, and then the GPU waits for the CPU.

What it looks for
    Gaps that start within 50 µs of the end of a blocking call: `cudaStreamSynchronize`, `cudaDeviceSynchronize` or a
    blocking copy.

Why it costs
    The call returns when the GPU has finished all queued work. The GPU is then idle until the CPU launches again.

What to do
    Avoid `.item()`, `.cpu()`, `print(loss)`, `if tensor:`, `nonzero` and boolean indexing in the loop. Read values one
    step later, or keep them on the GPU. Remove `torch.cuda.synchronize()`.

How sure
    High.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleGaps, IdleRule, idle_finding, idle_gaps_of
from diagnose.model.arrays import Mask, Rows
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind
from diagnose.model.host_reads import SHARES, WaitsFor, read_by
from diagnose.model.intervals import EMPTY, Intervals, covered, intersect, union
from diagnose.model.limits import AT_ONCE_NS
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.host_gaps import host_compute
from diagnose.tables.names import LAUNCH, STEP_MARK
from diagnose.tables.syncs import reads_nothing, waits_for_host_copies

META = RuleMeta(
    id="host-sync",
    kind="idle",
    order=100,
    legend=Legend("the host waited for the device to drain"),
    changes=("defer-sync", "stay-on-device", "remove-synchronize", "prefetch-to-device"),
    cause="device-wait",
)
_EXCHANGE = re.compile(r"^record_param_comms|^c10d::(?!barrier)|^nccl:|all_?to_?all.*init", re.IGNORECASE)
_ALL_TO_ALL = re.compile(r"all_?to_?all", re.IGNORECASE)


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim the host's part of gaps that a blocking call's return begins.

    A gap that Python or operators of the host fill to a half is theirs, whatever began it.
    """
    gaps, events, calls = t.gaps, t.trace.events, _by_end(t)
    if not len(calls):
        return EMPTY
    drained = gaps.start - t.late_by
    call = calls[np.minimum(np.searchsorted(events.end[calls], drained), len(calls) - 1)]
    mine = (events.start[call] <= drained) & (events.end[call] >= drained)
    mine &= events.end[call] - drained <= AT_ONCE_NS
    if not mine.any():
        return EMPTY
    work = covered(union(t.host_gaps, host_compute(t)), gaps.start, gaps.queued_at)
    mine &= 2 * work < np.maximum(gaps.end - gaps.start, 1)
    return intersect(left, gaps.host_part(mine))


def find(t: Tables) -> list[Finding]:
    """Name the idle time after blocking calls with the operators that made them.

    Their facts are what the calls wait for: that of most of the idle after them, and the shares of two reasons.
    """
    o, facts, texts = idle_gaps_of(t, META.id), dict[str, object](), list[str]()
    if len(o.gap):
        texts, cost = _calls(t, o), Counter[WaitsFor]()
        calls = _last_calls(t, o)
        reasons = [read_by(map(t.name, _around(t, row))) for row in calls.tolist()]
        known: tuple[tuple[WaitsFor, Mask], ...] = (
            ("synchronize", reads_nothing(t, calls)),
            ("exchange", _before_exchanges(t, calls)),
            ("copy", waits_for_host_copies(t, calls)),
        )
        for reason, which in known:  # the last one counts
            for i in np.flatnonzero(which).tolist():
                reasons[i] = reason
        for reason, lost in zip(reasons, o.lost.tolist(), strict=True):
            cost[reason] += lost
        facts = {name: cost[reason] / max(cost.total(), 1) for name, reason in SHARES.items()}
        facts["waits_for"] = max(cost, key=lambda reason: cost[reason])
    title = "The CPU synchronizes with the GPU, which then idles"
    return idle_finding(t, IdleRule(META.id, title, probe="start", evidence=texts, facts=facts))


def _by_end(t: Tables) -> Rows:
    """Return the blocking calls in the order of their ends."""
    calls = t.blocking_calls
    return calls[np.argsort(t.trace.events.end[calls], kind="stable")]


def _last_calls(t: Tables, o: IdleGaps) -> Rows:
    """Return for each idle gap the blocking call that its gap begins after."""
    events, calls = t.trace.events, _by_end(t)
    at = np.searchsorted(events.end[calls], t.gaps.start[o.gap] - t.late_by)
    found: Rows = calls[np.minimum(at, len(calls) - 1)]
    return found


def _around(t: Tables, call: int) -> list[int]:
    """Return what was open on a call's thread when it began, outermost first, but for the step's mark."""
    events = t.trace.events
    layers = t.work_layers.get(int(events.thread[call]))
    around = layers.at(int(events.start[call])) if layers else ()
    return [row for row in around if not STEP_MARK.match(t.name(row))]


def _before_exchanges(t: Tables, calls: Rows) -> Mask:
    """Return after which calls the same annotation begins a collective, or an all-to-all comes before any launch.

    What is read right before an all-to-all is how much each rank gets. Annotations are the outermost ones.
    """
    events = t.trace.events
    own = ([row for row in _around(t, call) if events.kind[row] == Kind.ANNOTATION] for call in calls.tolist())
    ends = events.end[[rows[0] if rows else call for rows, call in zip(own, calls.tolist(), strict=True)]]
    begun = np.sort(events.start[t.calls(_EXCHANGE, Kind.OP, Kind.ANNOTATION)], kind="stable")
    last = np.iinfo(np.int64).max
    shuffles, launches = (
        np.append(np.sort(events.start[rows], kind="stable"), last)
        for rows in (t.calls(_ALL_TO_ALL, Kind.OP, Kind.ANNOTATION), t.calls(LAUNCH))
    )
    shuffle, launch = (at[np.searchsorted(at, events.end[calls])] for at in (shuffles, launches))
    found: Mask = np.searchsorted(begun, events.end[calls]) < np.searchsorted(begun, ends)
    return found | (shuffle < launch)


def _calls(t: Tables, o: IdleGaps) -> list[str]:
    parents = Counter[str]()
    for row in _last_calls(t, o).tolist()[:500]:
        ops = [name for name in map(t.name, _around(t, row)) if name != t.name(row)]
        parents[f"{ops[0]} in {t.name(row)}" if ops else t.name(row)] += 1
    per_step = len(t.in_window(t.blocking_calls)) / t.steps.num
    listed = ", ".join(f"{name} ({count}×)" for name, count in parents.most_common(3))
    return [f"{per_step:.1f} blocking calls per step; the idle begins as these return: {listed}."]
