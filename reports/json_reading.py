"""A diagnosis back from its JSON, so that a report kept from yesterday can be compared with today's.

What the JSON does not hold is missing: the picture, examples' places beyond their line, sampled series. A report is a
file like any other: every value is checked for its type and its range.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from diagnose.errors import InputError
from diagnose.model.decoding import decode
from diagnose.model.diagnosis import (
    Confidence,
    Diagnosis,
    Finding,
    Partition,
    Prescription,
    Queue,
    Source,
    Verdict,
    Where,
)
from diagnose.model.events import Note
from diagnose.model.trial_methods import TrialMethod
from diagnose.reports.json import SCHEMA_VERSION

__all__ = ["from_dict", "from_json", "is_report"]

REMEDY = "Write it again with --json."
HEAD_BYTES = 1 << 16  # in which a report has both keys, whatever is nested behind them
ROUNDING = 1e-6  # by which shares of earlier releases left their range

Ms: TypeAlias = Annotated[float, Meta(ge=0, le=1e12)] | None
Amount: TypeAlias = Annotated[float, Meta(ge=0, le=1e18)] | None
Share: TypeAlias = Annotated[float, Meta(ge=-ROUNDING, le=1 + ROUNDING)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]
Setting: TypeAlias = bool | Annotated[int, Meta(ge=-(2**62), le=2**62)] | float | str | None
Rule: TypeAlias = Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,100}$")]


class _Head(msgspec.Struct):
    schema_version: msgspec.Raw | UnsetType = UNSET
    verdict: msgspec.Raw | UnsetType = UNSET


class _Version(msgspec.Struct):
    schema_version: Annotated[int, Meta(ge=1, le=2**62)]


class _Queue(msgspec.Struct):
    busy_share: Share | None
    idle_share: Share | None
    depth_p50: Amount
    depth_p90: Amount
    empty_share: Share | None
    launches_per_step: Amount
    late_share: Share | None
    delay_p50_ms: Ms
    busy_depth_p50: Amount = None  # absent in older reports
    launch_latency_ms: Ms = None


class _Partition(msgspec.Struct):
    compute: Share | None
    exposed_communication: Share | None
    exposed_copy: Share | None
    idle: Share | None


class _Where(msgspec.Struct):
    file: str | None
    line: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None
    op: str | None
    function: str | None
    code: str | None
    stack: list[str]
    library: str | None = None  # absent in older reports


class _Finding(msgspec.Struct):
    rule: Rule
    title: str
    lost_ms: Ms
    count: Count
    total_ms: Ms
    median_ms: Ms
    evidence: list[str]
    where: list[_Where]
    confidence: Confidence
    facts: dict[str, object]
    path_share: Share | None = None
    relief_ms: Ms = None


class _Prescription(msgspec.Struct):
    rule: Rule
    id: str
    title: str
    before: str
    after: str
    saves_ms: tuple[Ms, Ms]
    predicted_step_ms: Ms
    safety: str
    needs: str
    remedy: str
    basis: Literal["replay", "bound"] = "bound"
    assumes: str = ""
    edits: list[_Where] = []
    diff: str = ""
    trial_method: TrialMethod | Literal[""] = ""
    records_again: bool = False
    records_more: bool = False
    mean_step_ms: Ms = None


class _Note(msgspec.Struct):
    text: str
    rule: Rule | None = None


class _Source(msgspec.Struct):
    path: str
    command: str
    torch: str
    devices: list[str]
    world_size: Annotated[int, Meta(ge=1, le=2**31)]
    found_steps_by: str
    unprofiled_step_ms: list[Ms]
    settled_after: Count | None
    samples: dict[str, object]
    setup: dict[str, Setting | list[Setting]] = {}  # msgspec gives every record its own
    loading: dict[str, float] = {}


class _Replay(msgspec.Struct):
    error_share: Amount = None


class _Report(msgspec.Struct):
    verdict: Verdict
    headline: str
    dominant: Rule | None
    step_ms: Ms
    step_times_ms: list[Ms]
    queue: _Queue | None
    partition: _Partition | None
    idle_by_cause: dict[Rule, Share | None]
    findings: list[_Finding]
    prescriptions: list[_Prescription]
    trust: list[_Note]
    source: _Source
    replay: _Replay | None = None
    host_by_cause: dict[Rule, Share | None] | None = None
    profiler_overhead: Annotated[float, Meta(ge=-1, le=1e12)] | None = None
    recording_removed: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    cpu_wait: Annotated[float, Meta(ge=0, le=1)] = 0.0
    recording_ms: Ms = None
    recording_estimate: Annotated[float, Meta(ge=0, le=1)] = 0.0
    summary: list[str] = []
    also_possible: list[_Prescription] = []


def is_report(text: bytes) -> bool:
    """Return whether a JSON text is, or once was, a diagnosis: it has a schema_version and a verdict."""
    try:
        head = msgspec.json.decode(text, type=_Head)
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
    head = decode(text, _Head, source=source, remedy="Name a report that diagnose wrote with --json.")
    if UNSET in (head.schema_version, head.verdict):
        raise InputError(f"{source} is not a diagnosis; name a report that diagnose wrote with --json.")
    version = decode(text, _Version, source=source, remedy=REMEDY).schema_version
    if version > SCHEMA_VERSION:
        raise InputError(f"{source} was written by a newer diagnose (schema {version}); please upgrade.")
    return _diagnosis(decode(text, _Report, source=source, remedy=REMEDY))


def from_dict(data: object, *, source: str) -> Diagnosis:
    """Read what ``reports.json.to_dict`` gave.

    Raises:
        InputError: it is not a diagnosis, of a later schema, or a value is not what it can be.
    """
    return from_json(json.dumps(data), source=source)


def _diagnosis(d: _Report) -> Diagnosis:
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
        trust=tuple(Note(note.text, note.rule) for note in d.trust),
        source=_source(d.source),
        replay_error=d.replay.error_share if d.replay else None,
        host_by_cause=_shares(d.host_by_cause or {}),
        profiler_overhead=d.profiler_overhead,
        recording_removed=d.recording_removed,
        cpu_wait=d.cpu_wait,
        recording_ns=_ns(d.recording_ms or 0.0),
        recording_estimate=d.recording_estimate,
    )


def _source(s: _Source) -> Source:
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
    )


def _queue(q: _Queue) -> Queue:
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


def _partition(p: _Partition) -> Partition:
    return Partition(_share(p.compute), _share(p.exposed_communication), _share(p.exposed_copy), _share(p.idle))


def _finding(f: _Finding) -> Finding:
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
    )


def _where(w: _Where) -> Where:
    return Where(w.file, w.line, w.function, w.op, tuple(w.stack), w.code, w.library)


def _prescription(p: _Prescription) -> Prescription:
    return Prescription(
        rule=p.rule,
        id=p.id,
        title=p.title,
        before=p.before,
        after=p.after,
        saves_ns=(_ns(p.saves_ms[0]), _ns(p.saves_ms[1])),
        predicted_step_ns=None if p.predicted_step_ms is None else _ns(p.predicted_step_ms),
        safety=p.safety,
        needs=p.needs,
        remedy=p.remedy,
        basis=p.basis,
        assumes=p.assumes,
        edits=tuple(map(_where, p.edits)),
        diff=p.diff,
        trial_method=p.trial_method,
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
