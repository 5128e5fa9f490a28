"""Takes the profiler's own time out of what findings cost.

Recording an event costs the host about a microsecond, so a step of many small operators is longer while it is
recorded. The capture also times steps that are not recorded; the difference is nobody's loss.
"""

from __future__ import annotations

import statistics
from dataclasses import replace

from diagnose.findings import Finding
from diagnose.tables import Tables
from diagnose.trace import Kind

__all__ = ["inflation_ns", "overhead_share", "without_inflation"]

# Recording costs 0.7 to 1.6 µs an event on the machines it was measured on; a larger difference between recorded and
# unrecorded steps is noise of the machine, not the profiler.
MOST_PER_EVENT_NS = 2_000
# The rules whose time is that of calling operators: where the profiler's time lands.
INFLATED = ("launch-bound", "unfused-optimizer")


def overhead_share(t: Tables) -> float | None:
    """Return how much longer recorded steps are than unrecorded ones, None where that was not measured."""
    info = t.capture.info
    if info is None or not info.light_ms or not info.unprofiled_ms:
        return None
    return statistics.median(info.light_ms) / statistics.median(info.unprofiled_ms) - 1


def inflation_ns(t: Tables) -> float:
    """Return the time that recording added to each step, ns; 0 where it was not measured."""
    info = t.capture.info
    if info is None or not info.light_ms or not info.unprofiled_ms:
        return 0.0
    added = 1e6 * (statistics.median(info.light_ms) - statistics.median(info.unprofiled_ms))
    start, end = t.steps.window
    rows = t.host_rows(Kind.OP, Kind.RUNTIME, Kind.ANNOTATION)
    began = t.trace.events.start[rows]
    num = int(((began >= start) & (began < end)).sum())
    return max(0.0, min(added, MOST_PER_EVENT_NS * num / t.steps.num))


def without_inflation(found: list[Finding], added_ns: float) -> list[Finding]:
    """Deduct the profiler's time from the findings that it lands in, in proportion to what they cost."""
    inflated = sum(f.lost_ns for f in found if f.rule in INFLATED)
    if added_ns <= 0 or inflated <= 0:
        return found
    kept = max(0.0, 1 - added_ns / inflated)
    note = f"Recording adds {added_ns / 1e6:.2f} ms to each step; that is not counted in the loss."
    return [
        replace(f, lost_ns=f.lost_ns * kept, evidence=(*f.evidence, note)) if f.rule in INFLATED else f for f in found
    ]
