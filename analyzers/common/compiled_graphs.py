"""What calling compiled graphs costs besides what they compute: guards, wrappers, a node of autograd."""

from __future__ import annotations

import re

import numpy as np

from diagnose.model.arrays import Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, among, contains, subtract
from diagnose.tables import Tables

ENTERED = re.compile(r"^Torch-Compiled Region")
_WRAPS = re.compile(r"^(TorchDynamo Cache Lookup|Torch-Compiled Region|CompiledFunction(Backward)?$|AOTDispatcher )")


def graphs(t: Tables) -> Rows:
    """Return the calls of compiled graphs in the window."""
    return t.in_window(t.calls(ENTERED, Kind.OP, Kind.ANNOTATION))


def entering_and_computing(t: Tables) -> tuple[Intervals, Intervals]:
    """Return when graphs are looked up and entered and compute nothing, and when operators within them run."""
    wraps = t.calls(_WRAPS, Kind.OP, Kind.ANNOTATION)
    entering = t.covering(wraps)
    others = t.host_rows(Kind.OP)
    start = t.trace.events.start[others]
    inside = t.covering(others[contains(entering, start) & ~among(others, wraps)])
    return subtract(entering, inside), inside


def last_share(time: Intervals, share: float) -> Intervals:
    """Return the last part of each interval."""
    return Intervals(time.end - ((time.end - time.start) * share).astype(np.int64), time.end)
