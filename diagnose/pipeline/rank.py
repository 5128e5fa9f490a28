"""Run all rules on one rank, rank their findings, and state what the file does not show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from diagnose import analyzers
from diagnose.analyzers.common.memory import memory_of
from diagnose.changes import CHANGES
from diagnose.changes.common.prescribe import further, recording_first, without_savings
from diagnose.changes.common.separate_diffs import separated
from diagnose.model.capture import Capture
from diagnose.model.diagnosis import Diagnosis, Finding, Prescription, Where
from diagnose.model.events import Note, Trace
from diagnose.model.forecast import middle_ns
from diagnose.model.intervals import EMPTY, Intervals, intersect
from diagnose.model.rules import TAKES_LEAD
from diagnose.pipeline import overhead
from diagnose.pipeline.headline import Answer, headline, summary
from diagnose.pipeline.host_operators import host_operators
from diagnose.pipeline.kernels import kernels
from diagnose.pipeline.noting import noting
from diagnose.pipeline.prescriptions import prescriptions_of, worth_showing
from diagnose.pipeline.savings import Replayed, path_of, replay_savings, waterfall
from diagnose.pipeline.source import source_of
from diagnose.pipeline.trust import is_incomplete, is_scanty, missing_records, trust_notes
from diagnose.pipeline.verdict import dominant, verdict
from diagnose.tables import Claim, Tables
from diagnose.tables.host_work import is_paced_by_workers
from diagnose.tables.lost import graphs_left_no_task
from diagnose.tables.program import UNKNOWN, program_of
from diagnose.tables.roofline import flop_utilisation, roofline
from diagnose.tables.run_steps import phase_shares
from diagnose.tables.thresholds import THRESHOLDS

if TYPE_CHECKING:
    from diagnose.model.charts import Picture
    from diagnose.ranks.profile import RankProfile

__all__ = ["RankFindings", "analyze_rank", "build_tables", "find_in_rank", "profile_rank"]

_Part = TypeVar("_Part")


def build_tables(capture: Capture, trace: Trace, notes: list[Note] | None = None) -> Tables:
    """Return the tables of a trace, with the idle rules that fit it: the device's, or the host's own.

    A rule whose claim fails claims nothing, and is named in ``notes``.
    """
    notes = [] if notes is None else notes
    has_device = Tables(capture, trace).device_id >= 0
    rules = analyzers.IDLE_RULES if has_device else analyzers.HOST_RULES
    rest = analyzers.FALLBACK_RULE.META.id if has_device else analyzers.OUTSIDE
    claims = [
        (rule.META.id, _careful(rule.META.id, rule.claim if has_device else _host_claim(rule), notes)) for rule in rules
    ]
    if not has_device:
        claims.append((analyzers.WORK, lambda t, left: intersect(left, t.in_ops)))
    return Tables(capture, trace, claims=(*claims, (rest, lambda _t, left: left)))


def _host_claim(rule: analyzers.IdleAnalyzer) -> Claim:
    """Return how a rule claims the training thread's time where there is no device."""
    claim: Claim = getattr(rule, "claim_host", rule.claim)
    return claim


def _is_state(finding: Finding) -> bool:
    return analyzers.META[finding.rule].kind == "state"


def _costs_more(finding: Finding) -> bool:
    """Return whether its cause may cost more than the time it takes, so that only a replay shows whether it is small.

    A wait for the device takes the host's lead, and later idle time is its echo; so does Python or a collection while
    the device is still busy. Superfluous kernels take the host's time as well, which issues them.
    """
    rule = analyzers.META[finding.rule]
    return rule.cause in TAKES_LEAD or (rule.kind == "kernel" and len(finding.tasks) > 0)


class RankFindings(NamedTuple):
    """What the rules found in one rank, and what they prescribe."""

    tables: Tables
    findings: list[Finding]  # worth naming, the most expensive first
    prescribed: tuple[Prescription, ...]
    notes: list[Note]
    named: Tables | None = None  # of the attribution window
    recording: Mapping[str, float] = {}  # by cause: what recording added to it, ns a step


def find_in_rank(capture: Capture) -> RankFindings:
    """Run all rules on one rank's timing trace; names and lines come from its attribution trace, if any."""
    notes: list[Note] = []
    t = build_tables(capture, capture.trace, notes)
    with noting("profiler-overhead", notes):
        unprofiled, said = overhead.as_unrecorded(t)
        if said:
            t = build_tables(unprofiled, unprofiled.trace, notes)
            notes += said
    with noting("trust", notes):
        notes += trust_notes(t)
        notes += [Note(fault) for fault in (*analyzers.PLUGINS.faults, *CHANGES.plugins.faults)]
    found = list(_findings(t, notes))
    named: Tables | None = None
    if capture.attribution is not None:
        with noting("places", notes):
            named = build_tables(capture, capture.attribution, notes)
            found = _with_places(found, named, notes)
    recording: dict[str, float] = {}
    with noting("profiler-overhead", notes):
        found, recording = overhead.without_recording(t, found)
    found = [
        f
        for f in found
        if f.share_of(t.steps.step_ns) >= THRESHOLDS.naming_share or (_is_state(f) and not f.lost_ns) or _costs_more(f)
    ]
    if is_scanty(t):
        found = [replace(f, confidence="low") for f in found]
    found.sort(key=lambda f: -f.lost_ns)
    program = UNKNOWN
    with noting("program", notes):
        program = program_of(t)
    return RankFindings(t, found, prescriptions_of(found, t.steps.step_ns, program, notes), notes, named, recording)


def analyze_rank(capture: Capture, *, draw: bool = True, alone: bool = True) -> Diagnosis:
    """Diagnose one rank; ``draw`` makes what only charts and the text report show.

    ``alone``: no other rank's trace is at hand. What its collectives wait for is not known then, nor what a step
    without them would take.
    """
    t, found, prescribed, notes, attribution, recording = find_in_rank(capture)
    step_ns = t.steps.step_ns
    shares = overhead.shares_without_recording(_shares(t), recording, step_ns)
    idle = shares if t.device_id >= 0 else {}
    withheld = t.device_id >= 0 and graphs_left_no_task(t)
    queue = t.queue if t.device_id >= 0 and not withheld else None
    answer = verdict(queue, t.partition if queue else None, idle)
    replayed, steps_after, path = Replayed(prescribed), None, None
    with noting("replay", notes):
        replayed = replay_savings(t, found, prescribed)
        notes += [Note(replayed.why_not)] if replayed.why_not else []
        path = path_of(t, replayed, draw=draw)
    found = [
        replace(f, path_share=replayed.on_path.get(f.rule), relief_ns=_relief(t, f, replayed, alone=alone))
        for f in found
    ]
    least_ns = THRESHOLDS.naming_share * step_ns
    found = [f for f in found if not _costs_more(f) or max(f.lost_ns, f.relief_ns or 0.0) >= least_ns]
    with noting("replay", notes):
        steps_after = waterfall(t, found, replayed, combine=draw)  # of what is listed
    named = {f.rule for f in found}
    prescribed = tuple(p for p in replayed.prescriptions if p.rule in named)
    largest = None if withheld else dominant(answer, found, step_ns, t.steps.num)
    again = False
    with noting("trust", notes):
        again = is_incomplete(t)
    found.sort(key=lambda f: (f is not largest, -f.gain_ns))
    prescriptions = worth_showing(found, prescribed, steps_after, step_ns)
    with noting("trust", notes):
        prescriptions = recording_first(prescriptions, found, step_ns, program_of(t), is_incomplete=again)
        if again:
            prescriptions, steps_after = without_savings(prescriptions), None
    partition = t.partition if queue else None
    told = Answer(answer, queue, step_ns, partition, idle, found, prescriptions)
    told = told._replace(is_incomplete=again, is_withheld=withheld, has_steps=t.steps.marked)

    missing = missing_records(t)

    def part(name: str, make: Callable[[Tables], _Part]) -> _Part | None:
        with noting(name, notes):
            return make(t)
        return None

    return Diagnosis(
        verdict=answer,
        headline=headline(told, largest),
        summary=summary(told, largest),
        dominant=largest.rule if largest else None,
        step_ns=step_ns,
        step_times_ns=tuple(int(n) for n in (t.steps.end - t.steps.start)),
        queue=queue,
        partition=partition,
        idle_by_cause=idle,
        findings=tuple(overhead.with_recording(f, recording) for f in found),
        prescriptions=separated(prescriptions),
        also_possible=part(
            "prescriptions", lambda t: () if again else further(found, prescriptions, step_ns, program_of(t))
        )
        or (),
        replay_error=replayed.error,
        waterfall=steps_after,
        critical_path=path,
        source=source_of(t),
        operators=part("operators", host_operators) or (),
        picture=part("picture", lambda t: _picture(t, attribution, capture.trace, shares)) if draw else None,
        roofline=part("roofline", roofline) if draw and t.device_id >= 0 else None,
        flops=part("roofline", flop_utilisation) if t.device_id >= 0 else None,
        memory=part("memory", memory_of),
        kernels=part("kernels", kernels) or (),
        checked=tuple(rule.META.id for rule in _applied(t) if rule.META.needs not in missing),
        not_checked={rule.META.id: rule.META.needs for rule in _applied(t) if rule.META.needs in missing},
        profiler_overhead=part("profiler-overhead", overhead.overhead_share),
        recording_ns=part("profiler-overhead", overhead.recording_ns) or 0.0,
        recording_removed=part("profiler-overhead", overhead.removed_share) or 0.0,
        phases=part("phases", lambda t: phase_shares(t.capture)) or {},
        watched_steps=capture.run.num if capture.run is not None else 0,
        host_by_cause={} if queue else shares,
        legends=analyzers.LEGENDS,
        trust=tuple(notes),  # last: the parts above add to it
    )


def _relief(t: Tables, finding: Finding, replayed: Replayed, *, alone: bool) -> float | None:
    """Return what the step saves without a finding's cause, None where that was not replayed.

    A change may take more away than the cause itself, as the launches of superfluous kernels or the wait for a hidden
    copy: the middle of its range counts. A copy is not left out, but hidden: what that saves counts for it. Where
    workers pace the step, their wait takes what another cause leaves.
    """
    relief = replayed.relief_ns.get(finding.rule)
    if relief is None or (alone and analyzers.META[finding.rule].cause == "collective"):
        return None
    if is_paced_by_workers(t, finding.rule):
        return 0.0
    mine = [p for p in replayed.prescriptions if p.rule == finding.rule and p.id in replayed.effects]
    if mine and analyzers.META[finding.rule].cause == "copy":
        return max(p.saves_ns[1] for p in mine)
    most = finding.lost_ns if analyzers.META[finding.rule].inflated else t.steps.step_ns
    return max([relief, *(min(middle_ns(*p.saves_ns), most) for p in mine)])


def profile_rank(capture: Capture) -> RankProfile:
    """Return what the comparison of ranks needs of this one; times are those recorded, which all ranks share."""
    from diagnose.ranks.measure import profile_of  # only where there are several ranks

    notes: list[Note] = []
    t = build_tables(capture, capture.trace, notes)
    queue = t.queue if t.device_id >= 0 and not graphs_left_no_task(t) else None
    answer = verdict(queue, t.partition if queue else None, _shares(t) if queue else {})
    return profile_of(t, analyzers.TRAITS, verdict=answer, notes=tuple(note.text for note in (*t.trace.trust, *notes)))


def _picture(t: Tables, named: Tables | None, recorded: Trace, shares: Mapping[str, float]) -> Picture:
    from diagnose.pipeline.timeline import picture  # only where it is shown: the types of charts cost 5 ms to import

    return picture(t, shares, named=named, recorded=recorded)


def _findings(t: Tables, notes: list[Note]) -> Iterator[Finding]:
    """Apply every rule; one that fails becomes a note, and the others go on.

    Kernel rules are applied in their order, each to the tasks that none before it accounts for.
    """
    has_device = t.device_id >= 0
    free = np.ones(len(t.tasks.row), bool)
    for rule in _idle_rules(t):
        for finding in _found(rule.META.id, partial(rule.find, t), notes):
            free[finding.tasks] = False
            yield finding
    for run_rule in analyzers.RUN_RULES:
        yield from _found(run_rule.META.id, partial(run_rule.find, t), notes)
    if not has_device:
        return
    for kernel_rule in analyzers.KERNEL_RULES:
        for finding in _found(kernel_rule.META.id, partial(kernel_rule.find, t, free), notes):
            free = free.copy()  # a rule may have kept what it was given
            free[finding.tasks] = False
            yield finding
    for rule in analyzers.STATE_RULES:
        yield from _found(rule.META.id, partial(rule.find, t), notes)


def _idle_rules(t: Tables) -> tuple[analyzers.Analyzer, ...]:
    return (*analyzers.IDLE_RULES, analyzers.FALLBACK_RULE) if t.device_id >= 0 else tuple(analyzers.HOST_RULES)


def _applied(t: Tables) -> Sequence[analyzers.Rule]:
    """Return the rules that are applied to a recording."""
    others = (*analyzers.KERNEL_RULES, *analyzers.STATE_RULES) if t.device_id >= 0 else ()
    return (*_idle_rules(t), *analyzers.RUN_RULES, *others)


def _found(rule: str, find: Callable[[], list[Finding]], notes: list[Note]) -> list[Finding]:
    with noting(rule, notes):
        return find()
    return []


def _careful(rule: str, claim: Claim, notes: list[Note]) -> Claim:
    def claims(t: Tables, left: Intervals) -> Intervals:
        with noting(rule, notes):
            return claim(t, left)
        return EMPTY

    return claims


def _shares(t: Tables) -> Mapping[str, float]:
    """Return the share of the window that each cause takes: of idle, or without a device of the host's time."""
    start, end = t.steps.window
    return {rule: ns / (end - start) for rule, ns in t.causes.totals().items()}


def _with_places(found: list[Finding], named: Tables, notes: list[Note]) -> list[Finding]:
    """Give each finding the lines that the attribution window has for the same rule; its timing stays as it was."""
    by_rule = {f.rule: f for f in _findings(named, notes)}
    return [
        replace(f, where=_merged(f.where, by_rule[f.rule].where)) if f.rule in by_rule and f.share is None else f
        for f in found
    ]


def _merged(light: tuple[Where, ...], named: tuple[Where, ...]) -> tuple[Where, ...]:
    """Keep the sampler's lines, then lines of the attribution window, then bare operators."""
    lines = [w for w in light if w.file]
    lines += [w for w in named if w.file and w.file not in {k.file for k in lines}]
    return tuple(dict.fromkeys([*lines, *(w for w in light if not w.file)]))[:5]
