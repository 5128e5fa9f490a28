"""From captures to the diagnosis: run all rules on each rank, compare the ranks, rank the findings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from diagnose.analyzers import RANK_RULES
from diagnose.changes import CHANGES
from diagnose.changes.common.prescribe import further, prescribe
from diagnose.errors import InputError
from diagnose.model.capture import Capture
from diagnose.model.diagnosis import Diagnosis, Finding, Prescription, RankSummary
from diagnose.model.events import Note
from diagnose.pipeline.headline import Answer, headline, summary
from diagnose.pipeline.noting import noting
from diagnose.pipeline.rank import analyze_rank, build_tables
from diagnose.tables import Tables
from diagnose.tables.program import UNKNOWN, Program, program_of
from diagnose.tables.skew import Skew, skew_of
from diagnose.tables.thresholds import THRESHOLDS

__all__ = ["analyze_captures", "analyze_paths", "shown_rank"]

MIN_CAUSE_SHARE = (
    0.5  # of the waiting for a late rank; what costs that rank less leaves most of its lateness unexplained
)


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
    each = [analyze_rank(capture, draw=draw, alone=len(captures) == 1) for capture in captures]
    if len(each) == 1:
        return each[0]
    tables = [build_tables(capture, capture.trace) for capture in captures]
    notes: list[Note] = []
    skew, found, late = _across(tables, notes)
    if found and skew:
        costly = _costly(skew, each)
        found = [f for rule in RANK_RULES for f in rule.find_in_all(tables, costly)]
    waits = skew.waits_ns.tolist() if skew else [None] * len(each)
    ranks = tuple(
        RankSummary(c.trace.rank, d.verdict, d.dominant, d.step_ns, d.partition, d.idle_by_cause, wait)
        for c, d, wait in zip(captures, each, waits, strict=True)
    )
    shown = _slowest(tables) if late is None else late
    program = UNKNOWN
    with noting("program", notes):
        program = program_of(tables[shown])
    answer = _with(each[shown], found, notes, program, is_one=late is not None)
    return replace(
        answer,
        ranks=ranks,
        checked=(*answer.checked, *(rule.META.id for rule in RANK_RULES)),
        trust=(*answer.trust, *(note for note in notes if note not in answer.trust)),
    )


def shown_rank(captures: Sequence[Capture]) -> int:
    """Return the index of the capture whose rank the answer of `analyze_captures` is about."""
    if len(captures) == 1:
        return 0
    tables = [build_tables(capture, capture.trace) for capture in captures]
    _skew, _found, late = _across(tables, [])
    return _slowest(tables) if late is None else late


def _across(tables: Sequence[Tables], notes: list[Note]) -> tuple[Skew | None, list[Finding], int | None]:
    """Return how the ranks differ, what rules find in all of them, and the index of one that others wait for."""
    skew: Skew | None = None
    with noting("ranks", notes):
        skew = skew_of(tables)
    found: list[Finding] = []
    for rule in RANK_RULES:
        with noting(rule.META.id, notes):
            found += rule.find_in_all(tables, skew) if skew else []
    return skew, found, skew.late if skew and found else None


def _slowest(tables: Sequence[Tables]) -> int:
    return max(range(len(tables)), key=lambda i: tables[i].steps.step_ns)


def _costly(skew: Skew, each: Sequence[Diagnosis]) -> Skew:
    """Return the waits as far as they make a rank's steps longer.

    A device that idles beside its waits would idle instead where its own host is as slow as the others': a step of that
    rank without its collectives is as long.
    """
    waits = skew.waits_ns.copy()
    for i, d in enumerate(each):
        relief = next((f.relief_ns for f in d.findings if f.rule == "exposed-communication"), None)
        if relief is not None and d.queue and d.queue.idle_share > THRESHOLDS.significant_idle:
            waits[i] = min(waits[i], relief)
    return replace(skew, waits_ns=waits)


def _with(
    answer: Diagnosis, found: Sequence[Finding], notes: list[Note], program: Program, *, is_one: bool
) -> Diagnosis:
    """Add what all ranks together showed.

    The rank's own dominant finding stays first where it can be the cause: where it costs half of the waiting or more.
    Where that rank is the late one, its own prescriptions are then the remedy, and no other one.
    """
    if not found:
        return answer
    own = next((f for f in answer.findings if f.rule == answer.dominant), None)
    most = max(found, key=lambda f: f.lost_ns)
    first = own if own and own.lost_ns >= MIN_CAUSE_SHARE * most.lost_ns else most
    ordered = sorted((*answer.findings, *found), key=lambda f: (f is not first, -f.gain_ns))
    prescribed: list[Prescription] = []
    also = list(answer.also_possible)
    for rule in RANK_RULES if not (is_one and first is own) else ():
        with noting(rule.META.id, notes):
            mine = [f for f in found if f.rule == rule.META.id]
            prescribed += [p for f in mine for p in prescribe(f, answer.step_ns, program)]
            also += further(mine, prescribed, answer.step_ns, program)
    again = tuple(takewhile(lambda p: CHANGES[p.id].records is not None, answer.prescriptions))
    others = [p for p in (*answer.prescriptions, *prescribed) if p not in again]
    in_order = (*again, *sorted(others, key=lambda p: -sum(p.saves_ns)))
    told = Answer(
        answer.verdict, answer.queue, answer.step_ns, answer.partition, answer.idle_by_cause, ordered, in_order
    )
    return replace(
        answer,
        headline=headline(told, first),
        summary=summary(told, first),
        findings=tuple(ordered),
        dominant=first.rule,
        prescriptions=in_order,
        also_possible=tuple({p.id: p for p in reversed(also)}.values())[::-1],
    )
