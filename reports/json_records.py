"""The types and ranges that every value of a report's JSON must have to be read back."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from diagnose.model.diagnosis import Confidence, Promise, Verdict
from diagnose.model.trial_methods import TrialMethod

__all__ = [
    "FindingRecord",
    "HeadRecord",
    "Ms",
    "NoteRecord",
    "PartitionRecord",
    "PlainStepsRecord",
    "PrescriptionRecord",
    "QueueRecord",
    "ReplayRecord",
    "ReportRecord",
    "SourceRecord",
    "VersionRecord",
    "WhereRecord",
]

ROUNDING = 1e-6  # by which shares of earlier releases left their range

Ms: TypeAlias = Annotated[float, Meta(ge=0, le=1e12)] | None
Amount: TypeAlias = Annotated[float, Meta(ge=0, le=1e18)] | None
Share: TypeAlias = Annotated[float, Meta(ge=-ROUNDING, le=1 + ROUNDING)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]
Setting: TypeAlias = bool | Annotated[int, Meta(ge=-(2**62), le=2**62)] | float | str | None
Rule: TypeAlias = Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,100}$")]


class HeadRecord(msgspec.Struct):
    """What shows that a file is a report, whatever else is in it."""

    schema_version: msgspec.Raw | UnsetType = UNSET
    verdict: msgspec.Raw | UnsetType = UNSET


class VersionRecord(msgspec.Struct):
    """The version of the layout."""

    schema_version: Annotated[int, Meta(ge=1, le=2**62)]


class QueueRecord(msgspec.Struct):
    """The figures of the queue."""

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


class PartitionRecord(msgspec.Struct):
    """What the device does, as shares of the step."""

    compute: Share | None
    exposed_communication: Share | None
    exposed_copy: Share | None
    idle: Share | None


class WhereRecord(msgspec.Struct):
    """A place in the code."""

    file: str | None
    line: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None
    op: str | None
    function: str | None
    code: str | None
    stack: list[str]
    library: str | None = None  # absent in older reports
    last_line: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None  # the same


class FindingRecord(msgspec.Struct):
    """One finding."""

    rule: Rule
    title: str
    lost_ms: Ms
    count: Count
    total_ms: Ms
    median_ms: Ms
    evidence: list[str]
    where: list[WhereRecord]
    confidence: Confidence
    facts: dict[str, object]
    path_share: Share | None = None
    relief_ms: Ms = None
    worth_ms: Ms = None


class PrescriptionRecord(msgspec.Struct):
    """One change."""

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
    promise: Promise = ""
    basis: Literal["replay", "bound"] = "bound"
    assumes: str = ""
    edits: list[WhereRecord] = []
    diff: str = ""
    trial_method: TrialMethod | Literal[""] = ""
    is_advice: bool = False
    records_again: bool = False
    records_more: bool = False
    mean_step_ms: Ms = None


class NoteRecord(msgspec.Struct):
    """A sentence about the recording."""

    text: str
    rule: Rule | None = None


class SourceRecord(msgspec.Struct):
    """What was recorded, and how."""

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
    accelerator: str = ""


class ReplayRecord(msgspec.Struct):
    """How well a replay repeats the recording."""

    error_share: Amount = None


class PlainStepsRecord(msgspec.Struct):
    """Steps that no profiler watched."""

    before_ms: Ms
    recorded_ms: Annotated[float, Meta(ge=0, le=1e12)]
    after_ms: Ms
    mean_ms: Ms
    num: Annotated[int, Meta(ge=1, le=2**62)]
    agree: bool


class ReportRecord(msgspec.Struct):
    """The whole report, as far as it is read back."""

    verdict: Verdict
    headline: str
    dominant: Rule | None
    step_ms: Ms
    step_times_ms: list[Ms]
    queue: QueueRecord | None
    partition: PartitionRecord | None
    idle_by_cause: dict[Rule, Share | None]
    findings: list[FindingRecord]
    prescriptions: list[PrescriptionRecord]
    trust: list[NoteRecord]
    source: SourceRecord
    replay: ReplayRecord | None = None
    host_by_cause: dict[Rule, Share | None] | None = None
    record_again: str = ""
    unseen: dict[str, Annotated[int, Meta(ge=1, le=2**31)]] = {}
    profiler_overhead: Annotated[float, Meta(ge=-1, le=1e12)] | None = None
    recorded_step_ms: Ms = None
    plain_steps: PlainStepsRecord | None = None
    passes_per_update: Annotated[int, Meta(ge=1, le=2**62)] | None = None
    cpu_wait: Annotated[float, Meta(ge=0, le=1)] = 0.0
    recording_estimate: Annotated[float, Meta(ge=0, le=1)] = 0.0
    summary: list[str] = []
    also_possible: list[PrescriptionRecord] = []
    to_try: list[str] = []
