"""A diagnosis back from its JSON, so that a report kept from yesterday can be compared with today's.

What the JSON does not hold is missing: the picture, examples' places beyond their line, sampled series. A report is a
file like any other: every value is checked for its type and its range.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from diagnose.errors import InputError
from diagnose.model.diagnosis import (
    Confidence,
    Diagnosis,
    Finding,
    Partition,
    PlainSteps,
    Prescription,
    Promise,
    Queue,
    Source,
    Verdict,
    Where,
)
from diagnose.model.events import Note
from diagnose.model.limits import TrialMethod
from diagnose.model.records import decode
from diagnose.reports.json import SCHEMA_VERSION

REMEDY = "Write it again with --json."
ROUNDING = 1e-6  # by which shares of earlier releases left their range

Ms: TypeAlias = Annotated[float, Meta(ge=0, le=1e12)] | None
Amount: TypeAlias = Annotated[float, Meta(ge=0, le=1e18)] | None
Share: TypeAlias = Annotated[float, Meta(ge=-ROUNDING, le=1 + ROUNDING)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]
Setting: TypeAlias = bool | Annotated[int, Meta(ge=-(2**62), le=2**62)] | float | str | None
Rule: TypeAlias = Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,100}$")]


class _Head(msgspec.Struct):  # what shows that a file is a report, whatever else is in it
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
    last_line: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None  # the same


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
    worth_ms: Ms = None
    doubt: str = ""

    def __post_init__(self) -> None:
        if self.worth_ms is None:
            self.worth_ms = self.lost_ms if self.relief_ms is None else self.relief_ms


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
    promise: Promise = ""
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
    accelerator: str = ""
    recorded_at: str = ""
    names_lines: bool = True


class _PlainSteps(msgspec.Struct):
    before_ms: Ms
    recorded_ms: Annotated[float, Meta(ge=0, le=1e12)]
    after_ms: Ms
    mean_ms: Ms
    num: Annotated[int, Meta(ge=1, le=2**62)]
    agree: bool


class _Report(msgspec.Struct):  # as far as it is read back
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
    replay: dict[str, Amount] | None = None
    host_by_cause: dict[Rule, Share | None] = {}
    record_again: str = ""
    unseen: dict[str, Annotated[int, Meta(ge=1, le=2**31)]] = {}
    profiler_overhead: Annotated[float, Meta(ge=-1, le=1e12)] | None = None
    recorded_step_ms: Ms = None
    plain_steps: _PlainSteps | None = None
    passes_per_update: Annotated[int, Meta(ge=1, le=2**62)] | None = None
    cpu_wait: Annotated[float, Meta(ge=0, le=1)] = 0.0
    recording_estimate: Annotated[float, Meta(ge=0, le=1)] = 0.0
    summary: list[str] = []
    also_possible: list[_Prescription] = []
    to_try: list[str] = []

    def __post_init__(self) -> None:
        self.recorded_step_ms = self.recorded_step_ms or self.step_ms
        self.step_times_ms = [ms for ms in self.step_times_ms if ms is not None]


KINDS: Final[Mapping[type, type]] = {
    _Finding: Finding,
    _Note: Note,
    _Partition: Partition,
    _PlainSteps: PlainSteps,
    _Prescription: Prescription,
    _Queue: Queue,
    _Report: Diagnosis,
    _Source: Source,
    _Where: Where,
}


def is_report(text: bytes) -> bool:
    """Return whether a JSON text is, or once was, a diagnosis: it has a schema_version and a verdict."""
    try:
        head = msgspec.json.decode(text, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    except RecursionError:
        # In which a report has both keys, whatever is nested behind them.
        return all(key in text[: 1 << 16] for key in (b'"schema_version"', b'"verdict"'))
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
    found: Diagnosis = _read(decode(text, _Report, source=source, remedy=REMEDY))
    return found


def _read(record: msgspec.Struct) -> Any:  # of the type that KINDS has
    kind, values = KINDS[type(record)], msgspec.structs.asdict(record)
    if isinstance(record, _Report):
        values["replay_error"] = (values.pop("replay") or {}).get("error_share")
    found = {}
    for key, value in values.items():
        name = f"{key.removesuffix('_ms')}_ns" if key.endswith("_ms") else key
        found[name] = _value(value, str(kind.__annotations__[name]), is_time=name != key)
    return kind(**found)


def _value(value: Any, wanted: str, *, is_time: bool) -> Any:
    """Return a value as a field of the type ``wanted`` holds it; what is not known is 0, a time NaN."""
    if isinstance(value, msgspec.Struct):
        return _read(value)
    if isinstance(value, list | tuple):
        return tuple(_value(each, wanted, is_time=is_time) for each in value)
    if wanted == "Mapping[str, float]":
        return {name: share or 0.0 for name, share in value.items()}
    if value is None and "None" not in wanted:
        value = float("nan") if is_time and "int" not in wanted else 0
    if not is_time or value is None:
        return value
    return round(value * 1e6) if "int" in wanted else value * 1e6
