"""How the ranks of a job compare, as JSON has it; ``diagnosis.schema.json`` describes the fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.reports.json_values import Json, each, ms, share, text

if TYPE_CHECKING:
    from diagnose.model.job import AlignedRank, AlignedStep, CollectiveSummary, Job, RankRow, SlowGroup

__all__ = ["job_to_dict"]


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
        "rows": each(_row, j.rows),
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


def _row(r: RankRow) -> dict[str, Json]:
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
