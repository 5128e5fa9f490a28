"""From captures to the diagnosis: examine each rank, let every rule speak, order what they found."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from diagnose.captures import Capture
from diagnose.errors import InputError
from diagnose.examine import examine_rank
from diagnose.findings import Diagnosis, RankSummary

__all__ = ["analyze_paths", "examine"]


def analyze_paths(paths: Sequence[str | os.PathLike[str]]) -> Diagnosis:
    """Read trace files or capture folders and examine them.

    Raises:
        InputError: nothing there can be read, or it mixes different runs.
    """
    from diagnose.reading import open_captures

    return examine(open_captures(paths))


def examine(captures: Sequence[Capture], *, draw: bool = True) -> Diagnosis:
    """Diagnose one capture for each rank; the answer is the slowest rank's, with every rank's numbers beside it.

    ``draw`` makes the picture of one step that text and HTML show; the JSON does not hold it.

    Raises:
        InputError: there is no capture at all.
    """
    if not captures:
        raise InputError("There is nothing to analyse: no trace was given. Name a trace file or a capture folder.")
    each = [examine_rank(capture, draw=draw) for capture in captures]
    slowest = max(each, key=lambda d: d.step_ns)
    if len(each) == 1:
        return slowest
    ranks = tuple(
        RankSummary(c.trace.rank, d.verdict, d.dominant, d.step_ns, d.partition, d.idle_by_cause)
        for c, d in zip(captures, each, strict=True)
    )
    return replace(slowest, ranks=ranks)
