"""The CPU gets the same memory from the system again in each step.

What it looks for
    CPU only: page faults per step, times the measured cost of one. Threshold: 10% of the step.

Why it costs
    The C library returns large freed blocks to the system, which clears each page again: 0.1–3 µs per 4 kB.

What to do
    Keep freed memory: `MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=2147483647 python train.py`. The process
    then keeps the memory of its largest step.

How sure
    High for the number of faults. Some of them stay: check with `diagnose prove`. Needs `diagnose trace`.
"""

from __future__ import annotations

import numpy as np

from diagnose.analyzers.common.idle_findings import in_those
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import Intervals, covered
from diagnose.model.rules import OUTSIDE, WORK, Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.text.numbers import duration, percent

META = RuleMeta(
    id="page-faults",
    kind="run",
    order=40,
    legend=Legend(
        "the system gave memory page by page",
        heading="Page faults",
        meaning="memory that was given back to the system comes back page by page",
    ),
    needs=("steps of the whole run",),
    changes=("keep-heap",),
)


def find(t: Tables) -> list[Finding]:
    """Name how many pages a step gets, and what they take."""
    run, each_ns = t.capture.run, t.capture.known.flags.page_fault_ns
    plain = np.flatnonzero(run.state == 0) if run is not None else ()
    if t.device_id >= 0 or run is None or not each_ns or len(plain) < 5:
        return []
    of_step = run.phase("page_faults")[plain]
    faults, step_ns = float(np.median(of_step)), float(np.median(run.took_ns[plain]))
    whole, of_others = min(faults * each_ns / max(step_ns, 1.0), 1.0), _of_others(t)
    share = whole * (1 - of_others)
    if share < 0.1:
        return []
    named = f" {percent(of_others, 0)} of the new memory is of operators that other findings name."
    those = in_those(int((of_step >= faults / 2).sum()), len(plain))
    return [
        Finding(
            rule=META.id,
            title=f"Freed memory goes back to the system and is faulted in again {those}",
            lost_ns=share * t.steps.step_ns,
            count=int(faults * len(plain)),
            total_ns=int(share * t.steps.step_ns * t.steps.num),
            evidence=(
                f"A usual step has {faults:,.0f} page faults without a read from storage, "
                f"{faults * 4096 / 1e6:,.0f} MB: {percent(whole)} of it at {duration(each_ns)} each, as measured in "
                f"this process.{named if of_others else ''}",
            ),
            confidence="medium",
        )
    ]


def _of_others(t: Tables) -> float:
    """Return the share of the memory that operators make anew which is made in time that other rules account for."""
    flow = t.flow
    if flow is None:
        return 0.0
    mine = [t.causes.of(rule) for rule in (WORK, OUTSIDE)]
    others = np.delete(np.arange(len(t.causes.start)), np.concatenate(mine))
    claimed = Intervals(t.causes.start[others], t.causes.end[others])
    whole = taken = 0.0
    for value in flow.found.graph.values:
        rows = flow.rows[value.producer] if value.producer >= 0 and not value.version else ()
        if len(rows):
            start, end = t.trace.events.start[rows], t.trace.events.end[rows]
            whole += value.num_bytes
            taken += value.num_bytes * covered(claimed, start, end).sum() / max((end - start).sum(), 1)
    return taken / whole if whole else 0.0
