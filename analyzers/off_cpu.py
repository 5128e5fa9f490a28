"""The training thread sleeps or waits between operators.

What it looks for
    Intervals in which at least 70% of the samples show the thread asleep or waiting. Examples: a socket, a process, a
    lock.

Why it costs
    A thread that does not run launches no kernels.

What to do
    Look at the reported line. Read files and query services ahead of time, and hold no locks in the loop.

How sure
    High with enough samples. Needs `diagnose trace`.
"""

from __future__ import annotations

from diagnose.analyzers.common.advice import Advice, identical
from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, thread_of
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import EMPTY, Intervals, intersect
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.host_gaps import waits

META = RuleMeta(
    id="off-cpu",
    kind="idle",
    order=110,
    host_order=70,
    legend=Legend("the launching thread was blocked", host_label="the training thread was blocked"),
    changes=("wait-elsewhere",),
    cause="between-operators",
    needs=("samples of the threads",),
    paced_by="host",
)
ADVICE = (
    Advice(
        id="wait-elsewhere",
        title="Move the wait out of the training thread",
        numerics=identical("if the result does not depend on this step"),
        after="""from concurrent.futures import ThreadPoolExecutor

background = ThreadPoolExecutor(8)
pending = background.submit(fetch)   # what waits, so many steps ahead that it is ready
value = pending.result()             # ready by now""",
        watch="What a thread reads must not depend on the steps that run meanwhile.",
        least=0.9,  # handing the result over takes a part
        is_moved=True,
    ),
)


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle in intervals that the thread spent off the CPU."""
    if t.capture.samples is None:
        return EMPTY
    pieces = t.host_gaps
    mine = waits(t, pieces)
    return intersect(intersect(left, t.gaps.unlaunched()), Intervals(pieces.start[mine], pieces.end[mine]))


def find(t: Tables) -> list[Finding]:
    """Name the idle time in which the training thread did not run."""
    title = f"The {thread_of(t)} is blocked between operators"
    return idle_finding(t, IdleRule(META.id, title, probe="middle"))
