"""A diagnosis back from its JSON, so that a report kept from yesterday can be compared with today's.

What the JSON does not hold is missing: the picture, examples' places beyond their line, sampled series. A report is a
file like any other: every value is checked for its type and its range.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec
from msgspec import UNSET

from diagnose.errors import InputError
from diagnose.model.decoding import decode
from diagnose.model.diagnosis import (
    Diagnosis,
    Finding,
    Partition,
    Prescription,
    Queue,
    Source,
    Where,
)
from diagnose.model.events import Note
from diagnose.model.plain_steps import PlainSteps
from diagnose.reports.json import SCHEMA_VERSION
from diagnose.reports.json_records import (
    FindingRecord,
    HeadRecord,
    Ms,
    PartitionRecord,
    PlainStepsRecord,
    PrescriptionRecord,
    QueueRecord,
    ReportRecord,
    SourceRecord,
    VersionRecord,
    WhereRecord,
)

__all__ = ["from_dict", "from_json", "is_report"]

REMEDY = "Write it again with --json."
HEAD_BYTES = 1 << 16  # in which a report has both keys, whatever is nested behind them


def is_report(text: bytes) -> bool:
    """Return whether a JSON text is, or once was, a diagnosis: it has a schema_version and a verdict."""
    try:
        head = msgspec.json.decode(text, type=HeadRecord)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    except RecursionError:
        return all(key in text[:HEAD_BYTES] for key in (b'"schema_version"', b'"verdict"'))
    return UNSET not in (head.schema_version, head.verdict)


def from_json(text: str | bytes, *, source: str) -> Diagnosis:
    """Read what ``Diagnosis.to_json`` wrote; ``source`` names it in errors.

    Raises:
        InputError: it is not JSON, not a diagnosis, of a later schema, or a value is not what it can be.
    """
    head = decode(text, HeadRecord, source=source, remedy="Name a report that diagnose wrote with --json.")
    if UNSET in (head.schema_version, head.verdict):
        raise InputError(f"{source} is not a diagnosis; name a report that diagnose wrote with --json.")
    version = decode(text, VersionRecord, source=source, remedy=REMEDY).schema_version
    if version > SCHEMA_VERSION:
        raise InputError(f"{source} was written by a newer diagnose (schema {version}); please upgrade.")
    return _diagnosis(decode(text, ReportRecord, source=source, remedy=REMEDY))


def from_dict(data: object, *, source: str) -> Diagnosis:
    """Read what ``reports.json.to_dict`` gave.

    Raises:
        InputError: it is not a diagnosis, of a later schema, or a value is not what it can be.
    """
    return from_json(json.dumps(data), source=source)


def _diagnosis(d: ReportRecord) -> Diagnosis:
    return Diagnosis(
        verdict=d.verdict,
        headline=d.headline,
        summary=tuple(d.summary),
        dominant=d.dominant,
        step_ns=_ns(d.step_ms),
        step_times_ns=_times(d.step_times_ms),
        queue=None if d.queue is None else _queue(d.queue),
        partition=None if d.partition is None else _partition(d.partition),
        idle_by_cause=_shares(d.idle_by_cause),
        findings=tuple(map(_finding, d.findings)),
        prescriptions=tuple(map(_prescription, d.prescriptions)),
        also_possible=tuple(map(_prescription, d.also_possible)),
        to_try=tuple(d.to_try),
        trust=tuple(Note(note.text, note.rule) for note in d.trust),
        source=_source(d.source),
        replay_error=d.replay.error_share if d.replay else None,
        host_by_cause=_shares(d.host_by_cause or {}),
        record_again=d.record_again,
        unseen=d.unseen,
        profiler_overhead=d.profiler_overhead,
        recorded_step_ns=_ns(d.recorded_step_ms or d.step_ms),
        plain_steps=None if d.plain_steps is None else _plain_steps(d.plain_steps),
        passes_per_update=d.passes_per_update,
        cpu_wait=d.cpu_wait,
        recording_estimate=d.recording_estimate,
    )


def _plain_steps(p: PlainStepsRecord) -> PlainSteps:
    each = (p.before_ms, p.recorded_ms, p.after_ms, p.mean_ms)
    before, recorded, after, mean = (None if time is None else _ns(time) for time in each)
    return PlainSteps(before, recorded or 0.0, after, mean, p.num, p.agree)


def _source(s: SourceRecord) -> Source:
    return Source(
        path=s.path,
        command=s.command,
        torch=s.torch,
        devices=tuple(s.devices),
        world_size=s.world_size,
        found_steps_by=s.found_steps_by,
        unprofiled_step_ns=_times(s.unprofiled_step_ms),
        settled_after=s.settled_after,
        samples=s.samples,
        setup=s.setup,
        loading=s.loading,
        accelerator=s.accelerator,
    )


def _queue(q: QueueRecord) -> Queue:
    return Queue(
        busy_share=_share(q.busy_share),
        idle_share=_share(q.idle_share),
        depth_p50=q.depth_p50 or 0.0,
        depth_p90=q.depth_p90 or 0.0,
        empty_share=_share(q.empty_share),
        launches_per_step=q.launches_per_step or 0.0,
        late_share=_share(q.late_share),
        delay_p50_ns=_whole(q.delay_p50_ms),
        busy_depth_p50=q.busy_depth_p50,
        launch_latency_ns=None if q.launch_latency_ms is None else _whole(q.launch_latency_ms),
    )


def _partition(p: PartitionRecord) -> Partition:
    return Partition(_share(p.compute), _share(p.exposed_communication), _share(p.exposed_copy), _share(p.idle))


def _finding(f: FindingRecord) -> Finding:
    return Finding(
        rule=f.rule,
        title=f.title,
        lost_ns=_ns(f.lost_ms),
        count=f.count,
        total_ns=_whole(f.total_ms),
        median_ns=_whole(f.median_ms),
        evidence=tuple(f.evidence),
        where=tuple(map(_where, f.where)),
        confidence=f.confidence,
        facts=f.facts,
        path_share=None if f.path_share is None else _share(f.path_share),
        relief_ns=None if f.relief_ms is None else _ns(f.relief_ms),
        worth_ns=_ns(f.lost_ms if f.relief_ms is None else f.relief_ms) if f.worth_ms is None else _ns(f.worth_ms),
    )


def _where(w: WhereRecord) -> Where:
    return Where(w.file, w.line, w.function, w.op, tuple(w.stack), w.code, w.library, w.last_line)


def _prescription(p: PrescriptionRecord) -> Prescription:
    return Prescription(
        rule=p.rule,
        id=p.id,
        title=p.title,
        before=p.before,
        after=p.after,
        saves_ns=(_ns(p.saves_ms[0]), _ns(p.saves_ms[1])),
        predicted_step_ns=None if p.predicted_step_ms is None else _ns(p.predicted_step_ms),
        safety=p.safety,
        promise=p.promise,
        needs=p.needs,
        remedy=p.remedy,
        basis=p.basis,
        assumes=p.assumes,
        edits=tuple(map(_where, p.edits)),
        diff=p.diff,
        trial_method=p.trial_method,
        is_advice=p.is_advice,
        records_again=p.records_again,
        records_more=p.records_more,
        mean_step_ns=None if p.mean_step_ms is None else _ns(p.mean_step_ms),
    )


def _times(times_ms: list[Ms]) -> tuple[int, ...]:
    return tuple(round(ms * 1e6) for ms in times_ms if ms is not None)


def _shares(shares: Mapping[str, float | None]) -> dict[str, float]:
    return {name: _share(share) for name, share in shares.items()}


def _share(share: float | None) -> float:
    return min(max(share or 0.0, 0.0), 1.0)


def _whole(ms: float | None) -> int:
    return round((ms or 0.0) * 1e6)


def _ns(ms: float | None) -> float:
    return float("nan") if ms is None else ms * 1e6
