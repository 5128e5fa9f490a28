"""Trial runs, as JSON has them; ``diagnosis.schema.json`` describes the fields."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from diagnose.model.limits import MAX_LOSSES
from diagnose.reports.json_values import Json, each, share, text

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Trial

__all__ = ["trial_to_dict"]


def trial_to_dict(t: Trial) -> dict[str, Json]:
    """Return a trial run as plain values."""
    return {
        "id": t.id,
        "baseline_ms": None if t.steps_ms is None else share(t.steps_ms[0]),
        "step_ms": None if t.steps_ms is None else share(t.steps_ms[1]),
        "baseline_samples_ms": each(share, t.baseline_ms),
        "step_samples_ms": each(share, t.step_ms),
        "speed_up": share(t.speed_up),
        "interval": each(share, t.interval),
        "numerics": t.numerics,
        "title": text(t.title),
        "ids": each(text, t.ids),
        "kind": t.kind,
        "predicted_ms": share(t.predicted_ms),
        "noise": share(t.noise),
        "peak_bytes": None if t.peak_bytes is None else list(t.peak_bytes),
        "losses": [each(_exact, losses[:MAX_LOSSES]) for losses in t.losses],
        "drift": _exact(t.drift),
        "worst_drift": _exact(t.worst_drift),
        "drift_limits": None if t.drift_limits is None else each(_exact, t.drift_limits),
        "grad_norms": [each(_exact, norms[:MAX_LOSSES]) for norms in t.grad_norms],
        "grad_drift": _exact(t.grad_drift),
        "skipped_steps": None if t.skipped_steps is None else list(t.skipped_steps),
        "note": text(t.note),
        "failure": text(t.failure),
    }


def _exact(value: float | None) -> float | None:
    """Keep every digit: losses are compared bit by bit."""
    return float(value) if value is not None and math.isfinite(value) else None
