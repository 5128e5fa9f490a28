"""What a change would do to the step: the steady steps as a dependency graph, changed, and replayed."""

from __future__ import annotations

from diagnose.replay.build import build, replay_base
from diagnose.replay.effects import Effect
from diagnose.replay.graph import Edge, Graph, Times, Transform
from diagnose.replay.predict import Predicted, predict, unchanged
from diagnose.replay.simulate import CriticalPath, critical_path, shares, simulate
from diagnose.replay.transforms import drop_waits, scale_host, scale_kernels, typical_delays

__all__ = [
    "CriticalPath", "Edge", "Effect", "Graph", "Predicted", "Times", "Transform", "build", "critical_path",
    "drop_waits", "predict", "replay_base", "scale_host", "scale_kernels", "shares", "simulate", "typical_delays",
    "unchanged",
]  # fmt: skip
