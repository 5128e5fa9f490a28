"""User Python between operators keeps the device waiting.

What it looks for
    Idle in stretches of at least a millisecond (a tenth of the step in short steps) in which the training thread ran
    no operator and made no call: preprocessing, logging, checkpoints, evaluation code, files.

Why it costs
    Python runs while nothing is queued.

What to do
    Do it in the DataLoader's workers, in a thread or process of its own, less often, or vectorised on the device.

How sure
    High where the sampler or recorded frames name the line; medium where the trace only shows that no operator ran.
"""

from __future__ import annotations

from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding
from diagnose.model.diagnosis import Facts, Finding
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, intersect, total, union
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.host_gaps import host_gaps, min_host_gap_ns, ready_share, recurring_gaps, waiting_share

META = RuleMeta(
    id="python-stall",
    kind="idle",
    order=120,
    host_order=80,
    legend=Legend("Python code ran between operators", "#2fa36b"),
    changes=("save-in-background", "load-mapped", "python-off-the-loop"),
    inflated=True,
    cause="between-operators",
    paced_by="host",
)

MIN_SAMPLES = 5


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle in long stretches between operators, where something shows that the thread was in the loop.

    Frames and annotations around them show it, and that they come back before the same operator. Where the thread was
    runnable but not scheduled for as long as that, they may be nothing but that, and none is claimed.
    """
    seen = host_gaps(t)
    if t.capture.samples is None:
        seen = union(intersect(seen, t.covering(t.host_rows(Kind.PYTHON, Kind.ANNOTATION))), recurring_gaps(t))
    found = intersect(intersect(left, t.gaps.unlaunched()), seen)
    return EMPTY if total(found) <= ready_share(t) * (t.steps.window[1] - t.steps.window[0]) else found


def find(t: Tables) -> list[Finding]:
    """Name the idle time of Python between operators."""
    stretches = host_gaps(t)
    text = (
        f"{len(stretches.start)} stretches of over {min_host_gap_ns(t) / 1e6:.1f} ms without an operator, "
        f"{total(stretches) / t.steps.num / 1e6:.2f} ms a step."
    )
    title = "Python between operators holds the step up"
    return idle_finding(t, IdleRule(META.id, title, probe="middle", evidence=lambda _t, _o: [text], facts=_facts(t)))


def _facts(t: Tables) -> Facts:
    """Return the share of the samples there that found the thread waiting, None where there are too few."""
    rows = t.causes.of(META.id)
    seen, waiting = waiting_share(t, Intervals(t.causes.start[rows], t.causes.end[rows]))
    num = int(seen.sum())
    return {"waiting_share": int(waiting.sum()) / num if num >= MIN_SAMPLES else None}
