"""The host waits for the device, and the device then waits for the host.

What it looks for
    Gaps that begin within 50 µs of the end of a blocking call (`cudaStreamSynchronize`, `cudaDeviceSynchronize`, a
    copy that returns only when done) that was in flight on a thread that drives the device.

Why it costs
    The call returns when the queue is empty. Until the host has launched something again the device idles, and the
    lead that the host had built up is gone.

What to do
    Do not read values off the device in the loop: `.item()`, `.cpu()`, `print(loss)`, `if tensor:`, `nonzero` and
    boolean indexing all wait. Read a value a step later; keep on the device what decides a shape, a branch or the sizes
    of an exchange; leave out a synchronization that reads nothing.

How sure
    High: the call and the gap meet in time. A gap that the loader, Python or an operator of the host fills is not
    booked here: only the short restart is.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.common.idle_findings import IdleGaps, IdleRule, idle_finding, idle_gaps_of
from diagnose.model.arrays import Mask, Rows
from diagnose.model.diagnosis import Facts, Finding
from diagnose.model.events import Kind
from diagnose.model.host_reads import SHARES, WaitsFor, read_by
from diagnose.model.intervals import EMPTY, Intervals, covered, intersect, union
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.host_gaps import host_compute
from diagnose.tables.names import LAUNCH, STEP_MARK
from diagnose.tables.syncs import RETURN_NS, batched_gaps, reads_nothing, waits_for_host_copies

META = RuleMeta(
    id="host-sync",
    kind="idle",
    order=100,
    legend=Legend("the host waited for the device to drain", "#e5484d"),
    changes=("defer-sync", "stay-on-device", "remove-synchronize", "prefetch-to-device"),
    cause="device-wait",
)
_EXCHANGE = re.compile(r"^record_param_comms|^c10d::(?!barrier)|^nccl:|all_?to_?all.*init", re.IGNORECASE)
_ALL_TO_ALL = re.compile(r"all_?to_?all", re.IGNORECASE)
MIN_WORK_SHARE = 0.5  # a gap that Python or operators of the host fill to this share is theirs, whatever began it


def _begun_by_sync(t: Tables) -> npt.NDArray[np.bool_]:
    gaps, events = t.gaps, t.trace.events
    calls = t.blocking_calls
    if not len(calls) or not len(gaps.start):
        return np.zeros(len(gaps.start), bool)
    drained = gaps.start - t.late_by
    ends = np.sort(events.end[calls], kind="stable")
    i = np.minimum(np.searchsorted(ends, drained, side="left"), len(ends) - 1)
    order = np.argsort(events.end[calls], kind="stable")
    began = events.start[calls][order][i]
    return (began <= drained) & (ends[i] >= drained) & (ends[i] - drained <= RETURN_NS)


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim the host's part of gaps that a blocking call's return begins, and gaps that last until the host waits."""
    gaps, batched = t.gaps, batched_gaps(t)
    mine = _begun_by_sync(t)
    if not mine.any() and not batched.any():
        return EMPTY
    work = union(t.host_gaps, host_compute(t))
    mine &= covered(work, gaps.start, gaps.queued_at) < MIN_WORK_SHARE * np.maximum(gaps.end - gaps.start, 1)
    return intersect(left, union(gaps.host_part(mine), gaps.device_part(batched)))


def find(t: Tables) -> list[Finding]:
    """Name the idle time after blocking calls with the operators that made them."""
    title, facts = "The CPU synchronizes with the GPU, which then idles", _facts(t)
    return idle_finding(t, IdleRule(META.id, title, probe="start", evidence=_calls, facts=facts))


def _facts(t: Tables) -> Facts:
    """Return what the blocking calls wait for: that of most of the idle after them, and the shares of two reasons."""
    o = idle_gaps_of(t, META.id)
    if not len(o.gap):
        return {}
    cost = Counter[WaitsFor]()
    for reason, lost in zip(_reasons(t, _last_calls(t, o)), o.lost.tolist(), strict=True):
        cost[reason] += lost
    whole = max(cost.total(), 1)
    shares = {name: cost[reason] / whole for name, reason in SHARES.items()}
    return {**shares, "waits_for": max(cost, key=lambda reason: cost[reason])}


def _reasons(t: Tables, calls: Rows) -> list[WaitsFor]:
    """Return for each blocking call what it waits for."""
    copies, exchanges, bare = waits_for_host_copies(t, calls), _before_exchanges(t, calls), reads_nothing(t, calls)
    found: list[WaitsFor] = []
    for row, copy, exchange, alone in zip(calls.tolist(), copies, exchanges, bare, strict=True):
        if copy or exchange or alone:
            found.append("copy" if copy else "exchange" if exchange else "synchronize")
        else:
            layers = t.work_layers.get(int(t.trace.events.thread[row]))
            found.append(read_by(map(t.name, layers.at(int(t.trace.events.start[row])) if layers else ())))
    return found


def _before_exchanges(t: Tables, calls: Rows) -> Mask:
    """Return after which calls the same annotation begins a collective, or an all-to-all comes before any launch.

    What is read right before an all-to-all is how much each rank gets.
    """
    events = t.trace.events
    begun = np.sort(events.start[t.calls(_EXCHANGE, Kind.OP, Kind.ANNOTATION)], kind="stable")
    ends = np.array([_annotation_end(t, row) for row in calls.tolist()], np.int64)
    found: Mask = np.searchsorted(begun, events.end[calls]) < np.searchsorted(begun, ends)
    last = np.iinfo(np.int64).max
    shuffles = np.append(np.sort(events.start[t.calls(_ALL_TO_ALL, Kind.OP, Kind.ANNOTATION)], kind="stable"), last)
    launches = np.append(np.sort(events.start[t.calls(LAUNCH)], kind="stable"), last)
    shuffle, launch = (at[np.searchsorted(at, events.end[calls])] for at in (shuffles, launches))
    found |= shuffle < launch
    return found


def _annotation_end(t: Tables, call: int) -> int:
    """Return the end of the outermost annotation around a call, but for the step's mark; of the call where none is."""
    events = t.trace.events
    layers = t.work_layers.get(int(events.thread[call]))
    around = layers.at(int(events.start[call])) if layers else []
    own = [row for row in around if events.kind[row] == Kind.ANNOTATION and not STEP_MARK.match(t.name(row))]
    return int(events.end[own[0] if own else call])


def _last_calls(t: Tables, o: IdleGaps) -> Rows:
    """Return for each idle gap the blocking call that its gap begins after."""
    events, calls = t.trace.events, t.blocking_calls
    calls = calls[np.argsort(events.end[calls], kind="stable")]
    i = np.minimum(np.searchsorted(events.end[calls], t.gaps.start[o.gap] - t.late_by), len(calls) - 1)
    found: Rows = calls[i]
    return found


def _calls(t: Tables, o: IdleGaps) -> list[str]:
    parents = Counter(_parent(t, int(row)) for row in _last_calls(t, o).tolist()[:500])
    per_step = len(t.in_window(t.blocking_calls)) / t.steps.num
    listed = ", ".join(f"{name} ({count}×)" for name, count in parents.most_common(3))
    if 2 * int(o.lost[batched_gaps(t)[o.gap]].sum()) > int(o.lost.sum()):
        return [
            f"{per_step:.1f} blocking calls a step; work that was launched before begins only as the host waits in "
            f"these: {listed}. The driver hands launches over in batches."
        ]
    return [f"{per_step:.1f} blocking calls a step; the idle begins as these return: {listed}."]


def _parent(t: Tables, row: int) -> str:
    layers = t.work_layers.get(int(t.trace.events.thread[row]))
    names = [t.name(r) for r in layers.at(int(t.trace.events.start[row]))] if layers else []
    ops = [name for name in names if not name.startswith("ProfilerStep#") and name != t.name(row)]
    return f"{ops[0]} in {t.name(row)}" if ops else t.name(row)
