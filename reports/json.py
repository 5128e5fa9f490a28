"""The diagnosis for other programs: the JSON contract of schema version 1, described by ``diagnosis.schema.json``.

Times are ms (six decimals, so whole nanoseconds), shares are fractions of the step. A number that was not measured, or
that is not finite, is null. Shares keep nine decimals: the partition still sums to 1, the causes to its idle share.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from diagnose import __version__
from diagnose.answer.screen import answer
from diagnose.model.charts import CodeTime, CodeTimes
from diagnose.model.diagnosis import (
    Diagnosis,
    Example,
    Finding,
    Prescription,
    Queue,
    RankSummary,
    Source,
)
from diagnose.model.words import english
from diagnose.reports.json_memory import memory_by_line_to_dict, memory_to_dict
from diagnose.reports.json_trial import trial_to_dict
from diagnose.reports.json_values import Json, each, ms, plain, share, text, where_to_dict

if TYPE_CHECKING:
    from diagnose.model.charts import FlopUtilisation, HostOperator, KernelTime
    from diagnose.model.forecast import Waterfall
    from diagnose.model.job import AlignedRank, AlignedStep, CollectiveSummary, Job, RankRow, SlowGroup
    from diagnose.model.plain_steps import PlainSteps

__all__ = ["SCHEMA_VERSION", "Json", "code_to_dict", "job_to_dict", "render", "schema", "to_dict"]

# How the ranks of a job compare, as JSON has it; ``diagnosis.schema.json`` describes the fields.


def job_to_dict(j: Job) -> dict[str, Json]:
    """Return how the ranks compare as plain values."""
    return {
        "ranks": j.num_ranks,
        "collectives_matched": j.num_collectives,
        "residual_ms": ms(j.residual_ns),
        "late": {
            "ranks": list(j.late_ranks),
            "late_ms": ms(j.late_ns),
            "saved_ms": ms(j.saved_ns),
            "cause": j.cause,
            "cause_ms": ms(j.cause_ns),
            "cause_share": share(j.cause_share),
            "slower_by": share(j.ratio),
            "differences": [{"cause": cause, "more_ms": ms(ns)} for cause, ns in j.differences],
        },
        "taking_turns": list(j.taking_turns),
        "first_collective": {
            "share": share(j.first_share),
            "begins_late": j.begins_late,
            "begins_late_ms": ms(j.begins_late_ns),
        },
        "slow_group": None if j.slow_group is None else _slow_group(j.slow_group),
        "steps": list(j.steps),
        "arrivals": each(text, j.arrivals),
        "rows": each(_json_job_row, j.rows),
        "rows_of": max(j.num_rows, len(j.rows)),
        "collectives": each(_collective, j.collectives),
        "aligned_step": None if j.aligned is None else _aligned(j.aligned),
    }


def _aligned(a: AlignedStep) -> dict[str, Json]:
    return {"step": a.step, "ranks": each(_aligned_rank, a.ranks)}


def _aligned_rank(r: AlignedRank) -> dict[str, Json]:
    return {
        "rank": r.rank,
        "part": r.part,
        "begin_ms": ms(r.begin_ns),
        "end_ms": ms(r.end_ns),
        "causes": [{"cause": cause, "lost_ms": ms(ns)} for cause, ns in r.causes],
        "collectives": [
            {
                "name": text(c.name),
                "start_ms": ms(c.start_ns),
                "waiting_ms": ms(c.waiting_ns),
                "transfer_ms": ms(c.transfer_ns),
            }
            for c in r.collectives
        ],
        "collectives_of": max(r.num_collectives, len(r.collectives)),
    }


def _slow_group(g: SlowGroup) -> dict[str, Json]:
    return {
        "ranks": list(g.members),
        "use": text(g.use),
        "other_groups": g.num_others,
        "slower_by": share(g.ratio),
        "more_ms": ms(g.more_ns),
        "bus_gbps": share(g.bus_gbps),
        "others_bus_gbps": share(g.others_gbps),
    }


def _json_job_row(r: RankRow) -> dict[str, Json]:
    return {
        "rank": r.rank,
        "host": text(r.host),
        "late_ms": _ms_or_null(r.late_ns),
        "late_by_step_ms": each(_ms_or_null, r.by_step_ns),
        "blame_share": share(r.blame_share),
        "begins_late_ms": ms(r.begins_ns),
        "arrivals_ms": each(_ms_or_null, r.arrivals_ns),
    }


def _ms_or_null(ns: float | None) -> Json:
    return None if ns is None else ms(ns)


def _collective(c: CollectiveSummary) -> dict[str, Json]:
    return {
        "name": text(c.name),
        "purpose": c.purpose,
        "group_use": text(c.group_use),
        "group_size": c.group_size,
        "groups": c.num_groups,
        "bytes": c.num_bytes if c.num_bytes >= 0 else None,
        "dtype": text(c.dtype),
        "per_step": share(c.per_step),
        "waiting_ms": ms(c.waiting_ns),
        "exposed_waiting_ms": ms(c.exposed_waiting_ns),
        "transfer_ms": ms(c.transfer_ns),
        "hidden_share": share(c.hidden_share),
        "algorithm_gbps": share(c.algorithm_gbps) if c.algorithm_gbps else None,
        "bus_gbps": share(c.bus_gbps) if c.bus_gbps else None,
        "peak_gbps": share(c.peak_gbps) if c.peak_gbps else None,
    }


# The times by phase, module and function in the JSON.


def code_to_dict(code: CodeTimes) -> dict[str, Json]:
    """Return the tables; what the recording does not show is null."""
    return {
        "source": code.source,
        "step_ms": ms(code.step_ns),
        "as_timed": code.as_timed,
        "phases": each(_row, code.phases),
        "modules": each(_row, code.modules),
        "functions": each(_row, code.functions),
    }


def _row(row: CodeTime) -> dict[str, Json]:
    def time(ns: float | None) -> Json:
        return None if ns is None else ms(ns)

    return {
        "name": text(row.name),
        "depth": row.depth,
        "calls_per_step": share(row.calls),
        "host_ms": time(row.host_ns),
        "self_ms": ms(row.self_ns),
        "device_ms": time(row.device_ns),
        "backward_ms": time(row.backward_ns),
        "backward_device_ms": time(row.backward_device_ns),
        "share": share(row.share),
    }


SCHEMA_VERSION = 1


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
        "headline": text(d.headline),
        "summary": each(text, d.summary),
        "dominant": d.dominant,
        "answer": _answer(d),
        "step_ms": ms(d.step_ns),
        "recorded_step_ms": ms(d.recorded_step_ns or d.step_ns),
        "steps": d.steps,
        "step_times_ms": each(ms, d.step_times_ns),
        "queue": None if d.queue is None else _queue(d.queue),
        "partition": None if d.partition is None else _shares(asdict(d.partition)),
        "idle_by_cause": _shares(d.idle_by_cause),
        "host_by_cause": _shares(d.host_by_cause),
        "record_again": text(d.record_again),
        "run": {"steps": d.watched_steps, "phases": _shares(d.phases)},
        "findings": [_finding(f, d.step_ns) for f in d.findings],
        "ignored": [{"by": one.by, "finding": _finding(one.finding, d.step_ns)} for one in d.ignored],
        "prescriptions": each(_prescription, d.prescriptions),
        "also_possible": each(_prescription, d.also_possible),
        "to_try": list(d.to_try),
        "operators": each(_operator, d.operators),
        "code": None if d.code is None else code_to_dict(d.code),
        "replay": {"error_share": share(d.replay_error)},
        "critical_path": None if d.critical_path is None else _shares(d.critical_path.shares),
        "waterfall": None if d.waterfall is None else _waterfall(d.waterfall),
        "kernels": each(_kernel, d.kernels),
        "checked": each(text, d.checked),
        "not_checked": dict(d.not_checked),
        "unseen": dict(d.unseen),
        "flops": None if d.flops is None else _flops(d.flops),
        "memory": None if d.memory is None else memory_to_dict(d.memory),
        "memory_by_line": None if d.memory_by_line is None else memory_by_line_to_dict(d.memory_by_line),
        "profiler_overhead": share(d.profiler_overhead),
        "recording_removed": share(max(d.profiler_overhead or 0.0, 0.0)),
        "plain_steps": None if d.plain_steps is None else _plain_steps(d.plain_steps),
        "passes_per_update": d.passes_per_update,
        "cpu_wait": share(d.cpu_wait),
        "recording_ms": ms(max(d.recorded_step_ns - d.step_ns, 0.0) if d.profiler_overhead is not None else 0.0),
        "recording_estimate": share(d.recording_estimate),
        "trust": [{"text": text(note.text), "rule": note.rule} for note in d.trust],
        "ranks": each(_rank, d.ranks),
        "job": None if d.job is None else job_to_dict(d.job),
        "cross_check": [plain(asdict(row)) for row in d.cross_check],
        "trials": each(trial_to_dict, d.trials),
        "after": None if d.after is None else to_dict(d.after),
    }


def _answer(d: Diagnosis) -> dict[str, Json]:
    """Return the first screen: its word for the verdict, the cards, the step after exactly these."""
    a = answer(d)
    after = a.after
    return {
        "verdict": text(english(a.pill)),
        "record_again": a.record_again is not None,
        "cards": [card.prescription.id for card in a.cards],
        "num_changes": a.num_changes,
        "possible_step_ms": None if after is None else each(ms, (after.after_ns, after.low_ns, after.high_ns)),
        "is_measured": a.is_measured,
    }


def _plain_steps(p: PlainSteps) -> dict[str, Json]:
    return {
        "before_ms": None if p.before_ns is None else ms(p.before_ns),
        "recorded_ms": ms(p.recorded_ns),
        "after_ms": None if p.after_ns is None else ms(p.after_ns),
        "mean_ms": None if p.mean_ns is None else ms(p.mean_ns),
        "num": p.num,
        "agree": p.agree,
    }


def _flops(f: FlopUtilisation) -> dict[str, Json]:
    return {
        "mfu": share(f.share),
        "tflop_per_step": f.flop_per_step / 1e12,
        "tflop_per_s": f.tflops,
        "known_share": share(f.known_share),
        "device": text(f.device),
    }


def _source(s: Source) -> dict[str, Json]:
    return {
        "path": text(s.path),
        "command": text(s.command),
        "torch": text(s.torch),
        "devices": each(text, s.devices),
        "world_size": s.world_size,
        "found_steps_by": text(s.found_steps_by),
        "unprofiled_step_ms": each(ms, s.unprofiled_step_ns),
        "settled_after": s.settled_after,
        "samples": plain(s.samples),
        "setup": plain(s.setup),
        "loading": plain(s.loading),
        "accelerator": text(s.accelerator),
    }


def _queue(q: Queue) -> dict[str, Json]:
    shares = _shares({k: getattr(q, k) for k in ("busy_share", "idle_share", "empty_share", "late_share")})
    depths = {k: share(getattr(q, k)) for k in ("depth_p50", "depth_p90", "launches_per_step")}
    depths["busy_depth_p50"] = share(q.busy_depth_p50)
    return {
        **shares,
        **depths,
        "delay_p50_ms": ms(q.delay_p50_ns),
        "launch_latency_ms": None if q.launch_latency_ns is None else ms(q.launch_latency_ns),
    }


def _finding(f: Finding, step_ns: float) -> dict[str, Json]:
    return {
        "rule": f.rule,
        "title": text(f.title),
        "lost_ms": ms(f.lost_ns),
        "lost_share": share(f.share_of(step_ns)) if step_ns > 0 else None,
        "confidence": f.confidence,
        "count": f.count,
        "total_ms": ms(f.total_ns),
        "median_ms": ms(f.median_ns),
        "evidence": each(text, f.evidence),
        "where": each(where_to_dict, f.where),
        "examples": each(_example, f.examples),
        "facts": plain(f.facts),
        "path_share": share(f.path_share),
        "relief_ms": None if f.relief_ns is None else ms(f.relief_ns),
        "worth_ms": ms(f.worth_ns),
    }


def _example(e: Example) -> dict[str, Json]:
    return {
        "step": e.step,
        "start_ms": ms(e.start_ns),
        "lost_ms": ms(e.lost_ns),
        "before": text(e.before),
        "after": text(e.after),
        "host": text(e.host),
        "where": where_to_dict(e.where),
    }


def _prescription(p: Prescription) -> dict[str, Json]:
    texts = {k: text(getattr(p, k)) for k in ("title", "before", "after", "safety", "needs", "remedy")}
    return {
        "rule": p.rule,
        "id": p.id,
        **texts,
        "promise": p.promise,
        "saves_ms": each(ms, p.saves_ns),
        "basis": p.basis,
        "assumes": text(p.assumes),
        "predicted_step_ms": None if p.predicted_step_ns is None else ms(p.predicted_step_ns),
        "edits": each(where_to_dict, p.edits),
        "diff": text(p.diff),
        "trial_method": p.trial_method,
        "is_advice": p.is_advice,
        "records_again": p.records_again,
        "records_more": p.records_more,
        "mean_step_ms": None if p.mean_step_ns is None else ms(p.mean_step_ns),
    }


def _waterfall(w: Waterfall) -> dict[str, Json]:
    return {
        "forecasts": [
            {
                "ids": each(text, f.ids),
                "title": text(f.title),
                "step_ms": ms(f.step_ns),
                "range_ms": [ms(f.low_ns), ms(f.high_ns)],
            }
            for f in w.forecasts
        ],
        "bound_by": text(w.bound_by),
        "shares": _shares(w.shares),
    }


def _operator(o: HostOperator) -> dict[str, Json]:
    return {
        "name": text(o.name),
        "calls_per_step": share(o.calls_per_step),
        "self_ms": ms(o.self_ns),
        "total_ms": ms(o.total_ns),
        "shapes": text(o.shapes),
    }


def _kernel(k: KernelTime) -> dict[str, Json]:
    return {
        "name": text(k.name),
        "family": k.family,
        "calls_per_step": share(k.calls_per_step),
        "time_ms": ms(k.time_ns),
        "share": share(k.share),
        "dtype": k.dtype,
        "peak_share": share(k.peak_share),
        "where": where_to_dict(k.where),
    }


def _rank(r: RankSummary) -> dict[str, Json]:
    return {
        "rank": r.rank,
        "verdict": r.verdict,
        "dominant": r.dominant,
        "step_ms": ms(r.step_ns),
        "partition": None if r.partition is None else _shares(asdict(r.partition)),
        "idle_by_cause": _shares(r.idle_by_cause),
        "waits_ms": None if r.waits_ns is None else ms(r.waits_ns),
    }


def _shares(shares: Mapping[str, float]) -> dict[str, Json]:
    return {name: share(value) for name, value in shares.items()}
