"""What torch.compile's guards check that fail from step to step."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.model.diagnosis import Facts
from diagnose.model.guards import checked_by
from diagnose.model.records import VersionsRecord


def said_of(versions: Sequence[VersionsRecord]) -> tuple[list[str], Facts]:
    """Return the evidence of functions that were compiled again, and what a change needs to know of the first one."""
    if not versions:
        return [], {}
    guard = versions[0].guards[0]
    texts = [
        f"{each.function}, line {each.line}, has {each.num} versions. The guard that failed last: {each.guards[0]}."
        for each in versions
    ]
    return texts, {"kind": checked_by(guard), "guard": guard}
