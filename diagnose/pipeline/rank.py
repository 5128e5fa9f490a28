"""The answer of one rank, stage by stage; each hands a record on, and none is called back.

    find_in_rank  the tables of the step without the profiler, what the rules find in them, and the changes for it
    _valued       the replay: what the step saves without each cause, and after each change
    _judged       the verdict, the finding that answers, and the changes that are offered
    _diagnosis    all that a report shows

The verdict is the first answer: is the queue shallow, full, or deep with gaps. The median depth of the queue while the
device works decides. On 94 real timelines with more than half idle it was 1 to 8 if launching was the limit, and 45 or
more if a full queue had holes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from diagnose import analyzers
from diagnose.analyzers import META, WORK
from diagnose.analyzers.common.idle_findings import of_recording
from diagnose.answer import answering, beside_lines, in_order, worth_ns
from diagnose.answer.screen import MOSTLY, OVERLOADED, with_words
from diagnose.changes import CHANGES
from diagnose.changes.common.change import HostWork
from diagnose.changes.common.prescribe import further, recording_first, without_savings
from diagnose.changes.edits.separate_diffs import separated
from diagnose.model.accelerators import accelerator_of
from diagnose.model.capture import Capture, CaptureInfo
from diagnose.model.charts import HostOperator
from diagnose.model.diagnosis import Diagnosis, Finding, Partition, Prescription, Queue, Source, Verdict, middle_ns
from diagnose.model.events import Note
from diagnose.model.records import as_facts
from diagnose.pipeline.code_times import (
    code_times,
    flop_utilisation,
    host_operators,
    kernel_families,
    kernels,
    roofline,
)
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
from diagnose.pipeline.savings import Replayed, by_value, path_of, replay_savings, waterfall
from diagnose.pipeline.true_step import PROFILER, estimated_share
from diagnose.pipeline.trust import (
    is_incomplete,
    lacks_device,
    missing_records,
    names_lines,
    not_looked,
    unseen,
    why_outweighed,
    why_unusable,
)
from diagnose.tables import Tables
from diagnose.tables.host_gaps import is_paced_by_workers, ready_share
from diagnose.tables.lost import graphs_left_no_task
from diagnose.tables.passes import passes_per_update
from diagnose.tables.plain_steps import plain_steps, unprofiled_steps
from diagnose.tables.program import Program
from diagnose.tables.run_steps import phase_shares
from diagnose.tables.stages import begin
from diagnose.tables.thresholds import THRESHOLDS, Thresholds
from diagnose.text.commands import command_line

if TYPE_CHECKING:
    from diagnose.dataflow import Analyses
    from diagnose.model.charts import MemoryByLine, Picture
    from diagnose.model.diagnosis import CriticalPath, Waterfall
    from diagnose.ranks.profile import RankProfile

_Made = TypeVar("_Made")
_Other = TypeVar("_Other")
WITHHELD = "graphs ran whose work is not in the file"


def analyze_rank(capture: Capture, *, draw: bool = True, alone: bool = True) -> Diagnosis:
    """Diagnose one rank; ``draw`` makes what only charts and the text report show.

    ``alone``: no other rank's trace is at hand. What its collectives wait for is not known then, nor what a step
    without them would take.
    """
    return examine_rank(capture, draw=draw, alone=alone)[0]


def examine_rank(
    capture: Capture, analyses: Analyses | None = None, *, draw: bool = True, alone: bool = False
) -> tuple[Diagnosis, Program]:
    """Diagnose a rank as `analyze_rank` does, and return what is known of its program.

    ``analyses`` are those of the capture's data flow, made here if none are given.
    """
    rank = find_in_rank(capture, analyses)
    valued = _valued(rank, draw=draw, alone=alone)
    judged = _judged(rank, valued)
    return with_words(_diagnosis(rank, valued, judged, draw=draw, alone=alone)), rank.program


def profile_rank(capture: Capture, analyses: Analyses | None = None) -> RankProfile:
    """Return what the comparison of ranks needs of this one; times are those recorded, which all ranks share.

    ``analyses`` are those of the capture's data flow, made here if none are given.
    """
    from diagnose.ranks.measure import profile_of  # only where there are several ranks

    notes: list[Note] = []
    t = explained(begin(capture, capture.trace, analyses or analysed(capture, notes)), notes)
    answer = verdict(*_queue_of(t), _shares(t))
    return profile_of(t, analyzers.TRAITS, verdict=answer, notes=tuple(note.text for note in (*t.trace.trust, *notes)))


def _part(
    notes: list[Note], name: str, otherwise: _Other, make: Callable[..., _Made], *given: object
) -> _Made | _Other:
    """Return what a part of the answer is, ``otherwise`` and a note where that fails."""
    with noting(name, notes):
        return make(*given)
    return otherwise


class _Valued(NamedTuple):
    """What is worth naming, with what a step without each cause saves, as replayed."""

    operators: tuple[HostOperator, ...]
    findings: list[Finding]
    prescribed: tuple[Prescription, ...]
    instead: tuple[Prescription, ...]  # for findings whose own change is folded into one of these
    error: float | None  # of the replay
    waterfall: Waterfall | None
    path: CriticalPath | None


def _valued(rank: RankFindings, *, draw: bool, alone: bool) -> _Valued:
    t, notes = rank.tables, rank.notes
    operators = _part(notes, "operators", (), host_operators, t)  # before graphs lie beside what it needs
    replayed, steps_after, path = Replayed(rank.prescribed), None, None
    with noting("replay", notes):
        replayed = replay_savings(t, rank.findings, rank.prescribed, rank.rare_ns)
        notes += [Note(replayed.why_not)] if replayed.why_not else []
        path = path_of(t, replayed, draw=draw)
    least_ns = THRESHOLDS.naming_share * rank.step_ns
    found: list[Finding] = []
    for f in rank.findings:
        relief_ns = _relief(t, f, replayed, rank.recording.get(f.rule, 0.0), alone=alone)
        if not costs_more(f) or max(f.lost_ns, relief_ns or 0.0) >= least_ns:
            with_relief = replace(f, path_share=replayed.on_path.get(f.rule), relief_ns=relief_ns)
            found.append(replace(with_relief, worth_ns=worth_ns(with_relief, META[f.rule])))
    found = in_order(beside_lines(found, META))
    with noting("replay", notes):
        steps_after = waterfall(t, found, replayed, rank.rare_ns, combine=draw)  # of what is listed
    named = {f.rule for f in found}
    of_named = tuple(p for p in replayed.prescriptions if p.rule in named)
    return _Valued(operators, found, *one_compilation(of_named, steps_after), replayed.error, steps_after, path)


def _relief(t: Tables, finding: Finding, replayed: Replayed, recording_ns: float, *, alone: bool) -> float | None:
    """Return what the step saves without a finding's cause, None where that was not replayed.

    A change may take more away than the cause itself, as the launches of superfluous kernels or the wait for a hidden
    copy: the middle of its range counts. A copy is not left out, but hidden: what that saves counts for it. Where
    workers pace the step, their wait takes what another cause leaves. Operators of a CPU have to be called, but for
    what a change is predicted to take away.
    """
    if finding.share is not None:  # the recorded steps have little of it, if any
        return None
    rule, relief = META[finding.rule], replayed.relief_ns.get(finding.rule)
    mine = [p for p in replayed.prescriptions if p.rule == finding.rule and p.id in replayed.effects]
    by_change = max((middle_ns(*p.saves_ns) for p in mine), default=0.0)
    if t.device_id < 0 and rule.paced_by == "dispatch":
        return by_change
    if relief is None or (alone and rule.cause == "collective"):
        return None
    if is_paced_by_workers(t, finding.rule):
        return 0.0
    if mine and rule.cause == "copy":
        return by_change
    most = max(relief, by_change)
    return max(min(most, finding.lost_ns) - recording_ns, 0.0) if rule.inflated else most


class _Judged(NamedTuple):
    """The verdict, the finding that answers, and the changes that are offered."""

    verdict: Verdict
    queue: Queue | None
    partition: Partition | None
    dominant: str | None
    prescriptions: tuple[Prescription, ...]
    also: tuple[Prescription, ...]  # further changes, of which nothing is predicted
    waterfall: Waterfall | None
    record_again: str  # why the file cannot carry an answer, "" if it can


def _judged(rank: RankFindings, valued: _Valued) -> _Judged:
    t, notes, found, steps_after, step_ns = rank.tables, rank.notes, valued.findings, valued.waterfall, rank.step_ns
    queue, partition = _queue_of(t)
    is_withheld = queue is None and t.device_id >= 0
    largest = None if is_withheld else answering(found, step_ns, has_device=t.device_id >= 0)
    again, why = False, WITHHELD if is_withheld else ""
    with noting("trust", notes):
        why = why_unusable(t) or why or why_outweighed(t, largest, step_ns)
        again = bool(why) or is_incomplete(t)
    place = {f.rule: i for i, f in enumerate(found)}
    shown = worth_showing(found, valued.prescribed, steps_after, step_ns)
    shown = tuple(sorted(shown, key=lambda p: (place.get(p.rule, len(place)), by_value(p))))
    with noting("trust", notes):
        shown = recording_first(shown, found, step_ns, rank.program, is_incomplete=again)
        if again or any(p.records_again for p in shown[:1]):
            # Of a cold recording as of an incomplete one: what a steady step would save is not in it.
            shown, steps_after = without_savings(shown), None
    also: tuple[Prescription, ...] = ()
    if not again:
        ids = {p.id for p in shown}
        others = _part(notes, "prescriptions", (), further, found, shown, step_ns, rank.program)
        also = *(p for p in valued.instead if p.id in ids), *others
    return _Judged(
        verdict(queue, partition, _shares(t)),
        queue,
        partition,
        largest.rule if largest is not None else None,
        shown,
        also,
        steps_after,
        why,
    )


def _queue_of(t: Tables) -> tuple[Queue | None, Partition | None]:
    """Return the queue and what covers the step; None without a device, or where the work of its graphs is missing."""
    return (None, None) if t.device_id < 0 or graphs_left_no_task(t) else (t.queue, t.partition)


def verdict(
    queue: Queue | None, partition: Partition | None, idle_by_cause: Mapping[str, float], at: Thresholds = THRESHOLDS
) -> Verdict:
    """Apply the procedure: a full device, a shallow queue, or a deep queue with gaps."""
    if queue is None or partition is None:
        return "no-gpu"
    if queue.idle_share <= at.significant_idle:
        return "kernel-bound"
    if partition.exposed_communication > queue.idle_share:
        return "gaps"  # the device waits for other ranks longer than for its host
    # While code is loaded and memory taken for the first time the host is the limit, however deep the queue was before.
    cold = sum(share for rule, share in idle_by_cause.items() if rule in META and META[rule].one_off)
    is_sparse = queue.idle_share > at.sparse_idle
    if queue.busy_depth_p50 is None:
        is_shallow = is_sparse and queue.late_share >= at.sparse_late
    else:
        is_shallow = queue.busy_depth_p50 <= at.shallow_depth
    return "cpu-bound" if is_shallow or (is_sparse and cold >= at.cold_share * queue.idle_share) else "gaps"


def _diagnosis(rank: RankFindings, valued: _Valued, judged: _Judged, *, draw: bool, alone: bool) -> Diagnosis:
    t, notes, shares, has_device = rank.tables, rank.notes, _shares(rank.tables), rank.tables.device_id >= 0
    rules = [rule.META for rule in applied_rules(t, alone=alone)]
    left_out = not_looked(rules, missing_records(t, alone=alone), lacks_device=lacks_device(t))
    named = {f.rule for f in valued.findings}
    computing = judged.partition.compute if judged.partition is not None else shares.get(WORK, 0.0)
    each_step = valued.findings
    if not t.steps.marked:  # where no steps were found, numbers are of the recording
        each_step = [replace(f, evidence=of_recording(f.evidence)) for f in each_step]
    return Diagnosis(
        verdict=judged.verdict,
        headline="",
        dominant=judged.dominant,
        step_ns=rank.step_ns,
        step_times_ns=tuple((t.steps.end - t.steps.start).tolist()),
        queue=judged.queue,
        partition=judged.partition,
        idle_by_cause=shares if judged.queue is not None else {},
        findings=tuple(each_step),
        prescriptions=separated(judged.prescriptions),
        also_possible=judged.also,
        to_try=_part(notes, "changes-to-try", (), to_try, t, shares, valued.operators, judged.prescriptions),
        replay_error=valued.error,
        waterfall=judged.waterfall,
        critical_path=valued.path,
        source=source_of(t),
        operators=valued.operators,
        code=_part(notes, "code-times", None, code_times, t),
        picture=_part(notes, "picture", None, _picture, rank, valued.findings) if draw else None,
        roofline=_part(notes, "roofline", None, roofline, t) if draw and has_device else None,
        flops=_part(notes, "roofline", None, flop_utilisation, t) if has_device else None,
        memory=_part(notes, "memory", None, attrgetter("memory"), t),
        memory_by_line=_part(notes, "memory-by-line", None, _memory_by_line, t),
        kernels=_part(notes, "kernels", (), kernels, t),
        kernel_families=_part(notes, "kernels", {}, kernel_families, t),
        checked=tuple(rule.id for rule in rules if rule.id not in left_out),
        not_checked={rule: ", ".join(lacking) for rule, lacking in left_out.items() if rule not in named},
        unseen=unseen(t, left_out, shares, computing),
        profiler_overhead=rank.recorded_ns / t.steps.step_ns - 1 if rank.is_measured else None,
        plain_steps=_part(notes, "plain-steps", None, plain_steps, t),
        passes_per_update=_part(notes, "backward-passes", None, passes_per_update, t),
        cpu_wait=ready_share(t),
        recorded_step_ns=rank.recorded_ns,
        recording_estimate=_part(notes, PROFILER, 0.0, estimated_share, t),
        phases=_part(notes, "phases", {}, phase_shares, t.capture),
        watched_steps=rank.capture.run.num if rank.capture.run is not None else 0,
        host_by_cause={} if has_device else shares,
        record_again=judged.record_again,
        legends=analyzers.LEGENDS if has_device else analyzers.HOST_LEGENDS,
        trust=tuple(notes),  # last: the parts above add to it
    )


def _shares(t: Tables) -> Mapping[str, float]:
    """Return the share of the window that each cause takes: of idle, or without a device of the host's time."""
    start, end = t.steps.window
    return {rule: ns / (end - start) for rule, ns in t.causes.totals().items()}


def _memory_by_line(t: Tables) -> MemoryByLine | None:
    if t.flow is None:
        return None
    from diagnose.pipeline.timeline import memory_by_line  # only a recorded data flow needs it

    return memory_by_line(t)


def _picture(rank: RankFindings, findings: Sequence[Finding]) -> Picture:
    from diagnose.pipeline.timeline import flow_pictures, picture  # only where it is shown

    drawn = picture(rank.tables, _shares(rank.tables), named=rank.named, recorded=rank.capture.trace)
    return drawn._replace(flows=flow_pictures(rank.tables, findings))


_CONVOLUTION = re.compile(r"^aten::(mkldnn_convolution\w*|convolution_backward|_slow_conv\w+|thnn_conv\w+)$")
_PRODUCT = re.compile(
    r"^aten::(mm|addmm|bmm|baddbmm|mkldnn_rnn_layer\w*|_scaled_dot_product_flash_attention_for_cpu\w*)$|"
    + _CONVOLUTION.pattern
)


def to_try(
    t: Tables, shares: Mapping[str, float], operators: Sequence[HostOperator], prescribed: Sequence[Prescription]
) -> tuple[str, ...]:
    """Return the ids of changes that a trial may show to help, where operators take most of a step without a device.

    How fast a CPU computes in 16 bits, in another layout or in fused loops depends on its instructions and its caches.
    Before these come changes for what only a trial shows to be avoidable. Of several ranks nothing is named: the
    command does not start them. ``shares`` are of the step by cause, ``operators`` the most expensive ones by self
    time, ``prescribed`` the changes that a finding has brought up already.
    """
    info, step_ns = t.capture.info, t.steps.step_ns
    if max(t.trace.world_size, info.world_size if info is not None else 1) > 1:
        return ()
    found = dict.fromkeys(p.id for p in prescribed if not META[p.rule].is_avoidable and p.id in CHANGES)
    if t.device_id >= 0 or info is None or shares.get(WORK, 0.0) < MOSTLY:
        return tuple(found)
    products, convolutions = (
        sum(each.self_ns for each in operators if pattern.match(each.name)) / step_ns
        for pattern in (_PRODUCT, _CONVOLUTION)
    )
    in_float32 = 0.0 if info.flags.autocast.dtype else products
    if in_channels_last(t):
        convolutions = 0.0
    waits = ready_share(t) >= OVERLOADED and (info.flags.num_threads or 1) > 1
    work = HostWork(in_float32, convolutions, info.flags.bfloat16 is True, t.program.is_compiled, waits)
    known = {p.id for p in prescribed if p.predicted_step_ns is not None}
    fitting = (change.id for change in CHANGES.values() if change.to_try is not None and change.to_try(work))
    return *found, *(name for name in fitting if name not in known)


def in_channels_last(t: Tables) -> bool:
    """Return whether most convolutions of images read them in that layout already."""
    operators = t.flow.found.graph.operators if t.flow is not None else ()
    images = [one.reads[0] for one in operators if one.name == "aten::convolution" and len(one.reads[0].shape) == 4]
    return 2 * sum(use.stride[1:2] == (1,) for use in images) > len(images)


def source_of(t: Tables) -> Source:
    """Return where a diagnosis comes from: the file, the command, the devices, what step times depend on."""
    trace, info = t.trace, t.capture.info
    known = Source(
        path=trace.path,
        devices=tuple(dict.fromkeys(d.name for d in trace.devices if d.name)),
        world_size=trace.world_size,
        found_steps_by=t.steps.found_by or "none",
        unprofiled_step_ns=tuple(unprofiled_steps(t).round().astype(int).tolist()),
        accelerator=accelerator_of(trace.names) if t.device_id < 0 else "",
        names_lines=names_lines(t),
    )
    if info is None:
        return known
    return replace(
        known,
        command=command_line(info.command),
        torch=info.torch,
        found_steps_by=info.found_steps_by,
        settled_after=info.settled_after,
        samples=as_facts(info.nvml),
        setup=_setup(info),
        loading=as_facts(info.loader.counters),
        recorded_at=info.started_at,
    )


def _setup(info: CaptureInfo) -> dict[str, object]:
    """Return what step times depend on besides the code, as far as the capture holds it."""
    optimizers, flags = (info.optimizer, *info.optimizer.others), info.flags
    autocast = f"{flags.autocast.device} {flags.autocast.dtype}".strip()
    known = {
        "batch_size": info.loader.batch_size,
        "num_params": sum(one.num_params or 0 for one in optimizers),
        "num_tensors": sum(one.num_tensors or 0 for one in optimizers),
        "param_dtypes": sorted({dtype for one in optimizers for dtype in one.dtypes}),
        "matmul_precision": flags.matmul_precision,
        "autocast": autocast or (flags.matmul_precision and "off"),  # both are noted together
        "num_threads": flags.num_threads,
    }
    return {name: value for name, value in known.items() if value}
