"""The times by phase, module and function in the JSON."""

from __future__ import annotations

from diagnose.model.charts import CodeTime, CodeTimes
from diagnose.reports.json_values import Json, each, ms, share, text

__all__ = ["code_to_dict"]


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
