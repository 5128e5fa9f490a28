"""What calling compiled graphs costs besides what they compute, and which of their guards fail from step to step."""

from __future__ import annotations

import re
from collections.abc import Sequence

from diagnose.model.arrays import Rows
from diagnose.model.diagnosis import Facts
from diagnose.model.events import Kind
from diagnose.model.guards import checked_by
from diagnose.model.intervals import Intervals, among, contains, subtract
from diagnose.model.records import BreakRecord, VersionsRecord
from diagnose.tables import Tables

ENTERED = re.compile(r"^Torch-Compiled Region")
_WRAPS = re.compile(r"^(TorchDynamo Cache Lookup|Torch-Compiled Region|CompiledFunction(Backward)?$|AOTDispatcher )")


def breaks(t: Tables) -> tuple[BreakRecord, ...]:
    """Return where torch.compile broke graphs, also of a function that it skipped if it compiled what that calls."""
    known = t.capture.known.compiled
    given = {(file, first) for call in known.calls for _, file, first, _ in call.functions}
    in_pieces = given and any((each.file, each.line) not in given for each in known.compilations if each.function)
    return tuple(each for each in known.breaks if in_pieces or not each.skips)


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
