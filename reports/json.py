"""The diagnosis for other programs: the JSON contract of schema version 1, described by ``diagnosis.schema.json``.

Times are ms (six decimals, so whole nanoseconds), shares are fractions of the step. A number that was not measured, or
that is not finite, is null. Shares keep nine decimals: the partition still sums to 1, the causes to its idle share.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from diagnose import __version__
from diagnose.model.diagnosis import (
    Diagnosis,
    Example,
    Finding,
    HostOperator,
    Prescription,
    Queue,
    RankSummary,
    Source,
    Trial,
    Where,
)
from diagnose.reports.format import MAX_LOSSES

if TYPE_CHECKING:
    from diagnose.model.charts import KernelTime, Memory
    from diagnose.model.forecast import Waterfall
    from diagnose.model.job import CollectiveSummary, Job, RankRow, SlowGroup

__all__ = ["SCHEMA_VERSION", "Json", "render", "schema", "to_dict"]

SCHEMA_VERSION = 1

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
_T = TypeVar("_T")


def render(d: Diagnosis) -> str:
    """Return the diagnosis as JSON text, pure ASCII, so that no byte of it can steer a terminal."""
    return json.dumps(to_dict(d), indent=2, ensure_ascii=True, allow_nan=False)


def schema() -> dict[str, Json]:
    """Return the JSON schema (draft 2020-12) that every rendered diagnosis follows."""
    from importlib import resources

    text = resources.files("diagnose.reports").joinpath("diagnosis.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Json] = json.loads(text)
    return loaded


def to_dict(d: Diagnosis) -> dict[str, Json]:
    """Return the diagnosis as plain dicts, lists, strings and finite numbers."""
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "diagnose", "version": __version__},
        "source": _source(d.source),
        "verdict": d.verdict,
        "headline": _text(d.headline),
        "summary": _each(_text, d.summary),
        "dominant": d.dominant,
        "step_ms": _ms(d.step_ns),
        "steps": d.steps,
        "step_times_ms": _each(_ms, d.step_times_ns),
        "queue": None if d.queue is None else _queue(d.queue),
        "partition": None if d.partition is None else _shares(asdict(d.partition)),
        "idle_by_cause": _shares(d.idle_by_cause),
        "host_by_cause": _shares(d.host_by_cause),
        "run": {"steps": d.watched_steps, "phases": _shares(d.phases)},
        "findings": [_finding(f, d.step_ns) for f in d.findings],
        "prescriptions": _each(_prescription, d.prescriptions),
        "also_possible": _each(_prescription, d.also_possible),
        "operators": _each(_operator, d.operators),
        "replay": {"error_share": _share(d.replay_error)},
        "critical_path": None if d.critical_path is None else _shares(d.critical_path.shares),
        "waterfall": None if d.waterfall is None else _waterfall(d.waterfall),
        "kernels": _each(_kernel, d.kernels),
        "checked": _each(_text, d.checked),
        "not_checked": dict(d.not_checked),
        "memory": None if d.memory is None else _memory(d.memory),
        "profiler_overhead": _share(d.profiler_overhead),
        "recording_ms": _ms(d.recording_ns),
        "trust": [{"text": _text(note.text), "rule": note.rule} for note in d.trust],
        "ranks": _each(_rank, d.ranks),
        "job": None if d.job is None else _job(d.job),
        "trials": _each(_trial, d.trials),
        "after": None if d.after is None else to_dict(d.after),
    }


def _source(s: Source) -> dict[str, Json]:
    return {
        "path": _text(s.path),
        "command": _text(s.command),
        "torch": _text(s.torch),
        "devices": _each(_text, s.devices),
        "world_size": s.world_size,
        "found_steps_by": _text(s.found_steps_by),
        "unprofiled_step_ms": _each(_ms, s.unprofiled_step_ns),
        "settled_after": s.settled_after,
        "samples": _plain(s.samples),
        "setup": _plain(s.setup),
    }


def _queue(q: Queue) -> dict[str, Json]:
    shares = _shares({k: getattr(q, k) for k in ("busy_share", "idle_share", "empty_share", "late_share")})
    depths = {k: _share(getattr(q, k)) for k in ("depth_p50", "depth_p90", "launches_per_step")}
    depths["busy_depth_p50"] = _share(q.busy_depth_p50)
    return {
        **shares,
        **depths,
        "delay_p50_ms": _ms(q.delay_p50_ns),
        "launch_latency_ms": None if q.launch_latency_ns is None else _ms(q.launch_latency_ns),
    }


def _finding(f: Finding, step_ns: float) -> dict[str, Json]:
    return {
        "rule": f.rule,
        "title": _text(f.title),
        "lost_ms": _ms(f.lost_ns),
        "lost_share": _share(f.share_of(step_ns)) if step_ns > 0 else None,
        "confidence": f.confidence,
        "count": f.count,
        "total_ms": _ms(f.total_ns),
        "median_ms": _ms(f.median_ns),
        "evidence": _each(_text, f.evidence),
        "where": _each(_where, f.where),
        "examples": _each(_example, f.examples),
        "facts": _plain(f.facts),
        "path_share": _share(f.path_share),
        "relief_ms": None if f.relief_ns is None else _ms(f.relief_ns),
    }


def _where(w: Where) -> dict[str, Json]:
    fields: dict[str, Json] = {"file": w.file, "line": w.line, "op": w.op, "function": w.function, "code": w.code}
    fields["library"] = w.library
    return {**{k: _plain(v) for k, v in fields.items()}, "stack": _each(_text, w.stack)}


def _example(e: Example) -> dict[str, Json]:
    return {
        "step": e.step,
        "start_ms": _ms(e.start_ns),
        "lost_ms": _ms(e.lost_ns),
        "before": _text(e.before),
        "after": _text(e.after),
        "host": _text(e.host),
        "where": _where(e.where),
    }


def _prescription(p: Prescription) -> dict[str, Json]:
    texts = {k: _text(getattr(p, k)) for k in ("title", "before", "after", "safety", "needs", "remedy")}
    return {
        "rule": p.rule,
        "id": p.id,
        **texts,
        "saves_ms": _each(_ms, p.saves_ns),
        "basis": p.basis,
        "assumes": _text(p.assumes),
        "predicted_step_ms": None if p.predicted_step_ns is None else _ms(p.predicted_step_ns),
        "edits": _each(_where, p.edits),
        "diff": _text(p.diff),
        "mean_step_ms": None if p.mean_step_ns is None else _ms(p.mean_step_ns),
    }


def _waterfall(w: Waterfall) -> dict[str, Json]:
    return {
        "forecasts": [
            {
                "ids": _each(_text, f.ids),
                "title": _text(f.title),
                "step_ms": _ms(f.step_ns),
                "range_ms": [_ms(f.low_ns), _ms(f.high_ns)],
            }
            for f in w.forecasts
        ],
        "bound_by": _text(w.bound_by),
        "shares": _shares(w.shares),
    }


def _operator(o: HostOperator) -> dict[str, Json]:
    return {
        "name": _text(o.name),
        "calls_per_step": _share(o.calls_per_step),
        "self_ms": _ms(o.self_ns),
        "total_ms": _ms(o.total_ns),
        "shapes": _text(o.shapes),
    }


def _kernel(k: KernelTime) -> dict[str, Json]:
    return {
        "name": _text(k.name),
        "family": k.family,
        "calls_per_step": _share(k.calls_per_step),
        "time_ms": _ms(k.time_ns),
        "share": _share(k.share),
        "dtype": k.dtype,
        "peak_share": _share(k.peak_share),
        "where": _where(k.where),
    }


def _memory(m: Memory) -> dict[str, Json]:
    return {
        "device": _text(m.device),
        "peak_allocated_bytes": m.peak_allocated,
        "peak_reserved_bytes": m.peak_reserved,
        "capacity_bytes": m.capacity,
        "device_used_bytes": m.device_used,
        "other_processes_bytes": m.other_processes,
        "outside_allocator_bytes": m.outside_allocator,
        "retries": m.retries,
        "by_category_bytes": dict(m.by_category),
        "by_place": [{**_where(where), "bytes": size} for where, size in m.by_place],
    }


def _rank(r: RankSummary) -> dict[str, Json]:
    return {
        "rank": r.rank,
        "verdict": r.verdict,
        "dominant": r.dominant,
        "step_ms": _ms(r.step_ns),
        "partition": None if r.partition is None else _shares(asdict(r.partition)),
        "idle_by_cause": _shares(r.idle_by_cause),
        "waits_ms": None if r.waits_ns is None else _ms(r.waits_ns),
    }


def _job(j: Job) -> dict[str, Json]:
    return {
        "ranks": j.num_ranks,
        "collectives_matched": j.num_collectives,
        "residual_ms": _ms(j.residual_ns),
        "late": {
            "ranks": list(j.late_ranks),
            "late_ms": _ms(j.late_ns),
            "saved_ms": _ms(j.saved_ns),
            "cause": j.cause,
            "cause_ms": _ms(j.cause_ns),
            "cause_share": _share(j.cause_share),
            "slower_by": _share(j.ratio),
            "differences": [{"cause": cause, "more_ms": _ms(ns)} for cause, ns in j.differences],
        },
        "taking_turns": list(j.taking_turns),
        "first_collective": {
            "share": _share(j.first_share),
            "begins_late": j.begins_late,
            "begins_late_ms": _ms(j.begins_late_ns),
        },
        "slow_group": None if j.slow_group is None else _slow_group(j.slow_group),
        "steps": list(j.steps),
        "arrivals": _each(_text, j.arrivals),
        "rows": _each(_row, j.rows),
        "collectives": _each(_collective, j.collectives),
    }


def _slow_group(g: SlowGroup) -> dict[str, Json]:
    return {
        "ranks": list(g.members),
        "use": _text(g.use),
        "other_groups": g.num_others,
        "slower_by": _share(g.ratio),
        "more_ms": _ms(g.more_ns),
        "bus_gbps": _share(g.bus_gbps),
        "others_bus_gbps": _share(g.others_gbps),
    }


def _row(r: RankRow) -> dict[str, Json]:
    return {
        "rank": r.rank,
        "host": _text(r.host),
        "late_ms": _ms_or_null(r.late_ns),
        "late_by_step_ms": _each(_ms_or_null, r.by_step_ns),
        "blame_share": _share(r.blame_share),
        "begins_late_ms": _ms(r.begins_ns),
        "arrivals_ms": _each(_ms_or_null, r.arrivals_ns),
    }


def _ms_or_null(ns: float | None) -> Json:
    return None if ns is None else _ms(ns)


def _collective(c: CollectiveSummary) -> dict[str, Json]:
    return {
        "name": _text(c.name),
        "purpose": c.purpose,
        "group_use": _text(c.group_use),
        "group_size": c.group_size,
        "groups": c.num_groups,
        "bytes": c.num_bytes if c.num_bytes >= 0 else None,
        "dtype": _text(c.dtype),
        "per_step": _share(c.per_step),
        "waiting_ms": _ms(c.waiting_ns),
        "exposed_waiting_ms": _ms(c.exposed_waiting_ns),
        "transfer_ms": _ms(c.transfer_ns),
        "hidden_share": _share(c.hidden_share),
        "algorithm_gbps": _share(c.algorithm_gbps) if c.algorithm_gbps else None,
        "bus_gbps": _share(c.bus_gbps) if c.bus_gbps else None,
        "peak_gbps": _share(c.peak_gbps) if c.peak_gbps else None,
    }


def _trial(t: Trial) -> dict[str, Json]:
    return {
        "id": t.id,
        "baseline_ms": None if t.steps_ms is None else _share(t.steps_ms[0]),
        "step_ms": None if t.steps_ms is None else _share(t.steps_ms[1]),
        "baseline_samples_ms": _each(_share, t.baseline_ms),
        "step_samples_ms": _each(_share, t.step_ms),
        "speed_up": _share(t.speed_up),
        "interval": _each(_share, t.interval),
        "numerics": t.numerics,
        "title": _text(t.title),
        "ids": _each(_text, t.ids),
        "kind": t.kind,
        "predicted_ms": _share(t.predicted_ms),
        "noise": _share(t.noise),
        "peak_bytes": None if t.peak_bytes is None else list(t.peak_bytes),
        "losses": [_each(_exact, losses[:MAX_LOSSES]) for losses in t.losses],
        "drift": _exact(t.drift),
        "worst_drift": _exact(t.worst_drift),
        "drift_limits": None if t.drift_limits is None else _each(_exact, t.drift_limits),
        "grad_norms": [_each(_exact, norms[:MAX_LOSSES]) for norms in t.grad_norms],
        "grad_drift": _exact(t.grad_drift),
        "skipped_steps": None if t.skipped_steps is None else list(t.skipped_steps),
        "note": _text(t.note),
        "failure": _text(t.failure),
    }


def _each(convert: Callable[[_T], Json], values: Iterable[_T]) -> list[Json]:
    return [convert(value) for value in values]


def _shares(shares: Mapping[str, float]) -> dict[str, Json]:
    return {name: _share(value) for name, value in shares.items()}


def _share(value: float | None) -> float | None:
    return round(float(value), 9) if value is not None and math.isfinite(value) else None


def _exact(value: float | None) -> float | None:
    """Keep every digit: losses are compared bit by bit."""
    return float(value) if value is not None and math.isfinite(value) else None


def _ms(ns: float) -> float | None:
    return round(ns / 1e6, 6) if math.isfinite(ns) else None


def _text(text: str) -> str:
    """Keep a string as it is, except half a surrogate pair, which no strict reader accepts."""
    return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text


def _plain(value: object) -> Json:
    """Return what an analyzer or a sampler put into a mapping as JSON values; what has no such form becomes text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return _share(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return {_text(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    item = getattr(value, "item", None)  # a number of numpy or torch
    return _plain(item()) if callable(item) and getattr(value, "ndim", None) == 0 else _text(str(value))
