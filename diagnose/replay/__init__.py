"""What a change would do to the step: the steady steps as a dependency graph, changed, and replayed."""

from __future__ import annotations

from diagnose.replay.build import build
from diagnose.replay.graph import Edge, Graph, Times
from diagnose.replay.path import CriticalPath, critical_path, shares
from diagnose.replay.predict import Change, PredictedStep, graph_of, predict, replayed_savings
from diagnose.replay.simulate import simulate
from diagnose.replay.transforms import drop_waits, scale_host, scale_kernels, typical_delays

__all__ = [
    "Change",
    "CriticalPath",
    "Edge",
    "Graph",
    "PredictedStep",
    "Times",
    "build",
    "critical_path",
    "drop_waits",
    "graph_of",
    "predict",
    "replayed_savings",
    "scale_host",
    "scale_kernels",
    "shares",
    "simulate",
    "typical_delays",
]
