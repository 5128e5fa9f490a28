"""Changes that a user asks about by name: syncs of one line."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.common.locate import locate
from diagnose.replay.graph import Transform
from diagnose.replay.predict import replay_base
from diagnose.replay.transforms import drop_waits
from diagnose.tables import Tables
from diagnose.tables.syncs import blocking_calls

__all__ = ["without_syncs_at"]


def without_syncs_at(t: Tables, file: str, line: int) -> Transform | None:
    """Return the change that drops the waits for the device made at a line, None where none was recorded there."""
    calls = replay_base(t).t.in_window(blocking_calls(t))
    events = t.trace.events
    found = locate(t, events.thread[calls], events.start[calls])
    mine = np.array([w.line == line and bool(w.file) and _same(str(w.file), file) for w in found], bool)
    hit: npt.NDArray[np.intp] = calls[mine]
    return partial(drop_waits, calls=hit) if len(hit) else None


def _same(recorded: str, asked: str) -> bool:
    """Return whether a path ends with what was asked for, part by part."""
    parts = asked.replace("\\", "/").removeprefix("./").split("/")
    return recorded.replace("\\", "/").split("/")[-len(parts) :] == parts
