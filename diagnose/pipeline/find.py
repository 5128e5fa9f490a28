"""What the rules find in one rank, and what they prescribe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from diagnose import analyzers
from diagnose.analyzers.common.fusable import chains, written_out_attention
from diagnose.analyzers.common.locate import source_line
from diagnose.analyzers.common.memory import memory_of
from diagnose.answer import FLOOR, HOST_FLOOR
from diagnose.changes import CHANGES, group_of
from diagnose.changes.common.prescribe import compiles_model, is_worth_showing, prescribe, without_savings
from diagnose.errors import is_debugging
from diagnose.model.capture import Capture
from diagnose.model.diagnosis import Finding, Prescription, Where
from diagnose.model.events import Note, Trace
from diagnose.model.intervals import EMPTY, Intervals, intersect, union
from diagnose.model.rules import TAKES_LEAD
from diagnose.pipeline.symptoms import counted_once, of_run
from diagnose.pipeline.true_step import PROFILER, as_unrecorded, recorded_in, recording_note, scaled, true_step
from diagnose.pipeline.trust import is_scanty, trust_notes
from diagnose.tables import Claim, Tables
from diagnose.tables.program import UNKNOWN, Program
from diagnose.tables.stages import Order, add_causes, begin, complete
from diagnose.tables.thresholds import THRESHOLDS

if TYPE_CHECKING:
    from diagnose.dataflow import Analyses
    from diagnose.model.diagnosis import Waterfall

SEARCHES: Order = {"attention": written_out_attention, "chains": chains, "memory": memory_of}


@contextmanager
def noting(rule: str, notes: list[Note]) -> Iterator[None]:
    """Turn a fault of one rule, or of a part that only a report shows, into a note; DIAGNOSE_DEBUG raises it."""
    try:
        yield
    except Exception as error:
        if is_debugging():
            raise
        note = Note(f"The rule {rule} failed on this trace ({type(error).__name__}: {error}).", rule)
        if note not in notes:
            notes.append(note)


class RankFindings(NamedTuple):
    """What the rules found in one rank, and what they prescribe; all times are of the true step."""

    capture: Capture  # as recorded
    tables: Tables
    findings: list[Finding]  # worth naming, the most expensive first
    prescribed: tuple[Prescription, ...]
    notes: list[Note]
    program: Program
    named: Tables | None  # of the attribution window
    recording: Mapping[str, float]  # by cause: what recording adds to it, ns a step, as far as it is in the times
    rare_ns: float  # of the step, in steps that are long now and then and not in the tables
    recorded_ns: float  # the step as recorded
    is_measured: bool  # steps were timed without the profiler

    @property
    def step_ns(self) -> float:
        """Return the true step."""
        return self.tables.steps.step_ns + self.rare_ns


def find_in_rank(capture: Capture, analyses: Analyses | None = None) -> RankFindings:
    """Run all rules on one rank's timing trace; names and lines come from its attribution trace, if any.

    ``analyses`` are those of the capture's data flow, made here if none are given.
    """
    notes: list[Note] = []
    recording: Mapping[str, float] = {}
    t = begin(capture, capture.trace, analyses or analysed(capture, notes))
    recorded_ns = capture.recorded_step_ns or t.steps.step_ns
    named = named_tables(t, notes)
    with noting(PROFILER, notes):
        t = without_recording(t)
    complete(explained(t, notes, named), notes, SEARCHES)
    true = true_step(t)
    step_ns = t.steps.step_ns + true.rare_ns  # among other ranks it is scaled with theirs
    if true.is_measured and (text := recording_note(recorded_ns, t.steps.step_ns)):
        notes.append(Note(text, PROFILER))
    with noting("trust", notes):
        notes += trust_notes(t)
        notes += [Note(fault) for fault in (*analyzers.PLUGINS.faults, *CHANGES.plugins.faults)]
    found = [of_run(t, f, step_ns) for f in _findings(t, notes)]
    found = counted_once(found, step_ns, FLOOR if t.device_id >= 0 else HOST_FLOOR)
    if named is not None:
        with noting("places", notes):
            found = _with_places(found, named, notes)
    with noting(PROFILER, notes):
        recording = recorded_in(t, found)
    found = [
        _stated(t, f, step_ns)
        for f in found
        if f.share_of(step_ns) >= THRESHOLDS.naming_share
        or (analyzers.META[f.rule].kind == "state" and not f.lost_ns)
        or costs_more(f)
    ]
    found.sort(key=lambda f: -f.lost_ns)
    program = getattr(t, "program", UNKNOWN)  # it failed
    return RankFindings(
        capture,
        t,
        found,
        prescriptions_of(found, step_ns, program, notes),
        notes,
        program,
        named,
        recording,
        true.rare_ns,
        recorded_ns,
        true.is_measured,
    )


# The tables, with and without what the profiler took.


def analysed(capture: Capture, notes: list[Note] | None = None) -> Analyses | None:
    """Return what a capture's data flow shows, None where it has none or an analysis fails."""
    flow = capture.dataflow
    if flow is None or not flow.operators:
        return None
    from diagnose.dataflow import analyse  # only a recorded data flow needs it

    with noting("data flow", [] if notes is None else notes):
        return analyse(flow, capture.long_step)
    return None


def build_tables(
    capture: Capture, trace: Trace, notes: list[Note] | None = None, analyses: Analyses | None = None
) -> Tables:
    """Return the tables of a trace, with all that rules read.

    A rule whose claim fails claims nothing, and is named in ``notes``. ``analyses`` are those of the capture's data
    flow, made here if none are given.
    """
    notes = [] if notes is None else notes
    t = begin(capture, trace, analyses or analysed(capture, notes))
    return complete(explained(t, notes, named_tables(t, notes)), notes, SEARCHES)


def named_tables(t: Tables, notes: list[Note]) -> Tables | None:
    """Return the tables of the attribution window, None where these are of it or it was not recorded."""
    trace = t.capture.attribution
    with noting("places", notes):
        return build_tables(t.capture, trace, notes, t.analyses) if trace is not None and trace is not t.trace else None
    return None


def explained(t: Tables, notes: list[Note], named: Tables | None = None) -> Tables:
    """Add the causes of idle time, by the rules that fit the trace: the device's, or the host's own."""
    if t.device_id >= 0:
        rules, rest = analyzers.IDLE_RULES, analyzers.FALLBACK_RULE.META.id
        claims = [(rule.META.id, _careful(rule, rule.claim, notes)) for rule in rules]
    else:
        rules, rest = analyzers.HOST_RULES, analyzers.OUTSIDE
        claims = [
            (rule.META.id, _careful(rule, getattr(rule, "claim_host", None) or rule.claim, notes)) for rule in rules
        ]
        claims.append((analyzers.WORK, lambda t, left: intersect(left, t.in_ops)))
    kinds = {rule.META.id: rule.META.cause for rule in rules}
    return add_causes(t, (*claims, (rest, lambda _t, left: left)), kinds, notes, named)


def _careful(rule: analyzers.Rule, claim: Claim, notes: list[Note]) -> Claim:
    def claims(t: Tables, left: Intervals) -> Intervals:
        with noting(rule.META.id, notes):
            return union(claim(t, left))  # fails here if these are no intervals
        return EMPTY

    return claims


def without_recording(t: Tables) -> Tables:
    """Return the steps as they are without the profiler: what it cost is taken out, the rest is scaled.

    The trace of one rank among others is scaled with theirs, before.
    """
    if t.capture.recorded_step_ns:
        return t
    if (without := as_unrecorded(t)) is not None:
        t = begin(without.capture, without.capture.trace, t.analyses)
    if (factor := true_step(t).factor) == 1:
        return t
    capture = scaled(t, factor)
    return begin(capture, capture.trace, t.analyses)


def tables_without_recording(capture: Capture) -> Tables:
    """Return the tables of a rank's timing trace that its findings and savings rest on."""
    notes: list[Note] = []
    t = begin(capture, capture.trace, analysed(capture))
    return complete(explained(without_recording(t), notes, named_tables(t, notes)), notes, SEARCHES)


# The findings: what the rules see, where, and whether it is worth naming.


def applied_rules(t: Tables, *, alone: bool) -> Sequence[analyzers.Rule]:
    """Return the rules that are applied to a recording; ``alone``: no other rank's trace is at hand."""
    others = (*analyzers.KERNEL_RULES, *analyzers.STATE_RULES) if t.device_id >= 0 else analyzers.HOST_STATE_RULES
    of_ranks = analyzers.RANK_RULES if alone and t.trace.world_size > 1 else ()
    return (*_idle_rules(t), *analyzers.RUN_RULES, *others, *of_ranks)


def _idle_rules(t: Tables) -> tuple[analyzers.Analyzer, ...]:
    return (*analyzers.IDLE_RULES, analyzers.FALLBACK_RULE) if t.device_id >= 0 else tuple(analyzers.HOST_RULES)


def _findings(t: Tables, notes: list[Note]) -> list[Finding]:
    """Apply every rule; one that fails becomes a note, and the others go on.

    Kernel rules are applied in their order, each to the tasks that none before it accounts for.
    """
    all_found: list[Finding] = []

    def apply(rule: analyzers.Rule, find: Callable[..., Iterable[Finding]], *given: object) -> list[Finding]:
        with noting(rule.META.id, notes):
            all_found.extend(found := list(find(t, *given)))
            return found
        return []

    free = np.ones(len(t.tasks.row), bool)
    for rule in _idle_rules(t):
        for finding in apply(rule, rule.find):
            free[finding.tasks] = False
    for run_rule in analyzers.RUN_RULES:
        apply(run_rule, run_rule.find)
    if t.device_id >= 0:
        for kernel_rule in analyzers.KERNEL_RULES:
            for finding in apply(kernel_rule, kernel_rule.find, free.copy()):  # which it may keep
                free[finding.tasks] = False
    for state_rule in analyzers.STATE_RULES if t.device_id >= 0 else analyzers.HOST_STATE_RULES:
        apply(state_rule, state_rule.find)
    return all_found


def _with_places(found: list[Finding], named: Tables, notes: list[Note]) -> list[Finding]:
    """Give each finding the lines that the attribution window has for the same rule; its timing stays as it was."""
    by_rule = {f.rule: f.where for f in _findings(named, notes)}

    def merged(timing: tuple[Where, ...], named: tuple[Where, ...]) -> tuple[Where, ...]:
        """Keep the sampler's lines, then lines of the attribution window, then bare operators."""
        callers = {(w.file, w.function): w.caller for w in named if w.file}  # samples have none
        lines = [replace(w, caller=w.caller or callers.get((w.file, w.function), "")) for w in timing if w.file]
        lines += [w for w in named if w.file and w.file not in {k.file for k in lines}]
        return tuple(dict.fromkeys([*lines, *(w for w in timing if not w.file)]))[:5]

    return [
        replace(f, where=merged(f.where, by_rule[f.rule])) if f.rule in by_rule and f.share is None else f
        for f in found
    ]


def _stated(t: Tables, f: Finding, step_ns: float) -> Finding:
    """Return a finding as a report states it: each place once, and what all steps of the run show as a part of one."""
    share, lost_ns = f.share, f.lost_ns
    if share is not None:
        share = min(share, lost_ns / step_ns) if step_ns > 0 else share
        lost_ns = share * step_ns
    lines = [
        replace(w, code=w.code or source_line(t, w.file, w.line))
        if w.file and w.line
        else replace(w, file=None, line=None, function=None)
        for w in f.where
    ]
    named = {w.op for w in lines if w.file}
    places = dict.fromkeys(w for w in lines if w.file or ((w.op or w.library) and w.op not in named))
    f = replace(f, where=tuple(places), share=share, lost_ns=lost_ns)
    return replace(f, confidence="low", doubt="the recording holds little work of the device") if is_scanty(t) else f


def costs_more(finding: Finding) -> bool:
    """Return whether its cause may cost more than the time it takes, so that only a replay shows whether it is small.

    A wait for the device takes the host's lead, and later idle time is its echo; so does Python or a collection while
    the device is still busy. Superfluous kernels and operators take the host's time as well, which issues them.
    """
    rule = analyzers.META[finding.rule]
    issues = (rule.kind == "kernel" and len(finding.tasks) > 0) or finding.without is not None
    return rule.cause in TAKES_LEAD or issues


# The changes for what was found in one rank: each once, and those alone that are worth showing.


def prescriptions_of(
    found: list[Finding], step_ns: float, program: Program, notes: list[Note]
) -> tuple[Prescription, ...]:
    """Collect the changes, those that save most first; one that several findings ask for is listed once.

    Of a change for steps that are long now and then the whole run shows what it saves; what the recorded steps hold of
    them is chance.
    """
    listed: dict[str, Prescription] = {}
    for finding in found:
        given: list[Prescription] = []
        with noting(finding.rule, notes):
            given = prescribe(finding, step_ns, program)
        for p in given:
            listed[p.id] = max(listed.get(p.id, p), p, key=lambda p: (p.mean_step_ns is not None, sum(p.saves_ns)))
    return tuple(sorted(listed.values(), key=lambda p: -sum(p.saves_ns)))


def worth_showing(
    found: list[Finding], prescribed: tuple[Prescription, ...], steps_after: Waterfall | None, step_ns: float
) -> tuple[Prescription, ...]:
    """Leave out what saves little, alone and behind what the waterfall changes before it.

    So is a change for some steps only whose object another one changes for all: workers that go need not be kept.
    """
    by_rule = {f.rule: f for f in found}
    together = steps_after.forecasts[-1].ids if steps_after else ()
    shown = [p for p in prescribed if p.id in together or is_worth_showing(p, by_rule[p.rule], step_ns)]
    changed = {group_of(p.id) for p in shown if p.mean_step_ns is None} - {""}
    return tuple(p for p in shown if p.mean_step_ns is None or group_of(p.id) not in changed)


def one_compilation(
    shown: tuple[Prescription, ...], steps_after: Waterfall | None
) -> tuple[tuple[Prescription, ...], tuple[Prescription, ...]]:
    """Return the prescriptions with one at most that compiles the model, and for what the others were prescribed.

    They are ways of one edit, and one is chosen: that of the forecast, else what saves most. It stands in the place of
    the others for their findings, without a saving of its own there.
    """
    together = steps_after.forecasts[-1].ids if steps_after else ()
    compiling = [p for p in shown if compiles_model(p)]
    if len(compiling) < 2:
        return shown, ()
    kept = next((p for p in compiling if p.id in together), max(compiling, key=lambda p: sum(p.saves_ns)))
    others = [p for p in compiling if p is not kept and p.rule != kept.rule]
    instead = without_savings([replace(kept, rule=p.rule) for p in others])
    return tuple(p for p in shown if p is kept or p not in compiling), instead
