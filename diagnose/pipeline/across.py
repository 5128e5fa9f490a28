"""From a comparison of the ranks, and the full examination of some of them, to one answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np

from diagnose.analyzers import META, RANK_RULES
from diagnose.answer.ranking import worth_ns
from diagnose.answer.screen import with_words
from diagnose.changes import CHANGES
from diagnose.changes.common.prescribe import further, prescribe
from diagnose.model.diagnosis import Diagnosis, Finding, Prescription, RankSummary, Source
from diagnose.model.events import Note
from diagnose.pipeline.noting import noting
from diagnose.ranks.aligned import aligned_step
from diagnose.ranks.comparison import Comparison, job_of
from diagnose.ranks.profile import RankProfile
from diagnose.tables.program import UNKNOWN, Program
from diagnose.tables.thresholds import THRESHOLDS

__all__ = ["answer_of", "from_summary", "parts_of_ranks", "ranks_to_examine", "shown"]

MIN_CAUSE_SHARE = (
    0.5  # of the waiting for a late rank; what costs that rank less leaves most of its lateness unexplained
)


def shown(c: Comparison) -> int:
    """Return the rank that the answer is about: the late one, where there is one, else the slowest."""
    if c.lateness.late:
        return c.ranks[c.lateness.late[0]].rank
    return max(c.ranks, key=lambda p: (p.step_ns, -p.rank)).rank


def ranks_to_examine(c: Comparison) -> tuple[int, ...]:
    """Return the ranks whose full examination the answer needs: the shown one, the median one and the fastest."""
    return tuple(parts_of_ranks(c))


def parts_of_ranks(c: Comparison) -> dict[int, str]:
    """Return what each of the ranks to examine is; of a rank that is several of these, the first."""
    by_step = sorted(c.ranks, key=lambda p: (p.step_ns, p.rank))
    waits = sorted(c.waits_ns, key=lambda rank: c.waits_ns[rank])
    median = waits[len(waits) // 2] if waits else by_step[len(by_step) // 2].rank
    first = "late" if c.lateness.late else "slowest"
    parts: dict[int, str] = {}
    for rank, part in ((shown(c), first), (median, "median"), (by_step[0].rank, "fastest")):
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
    own = examined[shown(c)]
    found = [_with_lines(f, own) for f in found]
    found = [replace(f, worth_ns=worth_ns(f, META[f.rule])) for f in found]
    answer = _with(own, found, notes, program)
    job = None
    with noting("ranks", notes):
        job = job_of(c)
        index = {p.rank: i for i, p in enumerate(c.ranks)}
        parts = {index[rank]: part for rank, part in parts_of_ranks(c).items()}
        job = replace(job, aligned=aligned_step(c.ranks, c.matches, c.waits, parts))
    return with_words(
        replace(
            answer,
            ranks=tuple(_row(p, examined.get(p.rank), c.waits_ns.get(p.rank)) for p in c.ranks),
            job=job,
            checked=(*answer.checked, *(rule.META.id for rule in RANK_RULES)),
            trust=(*answer.trust, *(note for note in notes if note not in answer.trust)),
        )
    )


def from_summary(p: RankProfile, failure: str) -> Diagnosis:
    """Return what a summary alone shows of a rank whose trace is not at hand."""
    why = failure or (
        f"The trace of rank {p.rank} ({p.path}) is not at hand: its own findings are missing, and the answer rests on "
        "its summary. Run diagnose analyze where the trace is."
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


def _row(p: RankProfile, examined: Diagnosis | None, waits_ns: float | None) -> RankSummary:
    """Return the numbers of one rank; its largest finding is known where it was examined."""
    if examined is None:
        return RankSummary(p.rank, p.verdict, None, p.step_ns, p.partition, p.idle_by_cause, waits_ns)
    d = examined
    return RankSummary(p.rank, d.verdict, d.dominant, d.step_ns, d.partition, d.idle_by_cause, waits_ns)


def _costly(found: Sequence[Finding], c: Comparison, examined: Mapping[int, Diagnosis]) -> list[Finding]:
    """Return the findings as far as they make the other ranks' steps longer.

    A device that idles beside its waits would idle instead where its own host is as slow as the late rank's: a step of
    it without its collectives is as long.
    """
    late = {c.ranks[i].rank for i in c.lateness.late}
    most = [
        relief
        for rank, d in examined.items()
        if rank not in late and d.queue and d.queue.idle_share > THRESHOLDS.significant_idle
        for relief in [next((f.relief_ns for f in d.findings if META[f.rule].cause == "collective"), None)]
        if relief is not None
    ]
    if not most or len(most) < len([rank for rank in examined if rank not in late]):
        return list(found)
    bound = float(np.median(most))
    least = THRESHOLDS.naming_share * c.step_ns
    return [replace(f, lost_ns=min(f.lost_ns, bound)) for f in found if min(f.lost_ns, bound) >= least]


def _with_lines(finding: Finding, own: Diagnosis) -> Finding:
    """Give a late rank's finding what that rank's own finding of the cause has of its lines, or else lines of that."""
    if finding.facts.get("kind") != "late":
        return finding
    lines = next((f.where for f in own.findings if f.rule == finding.facts.get("cause")), ())
    known = {(w.file, w.line): w for w in lines}
    return replace(finding, where=tuple(known.get((w.file, w.line), w) for w in finding.where) or lines)


def _with(answer: Diagnosis, found: Sequence[Finding], notes: list[Note], program: Program) -> Diagnosis:
    """Add what all ranks together showed.

    A late rank's own finding is first where it is the cause: what this rank has more of than its equals, and half of
    the waiting or more. Its prescriptions are then the remedy, and no other one. Where no rank is late in most steps, a
    finding of the shown rank stays first that is no waiting for others, and costs half as much or more.
    """
    if not found:
        return answer
    most = max(found, key=lambda f: (f.facts.get("kind") == "late", f.lost_ns))
    cause = next((f for f in answer.findings if f.rule == most.facts.get("cause")), None)
    is_late = most.facts.get("kind") == "late"
    is_cause = is_late and cause is not None and cause.lost_ns >= MIN_CAUSE_SHARE * most.lost_ns
    own = next((f for f in answer.findings if f.rule == answer.dominant), None)
    first = cause if is_cause and cause else most
    if not is_late and own and META[own.rule].cause != "collective" and own.lost_ns >= MIN_CAUSE_SHARE * most.lost_ns:
        first = own
    ordered = sorted((*answer.findings, *found), key=lambda f: (f is not first, f is not most, -f.worth_ns))
    prescribed: list[Prescription] = []
    also = list(answer.also_possible)
    for rule in RANK_RULES if not is_cause else ():
        with noting(rule.META.id, notes):
            mine = [f for f in found if f.rule == rule.META.id]
            prescribed += [p for f in mine for p in prescribe(f, answer.step_ns, program)]
            also += further(mine, prescribed, answer.step_ns, program)
    again = tuple(takewhile(lambda p: CHANGES[p.id].records is not None, answer.prescriptions))
    others = [p for p in (*answer.prescriptions, *prescribed) if p not in again]
    in_order = (*again, *sorted(others, key=lambda p: (not (is_cause and p.rule == first.rule), -sum(p.saves_ns))))
    return replace(
        answer,
        findings=tuple(ordered),
        dominant=first.rule,
        prescriptions=in_order,
        also_possible=tuple({p.id: p for p in reversed(also)}.values())[::-1],
    )
