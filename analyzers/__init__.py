"""One bottleneck, one file: what it looks for is the file's docstring, its id is the file's name.

``find(t)`` returns findings, ``prescribe(finding, step_ns)`` what to change. Rules that account for idle time also
have ``claim(t, left)``, which returns the stretches that they explain; they are asked in the order of IDLE_RULES, and
the first that claims a nanosecond keeps it. Where there is no device, HOST_RULES divide the training thread's time in
the same way; a rule that sees something else there has ``claim_host`` as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from diagnose.analyzers import (
    allocator_stall,
    at_roofline,
    buffer_broadcast,
    data_stall,
    device_contention,
    exposed_communication,
    exposed_copy,
    full_precision_matmul,
    gc_pause,
    host_collective,
    host_sync,
    imbalanced_devices,
    kernel_latency,
    launch_bound,
    layout_copy,
    lost_records,
    memory_fragmentation,
    memory_headroom,
    memory_pressure,
    memset_traffic,
    misaligned_matmul,
    off_cpu,
    pcie_bound,
    profiler_overhead,
    python_stall,
    recompilation,
    recompute,
    scatter_atomics,
    shared_device,
    slow_kernel,
    small_collectives,
    small_grid,
    straggler,
    stream_dependency,
    throttled,
    unexplained_device,
    unexplained_host,
    unfused_attention,
    unfused_elementwise,
    unfused_optimizer,
    warm_up,
)
from diagnose.model.diagnosis import Finding, Prescription
from diagnose.model.intervals import Intervals
from diagnose.tables import Tables
from diagnose.tables.skew import Skew

__all__ = [
    "BUSY_RULES",
    "IDLE_RULES",
    "RANK_RULES",
    "REST",
    "STATE_RULES",
    "TRUST_RULES",
    "Analyzer",
    "IdleAnalyzer",
    "RankAnalyzer",
]


class Analyzer(Protocol):
    """What every file of this folder offers."""

    RULE: str

    def find(self, t: Tables, /) -> list[Finding]:
        """Return what holds the step back, if this rule sees it."""

    def prescribe(self, finding: Finding, step_ns: float, /) -> list[Prescription]:
        """Return the changes that cure a finding of this rule."""


class IdleAnalyzer(Analyzer, Protocol):
    """A rule that accounts for idle time."""

    def claim(self, t: Tables, left: Intervals, /) -> Intervals:
        """Return the stretches of the idle time ``left`` that this rule explains."""


class RankAnalyzer(Analyzer, Protocol):
    """A rule that compares the ranks of one run."""

    def find_in_all(self, ranks: Sequence[Tables], skew: Skew, /) -> list[Finding]:
        """Return what holds all ranks back."""


# Trust first, then the host's causes from the most exact to the most general, then the device's.
IDLE_RULES: tuple[IdleAnalyzer, ...] = (
    profiler_overhead,
    lost_records,
    warm_up,
    recompilation,
    gc_pause,
    allocator_stall,
    data_stall,
    host_collective,
    exposed_copy,
    host_sync,
    off_cpu,
    python_stall,
    unfused_optimizer,
    launch_bound,
    exposed_communication,
    stream_dependency,
    kernel_latency,
    device_contention,
    unexplained_device,
)
REST: Analyzer = unexplained_host
BUSY_RULES: tuple[Analyzer, ...] = (
    buffer_broadcast,
    small_collectives,
    full_precision_matmul,
    unfused_attention,
    recompute,
    layout_copy,
    memset_traffic,
    scatter_atomics,
    unfused_elementwise,
    misaligned_matmul,
    small_grid,
    slow_kernel,
    at_roofline,
)
# What memory and the machine are like; named where no time is lost too.
STATE_RULES: tuple[Analyzer, ...] = (
    pcie_bound,
    imbalanced_devices,
    throttled,
    shared_device,
    memory_pressure,
    memory_fragmentation,
    memory_headroom,
)
RANK_RULES: tuple[RankAnalyzer, ...] = (straggler,)
# What these explain is not there in a steady, complete recording: no claim about the script rests on it.
TRUST_RULES = frozenset({"profiler-overhead", "lost-records", "warm-up"})
# What divides the training thread's time where there is no device; the rest is operators at work.
HOST_RULES: tuple[IdleAnalyzer, ...] = (
    warm_up,
    recompilation,
    gc_pause,
    data_stall,
    host_collective,
    exposed_communication,
    off_cpu,
    python_stall,
    unfused_optimizer,
    launch_bound,
)
WORK = "operators"
