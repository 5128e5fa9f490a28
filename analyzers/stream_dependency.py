"""A kernel waits for another stream.

What it looks for
    Gaps of at most 50 µs before a launched kernel, right after a kernel of another stream.

Why it costs
    The event between two streams takes time, and all work after it waits too.

What to do
    Call `wait_stream()` later, just before the result is used, or keep dependent work on one stream.

How sure
    Medium: the wait is inferred unless stream events were recorded.
"""

from __future__ import annotations

from diagnose.analyzers.common.advice import Advice, identical
from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import Intervals, intersect
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables

META = RuleMeta(
    id="stream-dependency",
    kind="idle",
    order=160,
    legend=Legend("a task waited for another stream"),
    changes=("wait-later",),
)
ADVICE = (
    Advice(
        id="wait-later",
        title="Wait for the other stream just before its result is used",
        numerics=identical("as long as every use comes after the wait"),
        before="torch.cuda.current_stream().wait_stream(side)\nhidden = block(x)\ny = hidden + fetched",
        after="""hidden = block(x)   # needs nothing of the other stream
torch.cuda.current_stream().wait_stream(side)
y = hidden + fetched""",
        needs="work that does not depend on the other stream",
    ),
)


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim the device's part of short gaps between tasks of different streams.

    In a gap nothing runs on any stream, so what was waited for has ended where the gap begins.
    """
    return intersect(left, t.gaps.device_part(t.gaps.stream_waits()))


def find(t: Tables) -> list[Finding]:
    """Name the idle time between dependent streams."""
    return idle_finding(t, IdleRule(META.id, "Queued work waits for another stream", confidence="medium"))
