"""What a change would do to the step: the steady steps as a dependency graph, changed, and replayed."""

from __future__ import annotations

from diagnose.replay.build import build
from diagnose.replay.graph import Edge, Graph, Times
from diagnose.replay.simulate import simulate
from diagnose.replay.transforms import drop_waits, scale_host, scale_kernels, typical_delays

__all__ = [
    "Edge",
    "Graph",
    "Times",
    "build",
    "drop_waits",
    "scale_host",
    "scale_kernels",
    "simulate",
    "typical_delays",
]
