"""From captures to the diagnosis: each rank examined, the ranks compared, and one answer of both."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np

from diagnose.analyzers import META, RANK_RULES, TRAITS
from diagnose.answer import answering, in_order, worth_ns
from diagnose.answer.screen import with_words
from diagnose.changes.common.prescribe import further, prescribe
from diagnose.errors import InputError
from diagnose.model.capture import Capture
from diagnose.model.diagnosis import (
    Diagnosis,
    Finding,
    Prescription,
    RankSummary,
    Source,
)
from diagnose.model.events import Note
from diagnose.pipeline.find import noting
from diagnose.pipeline.rank import analyze_rank, examine_rank, profile_rank
from diagnose.pipeline.savings import by_value
from diagnose.pipeline.shares import counted_once, without_others
from diagnose.pipeline.sources import with_source_diffs
from diagnose.pipeline.true_step import factor_of_job, scaled
from diagnose.ranks.aligned import aligned_step
from diagnose.ranks.comparison import Comparison, compare_ranks, job_of
from diagnose.ranks.late_causes import NO_CORE
from diagnose.ranks.profile import JobProfile, RankProfile
from diagnose.tables.program import UNKNOWN, Program
from diagnose.tables.stages import begin
from diagnose.tables.thresholds import THRESHOLDS


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
        return with_source_diffs(analyze_rank(captures[0], draw=draw))
    comparison, captures_of = compare_captures(captures)
    at = shown(comparison)
    examined = {rank: examine_rank(capture, draw=draw) for rank, capture in captures_of.items()}
    answer = answer_of(comparison, {rank: each for rank, (each, _) in examined.items()}, examined[at][1])
    return with_source_diffs(answer)


def shown_rank(captures: Sequence[Capture]) -> int:
    """Return the index of the capture whose rank the answer of `analyze_captures` is about."""
    if len(captures) == 1:
        return 0
    of_job = scaled_together(captures)
    comparison, captures_of = _compared(of_job)
    capture = captures_of[shown(comparison)]
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


# From a comparison of the ranks, and the full examination of some of them, to one answer.


def shown(c: Comparison) -> int:
    """Return the rank that the answer is about: the late one, where there is one, else the slowest."""
    late = [c.ranks[i].rank for i in c.lateness.late]
    return late[0] if late else max(c.ranks, key=lambda p: (p.step_ns, -p.rank)).rank


def parts_of_ranks(c: Comparison) -> dict[int, str]:
    """Return the ranks whose full examination the answer needs, and what each is: the shown, the median, the fastest.

    A rank that is several of these is the first of them.
    """
    by_step = [p.rank for p in sorted(c.ranks, key=lambda p: (p.step_ns, p.rank))]
    by_wait = sorted(c.waits_ns, key=lambda rank: c.waits_ns[rank]) or by_step
    first = "late" if c.lateness.late else "slowest"
    parts: dict[int, str] = {}
    for rank, part in ((shown(c), first), (by_wait[len(by_wait) // 2], "median"), (by_step[0], "fastest")):
        parts.setdefault(rank, part)
    return parts


def answer_of(c: Comparison, examined: Mapping[int, Diagnosis], program: Program = UNKNOWN) -> Diagnosis:
    """Return the diagnosis of the shown rank with what all ranks showed together.

    ``examined`` holds at least the shown rank's own diagnosis, ``program`` is what is known of its script.
    """
    notes = [Note(text) for text in c.notes]
    found: list[Finding] = []
    for rule in RANK_RULES:
        with noting(rule.META.id, notes):
            found += _costly(rule.find_in_all(c), c, examined)
    own = without_others(examined[shown(c)], c, shown(c))
    own, found = counted_once(own, found, c, shown(c))
    # What a late rank has more of than its equals, by its own finding; None for what is of all ranks.
    named = {f.rule: f for f in reversed(own.findings)}
    causes = [named.get(str(f.facts.get("cause"))) if f.facts.get("kind") == "late" else None for f in found]
    found = [_of_late_rank(f, cause) for f, cause in zip(found, causes, strict=True)]
    answer = _with(own, found, [cause.rule for cause in causes if cause is not None], notes, program)
    job = None
    with noting("ranks", notes):
        index = {p.rank: i for i, p in enumerate(c.ranks)}
        parts = {index[rank]: part for rank, part in parts_of_ranks(c).items()}
        job = job_of(c)._replace(aligned=aligned_step(c.ranks, c.matches, c.waits, parts))
    rows = []
    for p in c.ranks:
        d = examined.get(p.rank)  # the largest finding is known if it was examined
        seen: Diagnosis | RankProfile = d or p
        dominant, waits_ns = d.dominant if d is not None else None, c.waits_ns.get(p.rank)
        rows.append(
            RankSummary(p.rank, seen.verdict, dominant, seen.step_ns, seen.partition, seen.idle_by_cause, waits_ns)
        )
    return with_words(
        replace(
            answer,
            ranks=tuple(rows),
            job=job,
            checked=(*answer.checked, *(rule.META.id for rule in RANK_RULES)),
            trust=(*answer.trust, *(note for note in notes if note not in answer.trust)),
        )
    )


def from_summary(p: RankProfile, failure: str) -> Diagnosis:
    """Return what a summary alone shows of a rank whose trace is not at hand."""
    why = failure or (
        f"The trace of rank {p.rank} ({p.path}) is not at hand: its own findings are missing, and the answer rests on "
        "its summary. Run diagnose analyze on the machine that has the trace."
    )
    return Diagnosis(
        verdict=p.verdict,
        headline="",
        dominant=None,
        step_ns=p.step_ns,
        step_times_ns=tuple((p.step_end - p.step_begin).tolist()),
        queue=None,
        partition=p.partition,
        idle_by_cause=p.idle_by_cause,
        findings=(),
        prescriptions=(),
        trust=tuple(map(Note, (*p.notes, why))),
        source=Source(path=p.path, world_size=p.world_size),
    )


def _costly(found: Sequence[Finding], c: Comparison, examined: Mapping[int, Diagnosis]) -> list[Finding]:
    """Return the findings as far as they make the other ranks' steps longer.

    A device that idles beside its waits would idle instead where its own host is as slow as the late rank's: a step of
    it without its collectives is as long.
    """
    late = {c.ranks[i].rank for i in c.lateness.late}
    others = [d for rank, d in examined.items() if rank not in late]
    idle = [d for d in others if d.queue is not None and d.queue.idle_share > THRESHOLDS.significant_idle]
    relief = [next((f.relief_ns for f in d.findings if META[f.rule].cause == "collective"), None) for d in idle]
    known = [ns for ns in relief if ns is not None]
    if not known or len(known) < len(others):
        return list(found)
    bounded = (replace(f, lost_ns=min(f.lost_ns, float(np.median(known)))) for f in found)
    return [f for f in bounded if f.lost_ns >= THRESHOLDS.naming_share * c.step_ns]


def _of_late_rank(finding: Finding, cause: Finding | None) -> Finding:
    """Return a finding with its worth; of a late rank without that of the cause that it has found, with its lines."""
    worth = worth_ns(finding, META[finding.rule])
    if finding.facts.get("cause") == NO_CORE:  # the state of the machine
        worth = 0.0
    if cause is None:
        return replace(finding, worth_ns=worth)
    known = {(w.file, w.line): w for w in cause.where}
    where = tuple(known.get((w.file, w.line), w) for w in finding.where) or cause.where
    return replace(finding, where=where, worth_ns=max(worth - cause.worth_ns, 0.0))


def _with(
    answer: Diagnosis, found: Sequence[Finding], causes: Sequence[str], notes: list[Note], program: Program
) -> Diagnosis:
    """Add what all ranks together showed: by worth, as everything else.

    Where a late rank's own finding of the cause comes before it, its prescriptions are the remedy, and no other one.
    """
    ordered = in_order((*answer.findings, *found))
    first = answering(ordered, answer.step_ns, has_device=answer.queue is not None)
    if not found:  # what is for others is no cost of the rank any more
        return replace(answer, dominant=first.rule if first is not None and answer.dominant is not None else None)
    place = {f.rule: i for i, f in reversed([*enumerate(ordered)])}
    explained = any(place[cause] < place[f.rule] for cause in causes for f in found)
    prescribed: list[Prescription] = []
    also = list(answer.also_possible)
    for rule in RANK_RULES if not explained else ():
        with noting(rule.META.id, notes):
            mine = [f for f in found if f.rule == rule.META.id]
            prescribed += [p for f in mine for p in prescribe(f, answer.step_ns, program)]
            also += further(mine, prescribed, answer.step_ns, program)
    again = tuple(takewhile(lambda p: p.records_again, answer.prescriptions))
    others = [p for p in (*answer.prescriptions, *prescribed) if p not in again]
    return replace(
        answer,
        findings=tuple(ordered),
        dominant=first.rule if first is not None else None,
        prescriptions=(*again, *sorted(others, key=lambda p: (place.get(p.rule, len(place)), by_value(p)))),
        also_possible=tuple({p.id: p for p in reversed(also)}.values())[::-1],
    )
