"""What torch.compile's guards check that fail from step to step."""

from __future__ import annotations

import re
from collections.abc import Sequence

from diagnose.model.diagnosis import Facts
from diagnose.model.records import VersionsRecord

# What a guard checks, by the words of torch.
_CHECKS = {
    "size": re.compile(r"(size|stride) mismatch|\.size\(\)|\.shape\b"),
    "object": re.compile(r"___check_(type|obj)_id|^\S+ is "),
    "number": re.compile(r"== -?\d"),
}


def said_of(versions: Sequence[VersionsRecord]) -> tuple[list[str], Facts]:
    """Return the evidence of functions that were compiled again, and what a change needs to know of the first one."""
    if not versions:
        return [], {}
    guard = versions[0].guards[0]
    kind = next((kind for kind, words in _CHECKS.items() if words.search(guard)), "other")
    texts = [
        f"{each.function}, line {each.line}, has {each.num} versions. The guard that failed last: {each.guards[0]}."
        for each in versions
    ]
    return texts, {"kind": kind, "guard": guard}
