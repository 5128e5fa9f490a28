"""What is left of calls that take device memory from the driver and give it back, once the cache fits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables

__all__ = ["without_regrowth"]

_GIVES_BACK = r"Free|Unmap|Release|Unregister"


def without_regrowth(t: Tables, finding: Finding) -> Effect | None:
    """Return the effect of a cache that takes nothing again that was given back; None for other findings.

    Calls that take more than was given back stay at least, since memory still grows there. Their share is that of the
    recorded calls.
    """
    import numpy as np

    from diagnose.analyzers import META
    from diagnose.replay.effects import effect_of_share
    from diagnose.tables.calls import allocations

    if META[finding.rule].cause != "allocation":
        return None
    calls = t.in_window(allocations(t))
    length = (t.trace.events.end - t.trace.events.start)[calls]
    gives = np.array([re.search(_GIVES_BACK, t.name(call)) is not None for call in calls.tolist()], bool)
    num_taken, num_given = int((~gives).sum()), int(gives.sum())
    growing = max(num_taken - num_given, 0) / max(num_taken, 1)
    least = 1 - growing * float(length[~gives].sum()) / max(float(length.sum()), 1.0)
    return effect_of_share(t, finding, "allocation", (least, 1.0))
