"""From captures to the diagnosis: each rank examined, the ranks compared, and one answer of both."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile

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
    Forecast,
    Prescription,
    RankSummary,
    Source,
    Waterfall,
    middle_ns,
)
from diagnose.model.events import Note
from diagnose.model.limits import MIN_GAIN_SHARE
from diagnose.model.rules import LATE_RANKS, LONE_RANK
from diagnose.pipeline.find import noting
from diagnose.pipeline.rank import analyze_rank, examine_rank, profile_rank
from diagnose.pipeline.savings import by_value
from diagnose.pipeline.sources import with_source_diffs
from diagnose.pipeline.true_step import factor_of_job, scaled
from diagnose.ranks.aligned import aligned_step
from diagnose.ranks.comparison import Comparison, compare_ranks, job_of
from diagnose.ranks.profile import JobProfile, RankProfile
from diagnose.tables.program import UNKNOWN, Program
from diagnose.tables.stages import begin
from diagnose.tables.thresholds import THRESHOLDS
from diagnose.text.numbers import duration


EXPOSED = next(rule for rule, meta in META.items() if meta.cause == "collective")


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
    own = _without_waiting(examined[shown(c)], _transfer_share(c))
    own = _without_waiting(own, _transfer_share(c, of_buffers=True), "buffer-broadcast")
    own = _without_waiting(own, _exchanged_share(own, c))
    own = _without_waiting(own, _unwaited_share(own, c), "small-collectives")
    own, found = _of_lone_rank(own, found, c)
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
    if cause is None:
        return replace(finding, worth_ns=worth)
    known = {(w.file, w.line): w for w in cause.where}
    where = tuple(known.get((w.file, w.line), w) for w in finding.where) or cause.where
    return replace(finding, where=where, worth_ns=max(worth - cause.worth_ns, 0.0))


def _of_lone_rank(own: Diagnosis, found: Sequence[Finding], c: Comparison) -> tuple[Diagnosis, list[Finding]]:
    """Return the shown rank's diagnosis and the ranks' findings where what one rank does alone counts once.

    Long steps of the run that are of this work, or wait for it, are its cost: all of them were timed. What is waited
    for that rank in the recorded window is the same waiting.
    """
    lone = next((f for f in found if f.rule == LONE_RANK), None)
    if lone is None or c.lone is None:
        return own, list(found)
    lines = {(w.file, w.line) for w in (*c.lone.lines, *c.lone.waiting)} | c.lone.callers
    stalls = [f for f in own.findings if META[f.rule].kind == "run" and {(w.file, w.line) for w in f.where[:1]} & lines]
    lost_ns = max((lone.lost_ns, *(f.lost_ns for f in stalls)))
    others = (replace(f, lost_ns=max(f.lost_ns - lost_ns, 0.0)) if f.rule == LATE_RANKS else f for f in found)
    least_ns = THRESHOLDS.naming_share * c.step_ns
    kept = [replace(f, lost_ns=lost_ns) if f is lone else f for f in others if f is lone or f.lost_ns >= least_ns]
    return _without({f.rule for f in stalls}, own), kept


def _without(rules: Collection[str], d: Diagnosis) -> Diagnosis:
    """Return a diagnosis without the findings of some rules, and without their changes."""
    gone = {p.id: 0.0 for p in d.prescriptions if p.rule in rules}
    return replace(
        d,
        findings=tuple(f for f in d.findings if f.rule not in rules),
        prescriptions=tuple(p for p in d.prescriptions if p.id not in gone),
        waterfall=_waiting_left_in(d.waterfall, gone) if d.waterfall is not None else None,
    )


def _transfer_share(c: Comparison, *, of_buffers: bool = False) -> float:
    """Return the share of the shown rank's time in collectives that nothing hides in which it does not wait for others.

    All ranks leave a collective together, so the one that is inside for the shortest time shows what it takes.
    Broadcasts of DistributedDataParallel's buffers are counted by themselves.
    """
    at = next(i for i, p in enumerate(c.ranks) if p.rank == shown(c))
    p = c.ranks[at]
    mine = np.array([(kind.purpose == "buffer-broadcast") == of_buffers for kind in p.kinds] or [False], bool)
    parts = np.flatnonzero(c.matches.rank == at)
    waited = c.waits.exposed[parts[mine[p.collectives.kind[c.matches.row[parts]]]]].sum()
    alone = p.collectives.alone[mine[p.collectives.kind]].sum()
    return float(np.clip(1 - waited / alone, 0.0, 1.0)) if alone else 1.0


def _unwaited_share(own: Diagnosis, c: Comparison) -> float:
    """Return what is left of the shown rank's many small collectives without its waiting for other ranks in them."""
    lost_ns = next((f.lost_ns for f in own.findings if f.rule == "small-collectives"), 0.0)
    return max(1 - c.waits_ns.get(shown(c), 0.0) / lost_ns, 0.0) if lost_ns else 1.0


def _exchanged_share(own: Diagnosis, c: Comparison) -> float:
    """Return what is left of the shown rank's exposed exchange without the work of other stages that it waits for."""
    receives = next(p.receives for p in c.ranks if p.rank == shown(c))
    lost_ns = next((f.lost_ns for f in own.findings if f.rule == EXPOSED), 0.0)
    return max(1 - receives.waited_ns / lost_ns, 0.0) if receives is not None and lost_ns else 1.0


def _without_waiting(d: Diagnosis, share: float, rule: str = EXPOSED) -> Diagnosis:
    """Return the diagnosis of a rank without what it waits for others in what its own collectives cost.

    No change of the exchange takes the waiting away, and the finding of whom it is for has it. ``share`` is what is
    left of the finding of ``rule``. What its own recording shows to be waiting is not in the savings any more.
    """
    waiting = next((f for f in d.findings if f.rule == rule), None)
    if waiting is None or share >= 1:
        return d
    known = waiting.facts.get("awaits_ranks")
    left = min(share / max(1 - known, share, 1e-9), 1.0) if isinstance(known, float) else share
    moved = _transfer_only(waiting, share)
    others = [f for f in d.findings if f.rule != rule]
    is_named = moved.lost_ns >= THRESHOLDS.naming_share * d.step_ns
    prescribed = []
    gone = set()
    for p in d.prescriptions:
        if p.rule != rule:
            prescribed.append(p)
            continue
        least, most = (ns * left for ns in p.saves_ns)
        is_predicted = p.predicted_step_ns is not None
        predicted = middle_ns(d.step_ns - most, d.step_ns - least) if is_predicted else None
        prescribed.append(replace(p, saves_ns=(least, most), predicted_step_ns=predicted))
        if not is_named or (is_predicted and most < MIN_GAIN_SHARE * d.step_ns):
            gone.add(p.id)
    kept = {p.id: 0.0 if p.id in gone else left for p in prescribed if p.rule == rule}
    return replace(
        d,
        findings=tuple(in_order([*others, moved] if is_named else others)),
        prescriptions=tuple(p for p in prescribed if p.id not in gone),
        waterfall=_waiting_left_in(d.waterfall, kept) if d.waterfall is not None else None,
    )


def _transfer_only(finding: Finding, share: float) -> Finding:
    waits = duration(finding.lost_ns * (1 - share))
    moved = replace(
        finding,
        lost_ns=finding.lost_ns * share,
        relief_ns=None if finding.relief_ns is None else finding.relief_ns * share,
        evidence=(
            *finding.evidence,
            f"{waits} more is waiting for other ranks, which no change of the exchange takes away.",
        ),
        facts={**finding.facts, "awaits_ranks": 1 - share},
    )
    return replace(moved, worth_ns=worth_ns(moved, META[moved.rule]))


def _waiting_left_in(waterfall: Waterfall, kept: Mapping[str, float]) -> Waterfall:
    """Return the forecasts with the share that is left of what changes save; without the changes of which none is."""
    more = {
        after.ids[-1]: (before.step_ns - after.step_ns) * (1 - kept[after.ids[-1]])
        for before, after in pairwise(waterfall.forecasts)
        if after.ids[-1] in kept
    }
    gone = {name for name in more if not kept[name]}
    known = {frozenset(f.ids): f for f in waterfall.combinations}

    def longer(f: Forecast) -> Forecast:
        """Return a forecast without the changes that are gone: as replayed, or else longer by what they save."""
        ids = tuple(name for name in f.ids if name not in gone)
        without = known.get(frozenset(ids))
        ns = sum(more.get(name, 0.0) for name in (f.ids if without is None else ids))
        by = without or f
        return f._replace(ids=ids, step_ns=by.step_ns + ns, low_ns=by.low_ns + ns, high_ns=by.high_ns + ns)

    chain = tuple(longer(f) for f in waterfall.forecasts if not f.ids or f.ids[-1] not in gone)
    combinations = tuple(longer(f) for f in waterfall.combinations if not gone & {*f.ids})
    return waterfall._replace(forecasts=chain, combinations=combinations)


def _with(
    answer: Diagnosis, found: Sequence[Finding], causes: Sequence[str], notes: list[Note], program: Program
) -> Diagnosis:
    """Add what all ranks together showed: by worth, as everything else.

    Where a late rank's own finding of the cause comes before it, its prescriptions are the remedy, and no other one.
    """
    if not found:
        return answer
    ordered = in_order((*answer.findings, *found))
    first = answering(ordered, answer.step_ns, has_device=answer.queue is not None)
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
