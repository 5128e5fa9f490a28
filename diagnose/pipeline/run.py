"""From captures to the diagnosis: run all rules on each rank, compare the ranks, rank the findings."""

from __future__ import annotations

import os
from collections.abc import Sequence

from diagnose.analyzers import TRAITS
from diagnose.errors import InputError
from diagnose.model.capture import Capture
from diagnose.model.diagnosis import Diagnosis
from diagnose.pipeline import across
from diagnose.pipeline.rank import analyze_rank, examine_rank, profile_rank
from diagnose.pipeline.true_step import factor_of_job, scaled
from diagnose.ranks.comparison import Comparison, compare_ranks
from diagnose.ranks.profile import JobProfile
from diagnose.tables.stages import begin

__all__ = ["analyze_captures", "analyze_paths", "compare_captures", "scaled_together", "shown_rank"]


def analyze_paths(paths: Sequence[str | os.PathLike[str]]) -> Diagnosis:
    """Read trace files or capture folders and analyze them.

    Raises:
        InputError: nothing there can be read, or it mixes different runs.
    """
    from diagnose.trace_reader import open_captures

    return analyze_captures(open_captures(paths))


def analyze_captures(captures: Sequence[Capture], *, draw: bool = True) -> Diagnosis:
    """Diagnose one capture for each rank; the answer is one rank's, with every rank's numbers beside it.

    It is the rank that the others wait for, where there is one, else the slowest. ``draw`` makes the picture of one
    step that text and HTML show; the JSON does not hold it.

    Raises:
        InputError: there is no capture at all.
    """
    if not captures:
        raise InputError("There is nothing to analyse: no trace was given. Name a trace file or a capture folder.")
    if len(captures) == 1:
        return analyze_rank(captures[0], draw=draw)
    comparison, captures_of = compare_captures(captures)
    shown = across.shown(comparison)
    examined = {rank: examine_rank(capture, draw=draw) for rank, capture in captures_of.items()}
    return across.answer_of(comparison, {rank: each for rank, (each, _) in examined.items()}, examined[shown][1])


def shown_rank(captures: Sequence[Capture]) -> int:
    """Return the index of the capture whose rank the answer of `analyze_captures` is about."""
    if len(captures) == 1:
        return 0
    of_job = scaled_together(captures)
    comparison, captures_of = _compared(of_job)
    capture = captures_of[across.shown(comparison)]
    return next(i for i, other in enumerate(of_job) if other is capture)


def scaled_together(captures: Sequence[Capture]) -> Sequence[Capture]:
    """Return the captures with all traces scaled alike, to steps without the profiler if the ranks timed some.

    One capture is scaled when its rank is examined, and captures that are scaled stay as they are.
    """
    factor = factor_of_job(capture.info for capture in captures if capture.info is not None)
    if len(captures) == 1 or not factor or any(capture.recorded_step_ns for capture in captures):
        return captures
    return [scaled(begin(capture, capture.trace), factor) for capture in captures]


def compare_captures(captures: Sequence[Capture]) -> tuple[Comparison, dict[int, Capture]]:
    """Return the comparison, and the captures of the ranks in it."""
    return _compared(scaled_together(captures))


def _compared(captures: Sequence[Capture]) -> tuple[Comparison, dict[int, Capture]]:
    profiles = [profile_rank(capture) for capture in captures]
    comparison = compare_ranks(JobProfile.of(profiles), TRAITS)
    of_profile = {id(p): capture for p, capture in zip(profiles, captures, strict=True)}
    return comparison, {p.rank: of_profile[id(p)] for p in comparison.ranks}
