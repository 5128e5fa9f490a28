"""Frames that were open when the recording began: the profiler gives them the line that ran then, not their first."""

from __future__ import annotations

from diagnose.tables import Tables

__all__ = ["names_of_open_frames", "open_frames"]


def open_frames(t: Tables) -> frozenset[int]:
    """Return the training thread's frames that were open as the recording began and as its steps did.

    The profiler writes those down first, each within the one before. Their line is the one that began the recording:
    nothing of a step need run there.
    """
    found: set[int] = set()
    if not len(t.steps.start) or t.main not in t.frame_layers:
        return frozenset()
    frames, first_step, reach = t.frame_layers[t.main], t.steps.window[0], 0
    for depth, (rows, starts) in enumerate(zip(frames.rows, frames.start, strict=True)):
        row, start = int(rows[0]), int(starts[0])
        if start >= first_step or (depth and start >= reach):
            break
        reach = int(frames.event_end[row])
        if reach > first_step:
            found.add(row)
    return frozenset(found)


def names_of_open_frames(t: Tables) -> frozenset[int]:
    """Return the rows of `Trace.names` that these frames have: no other frame has such a name."""
    return frozenset(t.trace.events.name[list(t.open_frames)].tolist())
