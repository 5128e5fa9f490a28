"""Python's garbage collector stops the training thread.

What it looks for
    Idle inside `Python GC` records of a thread that drives the device (torch.profiler writes them with
    `record_python_gc_info` and stacks).

Why it costs
    A collection of the oldest generation visits every tracked object: hundreds of milliseconds in a program that
    holds many, and no kernel is launched meanwhile.

What to do
    Freeze what lives for the whole run after warm-up (`gc.freeze()`), and collect between steps on a schedule.

How sure
    The records are exact; whether the collections are needed depends on reference cycles in the script.
"""

from __future__ import annotations

from diagnose.findings import Finding, Prescription
from diagnose.intervals import Intervals, intersect
from diagnose.occurrences import Idle, idle_finding, removable
from diagnose.tables import Tables
from diagnose.trace import Kind

RULE = "gc-pause"


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle during collections."""
    return intersect(left, t.covering(t.host_rows(Kind.GC)))


def find(t: Tables) -> list[Finding]:
    """Name the idle time of garbage collections."""
    return idle_finding(t, Idle(RULE, "Python's garbage collector stops the training thread"))


def prescribe(finding: Finding, step_ns: float) -> list[Prescription]:
    """Freeze long-lived objects and collect on a schedule."""
    return [
        removable(
            finding,
            step_ns,
            id="schedule-gc",
            title="Freeze long-lived objects and collect between steps on a schedule",
            before="for batch in loader:\n    train_step(batch)",
            after="from diagnose.kernels.garbage import scheduled_gc\n\n"
            "with scheduled_gc() as collect:          # freezes what exists, switches automatic runs off\n"
            "    for batch in loader:\n"
            "        train_step(batch)\n"
            "        collect.step()                   # collects every so many steps, where it hurts least",
            least=0.5,
            safety="same numbers",
            needs="memory for the cycles that wait for the next collection",
            remedy="diagnose.kernels.garbage",
        )
    ]
