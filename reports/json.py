"""The diagnosis for other programs: the JSON contract of schema version 1, described by ``diagnosis.schema.json``.

Times are ms (six decimals, so whole nanoseconds), shares are fractions of the step. A number that was not measured, or
that is not finite, is null. Shares keep nine decimals: the partition still sums to 1, the causes to its idle share.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from diagnose import __version__
from diagnose.answer.screen import answer
from diagnose.model.limits import MAX_LOSSES
from diagnose.model.words import english

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Diagnosis, Finding, Trial
    from diagnose.model.job import CollectiveSummary, Job

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None

SCHEMA_VERSION = 1
FIELDS: Final[Mapping[str, str]] = {
    "AlignedCollective": "name start_ns waiting_ns transfer_ns",
    "AlignedRank": "rank part begin_ns end_ns collectives",
    "AlignedStep": "step ranks",
    "CodeTime": "name depth calls_per_step=calls host_ns self_ns device_ns backward_ns backward_device_ns share",
    "CodeTimes": "source step_ns as_timed phases modules functions",
    "CollectiveSummary": "name purpose group_use group_size groups=num_groups dtype per_step waiting_ns "
    "exposed_waiting_ns transfer_ns hidden_share",
    "Example": "step start_ns lost_ns before after host where",
    "Finding": "rule title lost_ns confidence doubt count total_ns median_ns evidence where examples facts path_share "
    "relief_ns worth_ns",
    "FlopUtilisation": "mfu=share tflop_per_s=tflops known_share device",
    "Forecast": "ids title step_ns",
    "HostOperator": "name calls_per_step self_ns total_ns shapes",
    "Job": "ranks=num_ranks collectives_matched=num_collectives residual_ns taking_turns slow_group steps arrivals "
    "rows collectives aligned_step=aligned",
    "KernelTime": "name family calls_per_step time_ns share dtype peak_share where",
    "KeptByLine": "bytes=num_bytes recompute_ns",
    "LeftByLine": "values=num_values bytes=num_bytes",
    "Memory": "device peak_allocated_bytes=peak_allocated peak_reserved_bytes=peak_reserved capacity_bytes=capacity "
    "device_used_bytes=device_used other_processes_bytes=other_processes outside_allocator_bytes=outside_allocator "
    "retries by_category_bytes=by_category",
    "MemoryByLine": "device peak_bytes kept_bytes kept left",
    "Note": "text rule",
    "Partition": "compute exposed_communication exposed_copy idle",
    "PlainSteps": "before_ns recorded_ns after_ns mean_ns num agree",
    "Prescription": "rule id title before after safety needs remedy promise saves_ns basis assumes predicted_step_ns "
    "edits diff trial_method is_advice records_again records_more mean_step_ns",
    "Queue": "busy_share idle_share empty_share late_share depth_p50 depth_p90 launches_per_step busy_depth_p50 "
    "delay_p50_ns launch_latency_ns",
    "RankRow": "rank host late_ns late_by_step_ns=by_step_ns blame_share begins_late_ns=begins_ns arrivals_ns",
    "RankSummary": "rank verdict dominant step_ns partition idle_by_cause waits_ns",
    "SlowGroup": "ranks=members use other_groups=num_others slower_by=ratio more_ns bus_gbps "
    "others_bus_gbps=others_gbps",
    "Source": "path command torch devices world_size found_steps_by unprofiled_step_ns settled_after samples setup "
    "loading accelerator recorded_at names_lines",
    "Trial": "id baseline_samples_ms=baseline_ms step_samples_ms=step_ms speed_up interval numerics title ids kind "
    "predicted_ms noise peak_bytes skipped_steps note failure",
    "Waterfall": "forecasts bound_by shares",
    "Where": "file line op function code library last_line stack",
}
"""The fields of each type, by its name: a time in ``x_ns`` becomes ``x_ms``, and ``key=x`` gives x another name."""

OF_DIAGNOSIS = (
    "verdict headline summary dominant step_ns steps step_times_ns queue partition idle_by_cause host_by_cause "
    "record_again prescriptions also_possible to_try operators code waterfall kernels checked not_checked unseen "
    "flops memory memory_by_line profiler_overhead plain_steps passes_per_update cpu_wait recording_estimate trust "
    "ranks job cross_check trials"
)


def render(d: Diagnosis) -> str:
    """Return the diagnosis as JSON text, pure ASCII, so that no byte of it can steer a terminal."""
    return json.dumps(to_dict(d), indent=2, ensure_ascii=True, allow_nan=False)


def schema() -> dict[str, Json]:
    """Return the JSON schema (draft 2020-12) that every rendered diagnosis follows."""
    text = resources.files("diagnose.reports").joinpath("diagnosis.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Json] = json.loads(text)
    return loaded


def to_dict(d: Diagnosis) -> dict[str, Json]:
    """Return the diagnosis as plain dicts, lists, strings and finite numbers."""
    a, overhead = answer(d), d.profiler_overhead
    after = a.after and (a.after.after_ns, a.after.low_ns, a.after.high_ns)
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "diagnose", "version": __version__},
        "source": _plain(d.source),
        **_fields(d, OF_DIAGNOSIS),
        "answer": {
            "verdict": _plain(english(a.pill)),
            "record_again": a.record_again is not None,
            "cards": [card.prescription.id for card in a.cards],
            "num_changes": a.num_changes,
            "possible_step_ms": _ms(after),
            "is_measured": a.is_measured,
        },
        "recorded_step_ms": _ms(d.recorded_step_ns or d.step_ns),
        "run": {"steps": d.watched_steps, "phases": _plain(d.phases)},
        "findings": [_finding(f, d.step_ns) for f in d.findings],
        "ignored": [{"by": one.by, "finding": _finding(one.finding, d.step_ns)} for one in d.ignored],
        "replay": {"error_share": _plain(d.replay_error)},
        "critical_path": d.critical_path and _plain(d.critical_path.shares),
        "recording_removed": _plain(max(overhead or 0.0, 0.0)),
        "recording_ms": _ms(0.0 if overhead is None else max(d.recorded_step_ns - d.step_ns, 0.0)),
        "after": None if d.after is None else to_dict(d.after),
    }


def _finding(f: Finding, step_ns: float) -> dict[str, Json]:
    return {**_fields(f), "lost_share": _plain(f.share_of(step_ns)) if step_ns > 0 else None}


def _fields(value: object, fields: str = "") -> dict[str, Json]:
    found: dict[str, Json] = {}
    for field in (fields or FIELDS[type(value).__name__]).split():
        key, _, name = field.rpartition("=")
        one = getattr(value, name)
        if name.endswith("_ns"):
            found[f"{(key or name).removesuffix('_ns')}_ms"] = _ms(one)
        else:
            found[key or name] = _plain(one)
    return found


def _ms(ns: object) -> Json:
    """Return milliseconds with six decimals, which are whole nanoseconds; several times one by one."""
    if isinstance(ns, tuple):
        return [_ms(each) for each in ns]
    return round(ns / 1e6, 6) if isinstance(ns, int | float) and math.isfinite(ns) else None


def _plain(value: object) -> Json:
    """Return a value as JSON has it; what has no such form becomes text, and half a surrogate pair an escape."""
    if type(value).__name__ in FIELDS:
        return {**_fields(value), **MORE.get(type(value).__name__, _nothing)(value)}
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, float):
        value = round(float(value), 9) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        return {str(_plain(str(key))): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    item = getattr(value, "item", None)  # a number of numpy or torch
    return _plain(item() if callable(item) and getattr(value, "ndim", None) == 0 else str(value))


def _nothing(_: object) -> dict[str, Json]:
    return {}


def _trial(t: Trial) -> dict[str, Json]:
    before, after = t.steps_ms or (None, None)
    return {
        "baseline_ms": _plain(before),
        "step_ms": _plain(after),
        "losses": _exact([losses[:MAX_LOSSES] for losses in t.losses]),
        "grad_norms": _exact([norms[:MAX_LOSSES] for norms in t.grad_norms]),
        **{name: _exact(getattr(t, name)) for name in ("drift", "worst_drift", "drift_limits", "grad_drift")},
    }


def _job(j: Job) -> dict[str, Json]:
    late = _fields(j, "ranks=late_ranks late_ns saved_ns cause cause_ns cause_share slower_by=ratio")
    late["differences"] = [{"cause": cause, "more_ms": _ms(ns)} for cause, ns in j.differences]
    first = _fields(j, "share=first_share begins_late begins_late_ns")
    return {"late": late, "first_collective": first, "rows_of": max(j.num_rows, len(j.rows))}


def _collective(c: CollectiveSummary) -> dict[str, Json]:
    rates = {name: _plain(getattr(c, name) or None) for name in ("algorithm_gbps", "bus_gbps", "peak_gbps")}
    return {**rates, "bytes": c.num_bytes if c.num_bytes >= 0 else None}


MORE: Final[Mapping[str, Callable[[Any], dict[str, Json]]]] = {
    "AlignedRank": lambda r: {
        "causes": [{"cause": cause, "lost_ms": _ms(ns)} for cause, ns in r.causes],
        "collectives_of": max(r.num_collectives, len(r.collectives)),
    },
    "CollectiveSummary": _collective,
    "FlopUtilisation": lambda f: {"tflop_per_step": f.flop_per_step / 1e12},
    "Forecast": lambda f: {"range_ms": [_ms(f.low_ns), _ms(f.high_ns)]},
    "Job": _job,
    "KeptByLine": lambda one: _fields(one.where),
    "LeftByLine": lambda one: _fields(one.where),
    "Memory": lambda m: {"by_place": [{**_fields(where), "bytes": size} for where, size in m.by_place]},
    "Trial": _trial,
}
"""What JSON has of a type in another form than its fields."""


def _exact(value: object) -> Json:
    """Keep every digit: losses are compared bit by bit."""
    if isinstance(value, list | tuple):
        return [_exact(each) for each in value]
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
