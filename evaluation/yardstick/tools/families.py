"""Families of causes, for tools whose words do not tell the members apart; ids of docs/rules.md.

They were fixed before any answer of these tools was scored.
"""

from __future__ import annotations

__all__ = ["COLLECTIVES", "COPIES", "HOST", "KERNELS", "LAUNCHES", "LOADING", "VALUES"]

LOADING = ("data-stall", "wasted-sample")
LAUNCHES = ("launch-bound", "unfused-optimizer", "independent-loop", "recurrence")
COPIES = ("exposed-copy", "pcie-bound")
COLLECTIVES = ("exposed-communication", "straggler", "small-collectives", "buffer-broadcast", "host-collective")
HOST = (
    *LOADING,
    *LAUNCHES,
    "python-stall",
    "host-sync",
    "host-round-trip",
    "host-compute",
    "gc-pause",
    "off-cpu",
    "recompilation",
    "allocator-stall",
    "debug-mode",
    "periodic-stall",
    "rollout-bound",
    "unexplained-host",
)
KERNELS = (
    "full-precision-matmul",
    "misaligned-matmul",
    "slow-kernel",
    "at-roofline",
    "small-grid",
    "scatter-atomics",
    "slow-fft-length",
    "memset-traffic",
    "layout-copy",
    "recompute",
    "dense-embedding-gradients",
    "unfused",
    "unfused-attention",
    "unfused-elementwise",
)
VALUES = (
    "dead-work",
    "constant-work",
    "computed-again",
    "work-on-nothing",
    "equal-rows",
    "too-wide",
    "growing-work",
    "kept-graph",
    "uncached-generation",
)
