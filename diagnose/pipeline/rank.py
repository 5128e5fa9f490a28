"""The answer of one rank: what was found, ranked by what a replay without it saves, and what the file does not show."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from diagnose import analyzers
from diagnose.analyzers import META, WORK
from diagnose.analyzers.common.extent import of_recording
from diagnose.analyzers.common.locate import locate_one
from diagnose.answer.ranking import answering, in_order, worth_ns
from diagnose.answer.screen import with_words
from diagnose.changes import CHANGES
from diagnose.changes.common.change import HostWork
from diagnose.changes.common.prescribe import further, recording_first, without_savings
from diagnose.changes.common.separate_diffs import separated
from diagnose.model.accelerators import accelerator_of
from diagnose.model.arrays import Floats, Ints
from diagnose.model.capture import Capture, CaptureInfo
from diagnose.model.charts import HostOperator, KernelTime
from diagnose.model.diagnosis import Diagnosis, Finding, Partition, Prescription, Queue, Source, Verdict
from diagnose.model.events import Kind, Note
from diagnose.model.forecast import middle_ns
from diagnose.model.intervals import among
from diagnose.model.records import as_facts
from diagnose.pipeline import overhead
from diagnose.pipeline.code_times import code_times
from diagnose.pipeline.device_time import flop_utilisation, kernel_families, kernel_times, roofline
from diagnose.pipeline.find import (
    RankFindings,
    analysed,
    applied_rules,
    costs_more,
    explained,
    find_in_rank,
    noting,
    one_compilation,
    worth_showing,
)
from diagnose.pipeline.memory_by_line import memory_by_line
from diagnose.pipeline.savings import Replayed, by_value, path_of, replay_savings, waterfall
from diagnose.pipeline.trust import is_incomplete, lacks_device, why_outweighed, why_unusable
from diagnose.pipeline.unseen import missing_records, not_looked, unseen
from diagnose.pipeline.verdict import verdict
from diagnose.tables import Tables
from diagnose.tables.host import host_rows, layers
from diagnose.tables.host_gaps import is_paced_by_workers, ready_share
from diagnose.tables.lost import graphs_left_no_task
from diagnose.tables.passes import passes_per_update
from diagnose.tables.plain_steps import plain_steps, unprofiled_steps
from diagnose.tables.program import Program
from diagnose.tables.run_steps import phase_shares
from diagnose.tables.stages import begin
from diagnose.tables.thresholds import THRESHOLDS
from diagnose.text.commands import command_line

if TYPE_CHECKING:
    from diagnose.dataflow import Analyses
    from diagnose.model.charts import Picture
    from diagnose.model.forecast import CriticalPath, Waterfall
    from diagnose.ranks.profile import RankProfile

__all__ = ["analyze_rank", "examine_rank", "host_operators", "kernels", "profile_rank", "source_of", "to_try"]

# Changes whose effect no recording of a CPU shows, and a trial does: fewer bits, another layout, compiling.

MIN_COMPUTED = 0.5  # of the step, in operators: else there is more to gain elsewhere
_CONVOLUTION = re.compile(r"^aten::(mkldnn_convolution\w*|convolution_backward|_slow_conv\w+|thnn_conv\w+)$")
_PRODUCT = re.compile(
    r"^aten::(mm|addmm|bmm|baddbmm|mkldnn_rnn_layer\w*|_scaled_dot_product_flash_attention_for_cpu\w*)$|"
    + _CONVOLUTION.pattern
)


def to_try(
    t: Tables, shares: Mapping[str, float], operators: Sequence[HostOperator], prescribed: Sequence[Prescription]
) -> tuple[str, ...]:
    """Return the ids of changes that a trial may show to help, where operators take most of a step without a device.

    How fast a CPU computes in 16 bits, in another layout or in fused loops depends on its instructions and its caches:
    a script that took 440 ms a step took 239 ms under autocast and 310 ms compiled; a small model of depthwise
    convolutions took a third longer under autocast, a small convolutional one two thirds longer compiled.

    On a device, changes for what only a trial shows to be avoidable. Of several ranks nothing is named: the command
    does not start them.

    Args:
        t: the recorded steps.
        shares: of the step, by cause.
        operators: the most expensive ones, by self time.
        prescribed: changes that a finding has brought up already, most of them with a prediction.
    """
    info, program, step_ns = t.capture.info, t.program, t.steps.step_ns
    if t.device_id >= 0 and t.trace.world_size <= 1:
        return tuple(dict.fromkeys(p.id for p in prescribed if not META[p.rule].is_avoidable and p.id in CHANGES))
    if t.device_id >= 0 or info is None or info.world_size > 1 or not step_ns or shares.get(WORK, 0.0) < MIN_COMPUTED:
        return ()
    products, convolutions = (
        sum(each.self_ns for each in operators if pattern.match(each.name)) / step_ns
        for pattern in (_PRODUCT, _CONVOLUTION)
    )
    in_float32 = 0.0 if info.flags.autocast.dtype else products
    work = HostWork(in_float32, convolutions, info.flags.bfloat16 is True, program.is_compiled)
    known = {p.id for p in prescribed if p.predicted_step_ns is not None}
    fitting = (change.id for change in CHANGES.values() if change.to_try is not None and change.to_try(work))
    return tuple(name for name in fitting if name not in known)


# The device's kernels, each with the place of its launch.


def kernels(t: Tables) -> tuple[KernelTime, ...]:
    """Return the device's kernels, each with the place of its launch."""
    events = t.trace.events
    return tuple(
        replace(row, where=replace(locate_one(t, int(events.thread[at]), int(events.start[at])), stack=()))
        if at >= 0
        else row
        for row, at in kernel_times(t)
    )


# Where the host's time goes: operators by self time over the steady steps.

MAX_OPERATORS = 12


class _Sums(NamedTuple):
    """Of operators of each name, calls and nanoseconds, by row of ``Trace.names``."""

    calls: Ints
    own: Floats  # self time
    whole: Floats


def _sums(t: Tables, thread: int) -> _Sums:
    """Return the sums of one thread's operators in the window; self time is without that of the operators in them."""
    start, end = t.steps.window
    rows, events, num = host_rows(t.trace, thread, Kind.OP), t.trace.events, len(t.trace.names)
    nested = layers(t.trace, rows[(events.start[rows] >= start) & (events.start[rows] < end)])
    calls, own, whole = np.zeros(num, np.int64), np.zeros(num), np.zeros(num)
    for depth, layer in enumerate(nested.rows):
        names, spent = events.name[layer], (events.end[layer] - nested.start[depth]).astype(np.float64)
        calls += np.bincount(names, minlength=num)
        whole += np.bincount(names, spent, num)
        if depth + 1 < len(nested.rows):
            children = nested.rows[depth + 1]
            parent = np.searchsorted(nested.start[depth], nested.start[depth + 1], side="right") - 1
            spent -= np.bincount(parent, events.end[children] - nested.start[depth + 1], len(layer))
        own += np.bincount(names, np.maximum(spent, 0.0), num)
    return _Sums(calls, own, whole)


def host_operators(t: Tables) -> tuple[HostOperator, ...]:
    """Return the operators of the threads that matter, the most expensive by self time first."""
    if not t.threads:
        return ()
    parts = [_sums(t, thread) for thread in t.threads]
    calls, own, whole = (sum(column) for column in zip(*parts, strict=True))
    called = np.flatnonzero(calls)
    return tuple(
        HostOperator(
            name=t.trace.names[i],
            calls_per_step=calls[i] / t.steps.num,
            self_ns=own[i] / t.steps.num,
            total_ns=whole[i] / t.steps.num,
            shapes=_commonest_shapes(t, i),
        )
        for i in called[np.argsort(-own[called], kind="stable")][:MAX_OPERATORS].tolist()
    )


def _commonest_shapes(t: Tables, name: int) -> str:
    """Return the shapes that most of the calls of a name have, the first of several; "" where none were recorded."""
    events, (start, end) = t.trace.events, t.steps.window
    rows = np.flatnonzero((events.name == name) & (events.kind == int(Kind.OP)) & (events.shapes >= 0))
    rows = rows[(events.start[rows] >= start) & (events.start[rows] < end) & among(events.thread[rows], t.threads)]
    if not len(rows):
        return ""
    shapes = events.shapes[rows]
    counted = np.bincount(shapes)
    commonest = int(shapes[(counted[shapes] == counted.max()).argmax()])
    return t.trace.names[commonest]


# Where a diagnosis comes from: the file, the command, the devices, and what step times depend on beside the code.


def source_of(t: Tables) -> Source:
    """Return what the trace and the description of the capture hold of it."""
    info, trace = t.capture.info, t.trace
    names = tuple(dict.fromkeys(d.name for d in trace.devices if d.name))
    found_by = info.found_steps_by if info else t.steps.found_by or "none"
    return Source(
        path=trace.path,
        command=command_line(info.command) if info else "",
        torch=info.torch if info else "",
        devices=names,
        world_size=trace.world_size,
        found_steps_by=found_by,
        unprofiled_step_ns=tuple(unprofiled_steps(t).round().astype(int).tolist()),
        settled_after=info.settled_after if info else None,
        samples=as_facts(info.nvml) if info else {},
        setup=_setup(info) if info else {},
        loading=as_facts(info.loader.counters) if info else {},
        accelerator=accelerator_of(trace.names) if t.device_id < 0 else "",
    )


def _setup(info: CaptureInfo) -> dict[str, object]:
    """Return what step times depend on besides the code, as far as the capture holds it."""
    optimizers, flags = (info.optimizer, *info.optimizer.others), info.flags
    has_optimizer = info.optimizer.num_params is not None
    autocast = f"{flags.autocast.device} {flags.autocast.dtype}".strip()
    known = {
        "batch_size": info.loader.batch_size,
        "num_params": sum(one.num_params or 0 for one in optimizers) if has_optimizer else None,
        "num_tensors": sum(one.num_tensors or 0 for one in optimizers) if has_optimizer else None,
        "param_dtypes": sorted({dtype for one in optimizers for dtype in one.dtypes}) or None,
        "matmul_precision": flags.matmul_precision,
        "autocast": autocast or ("off" if flags.matmul_precision is not None else None),  # both are noted together
        "num_threads": flags.num_threads,
    }
    return {name: value for name, value in known.items() if value is not None}


_Part = TypeVar("_Part")
WITHHELD = "graphs ran whose work is not in the file"


def analyze_rank(capture: Capture, *, draw: bool = True, alone: bool = True) -> Diagnosis:
    """Diagnose one rank; ``draw`` makes what only charts and the text report show.

    ``alone``: no other rank's trace is at hand. What its collectives wait for is not known then, nor what a step
    without them would take.
    """
    return _diagnosis(find_in_rank(capture), draw=draw, alone=alone)


def examine_rank(capture: Capture, analyses: Analyses | None = None, *, draw: bool = True) -> tuple[Diagnosis, Program]:
    """Diagnose a rank among others, and return what is known of its program; ``analyses`` as for `find_in_rank`."""
    found = find_in_rank(capture, analyses)
    return _diagnosis(found, draw=draw, alone=False), found.program


def _diagnosis(rank: RankFindings, *, draw: bool, alone: bool) -> Diagnosis:
    t, notes = rank.tables, rank.notes

    def part(name: str, make: Callable[[Tables], _Part]) -> _Part | None:
        with noting(name, notes):
            return make(t)
        return None

    operators = part("operators", host_operators) or ()  # before a replay's graphs lie beside what it needs
    shares = _shares(t)
    valued = _valued(rank, draw=draw, alone=alone)
    judged = _judged(rank, valued, shares)
    rules = [rule.META for rule in applied_rules(t)]
    rules += [] if t.trace.world_size <= 1 or not alone else [rule.META for rule in analyzers.RANK_RULES]
    missing = missing_records(t, alone=alone)
    left_out = not_looked(rules, missing, lacks_device=lacks_device(t))
    named = {f.rule for f in valued.findings}
    computing = judged.partition.compute if judged.partition is not None else shares.get(analyzers.WORK, 0.0)

    diagnosis = Diagnosis(
        verdict=judged.verdict,
        headline="",
        dominant=judged.dominant,
        step_ns=rank.step_ns,
        step_times_ns=tuple(int(n) for n in (t.steps.end - t.steps.start)),
        queue=judged.queue,
        partition=judged.partition,
        idle_by_cause=shares if judged.queue is not None else {},
        findings=tuple(_shown(t, f) for f in valued.findings),
        prescriptions=separated(judged.prescriptions),
        also_possible=part("prescriptions", lambda _t: _further(rank, judged, valued)) or (),
        to_try=part("changes-to-try", lambda t: to_try(t, shares, operators, judged.prescriptions)) or (),
        replay_error=valued.replayed.error,
        waterfall=judged.waterfall,
        critical_path=valued.path,
        source=source_of(t),
        operators=operators,
        code=part("code-times", code_times),
        picture=part("picture", lambda t: _picture(t, rank, valued.findings, shares)) if draw else None,
        roofline=part("roofline", roofline) if draw and t.device_id >= 0 else None,
        flops=part("roofline", flop_utilisation) if t.device_id >= 0 else None,
        memory=part("memory", attrgetter("memory")),
        memory_by_line=part("memory-by-line", memory_by_line),
        kernels=part("kernels", kernels) or (),
        kernel_families=part("kernels", kernel_families) or {},
        checked=tuple(rule.id for rule in rules if rule.id not in left_out),
        not_checked={rule: ", ".join(lacking) for rule, lacking in left_out.items() if rule not in named},
        unseen=unseen(t, left_out, shares, computing),
        profiler_overhead=rank.recorded_ns / t.steps.step_ns - 1 if rank.is_measured else None,
        plain_steps=part("plain-steps", plain_steps),
        passes_per_update=part("backward-passes", passes_per_update),
        cpu_wait=ready_share(t),
        recorded_step_ns=rank.recorded_ns,
        recording_estimate=part(overhead.PROFILER, overhead.estimated_share) or 0.0,
        phases=part("phases", lambda t: phase_shares(t.capture)) or {},
        watched_steps=rank.capture.run.num if rank.capture.run is not None else 0,
        host_by_cause=shares if t.device_id < 0 else {},
        record_again=judged.record_again,
        legends=analyzers.LEGENDS if t.device_id >= 0 else analyzers.HOST_LEGENDS,
        trust=tuple(notes),  # last: the parts above add to it
    )
    return with_words(diagnosis)


class _Valued(NamedTuple):
    """What is worth naming, with what a step without each cause saves, as replayed."""

    findings: list[Finding]
    prescribed: tuple[Prescription, ...]
    instead: tuple[Prescription, ...]  # for findings whose own change is folded into one of these
    replayed: Replayed
    waterfall: Waterfall | None
    path: CriticalPath | None


def _valued(rank: RankFindings, *, draw: bool, alone: bool) -> _Valued:
    t, notes = rank.tables, rank.notes
    replayed, steps_after, path = Replayed(rank.prescribed), None, None
    with noting("replay", notes):
        replayed = replay_savings(t, rank.findings, rank.prescribed, rank.rare_ns)
        notes += [Note(replayed.why_not)] if replayed.why_not else []
        path = path_of(t, replayed, draw=draw)
    found = [
        replace(
            f,
            path_share=replayed.on_path.get(f.rule),
            relief_ns=_relief(t, f, replayed, rank.recording.get(f.rule, 0.0), alone=alone),
        )
        for f in rank.findings
    ]
    least_ns = THRESHOLDS.naming_share * rank.step_ns
    found = [f for f in found if not costs_more(f) or max(f.lost_ns, f.relief_ns or 0.0) >= least_ns]
    found = in_order(replace(f, worth_ns=worth_ns(f, analyzers.META[f.rule])) for f in found)
    with noting("replay", notes):
        steps_after = waterfall(t, found, replayed, rank.rare_ns, combine=draw)  # of what is listed
    named = {f.rule for f in found}
    of_named = tuple(p for p in replayed.prescriptions if p.rule in named)
    return _Valued(found, *one_compilation(of_named, steps_after), replayed, steps_after, path)


class _Judged(NamedTuple):
    """The verdict, the finding that answers, and the changes that are offered."""

    verdict: Verdict
    queue: Queue | None
    partition: Partition | None
    dominant: str | None
    prescriptions: tuple[Prescription, ...]
    waterfall: Waterfall | None
    record_again: str  # why the file cannot carry an answer, "" if it can
    is_incomplete: bool


def _judged(rank: RankFindings, valued: _Valued, shares: Mapping[str, float]) -> _Judged:
    t, notes, found, steps_after = rank.tables, rank.notes, valued.findings, valued.waterfall
    withheld = t.device_id >= 0 and graphs_left_no_task(t)
    queue = t.queue if t.device_id >= 0 and not withheld else None
    largest = None if withheld else answering(found, rank.step_ns, has_device=t.device_id >= 0)
    again, why = False, WITHHELD if withheld else ""
    with noting("trust", notes):
        why = why_unusable(t) or why or why_outweighed(t, largest, rank.step_ns)
        again = bool(why) or is_incomplete(t)
    place = {f.rule: i for i, f in enumerate(found)}
    prescriptions = worth_showing(found, valued.prescribed, steps_after, rank.step_ns)
    prescriptions = tuple(sorted(prescriptions, key=lambda p: (place.get(p.rule, len(place)), by_value(p))))
    with noting("trust", notes):
        prescriptions = recording_first(prescriptions, found, rank.step_ns, t.program, is_incomplete=again)
        if again or (prescriptions and prescriptions[0].records_again):
            # Of a cold recording as of an incomplete one: what a steady step would save is not in it.
            prescriptions, steps_after = without_savings(prescriptions), None
    return _Judged(
        verdict(queue, t.partition if queue else None, shares if queue else {}),
        queue,
        t.partition if queue else None,
        largest.rule if largest is not None else None,
        tuple(prescriptions),
        steps_after,
        why,
        again,
    )


def _further(rank: RankFindings, judged: _Judged, valued: _Valued) -> tuple[Prescription, ...]:
    if judged.is_incomplete:
        return ()
    shown = {p.id for p in judged.prescriptions}
    instead = tuple(p for p in valued.instead if p.id in shown)
    program = rank.tables.program
    return *instead, *further(valued.findings, judged.prescriptions, rank.step_ns, program)


def _relief(t: Tables, finding: Finding, replayed: Replayed, recording_ns: float, *, alone: bool) -> float | None:
    """Return what the step saves without a finding's cause, None where that was not replayed.

    A change may take more away than the cause itself, as the launches of superfluous kernels or the wait for a hidden
    copy: the middle of its range counts. A copy is not left out, but hidden: what that saves counts for it. Where
    workers pace the step, their wait takes what another cause leaves. Operators of a CPU have to be called, but for
    what a change is predicted to take away.
    """
    mine = [p for p in replayed.prescriptions if p.rule == finding.rule and p.id in replayed.effects]
    if t.device_id < 0 and analyzers.META[finding.rule].paced_by == "dispatch":
        return max((middle_ns(*p.saves_ns) for p in mine), default=0.0)
    relief = replayed.relief_ns.get(finding.rule)
    if relief is None or (alone and analyzers.META[finding.rule].cause == "collective"):
        return None
    if is_paced_by_workers(t, finding.rule):
        return 0.0
    if mine and analyzers.META[finding.rule].cause == "copy":
        return max(middle_ns(*p.saves_ns) for p in mine)
    most = max([relief, *(middle_ns(*p.saves_ns) for p in mine)])
    return max(min(most, finding.lost_ns) - recording_ns, 0.0) if analyzers.META[finding.rule].inflated else most


def profile_rank(capture: Capture, analyses: Analyses | None = None) -> RankProfile:
    """Return what the comparison of ranks needs of this one; times are those recorded, which all ranks share.

    ``analyses`` are those of the capture's data flow, made here if none are given.
    """
    from diagnose.ranks.measure import profile_of  # only where there are several ranks

    notes: list[Note] = []
    t = explained(begin(capture, capture.trace, analyses or analysed(capture, notes)), notes)
    queue = t.queue if t.device_id >= 0 and not graphs_left_no_task(t) else None
    answer = verdict(queue, t.partition if queue else None, _shares(t) if queue else {})
    return profile_of(t, analyzers.TRAITS, verdict=answer, notes=tuple(note.text for note in (*t.trace.trust, *notes)))


def _shown(t: Tables, finding: Finding) -> Finding:
    """Return a finding with evidence of what the numbers are of: each step, or where none was found the recording."""
    return finding if t.steps.marked else replace(finding, evidence=of_recording(finding.evidence))


def _picture(t: Tables, rank: RankFindings, findings: Sequence[Finding], shares: Mapping[str, float]) -> Picture:
    from diagnose.pipeline.flow_pictures import flow_pictures  # only where it is shown: types of charts take 5 ms
    from diagnose.pipeline.timeline import picture

    drawn = picture(t, shares, named=rank.named, recorded=rank.capture.trace)
    return replace(drawn, flows=flow_pictures(t, findings))


def _shares(t: Tables) -> Mapping[str, float]:
    """Return the share of the window that each cause takes: of idle, or without a device of the host's time."""
    start, end = t.steps.window
    return {rule: ns / (end - start) for rule, ns in t.causes.totals().items()}
