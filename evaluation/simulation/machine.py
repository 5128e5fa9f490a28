"""Machines drawn at random: what the host and the GPU cost.

The ranges of the costs are those of published Kineto traces (pages/simulation.md has the table); peaks and bandwidths
are those of the vendors' data sheets.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

__all__ = ["GPUS", "Gpu", "Machine", "draw_machine", "noise_table"]

US = 1_000.0
NOISE_LENGTH = 4096


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as its data sheet has it; TFLOP/s dense, GB/s."""

    name: str
    vendor: Literal["nvidia", "amd"]
    memory_bytes: int
    capability: tuple[int, int]
    num_sms: int
    half_tflops: float
    tf32_tflops: float  # 0: has none
    single_tflops: float
    memory_gbps: float
    pcie_gbps: float  # to the host, one direction


GPUS = (
    Gpu("Tesla V100-SXM2-32GB", "nvidia", 34079899648, (7, 0), 80, 125.0, 0.0, 15.7, 900.0, 16.0),
    Gpu("NVIDIA A100-SXM4-40GB", "nvidia", 42505273344, (8, 0), 108, 312.0, 156.0, 19.5, 1555.0, 32.0),
    Gpu("NVIDIA GeForce RTX 3060", "nvidia", 12487294976, (8, 6), 28, 25.5, 12.7, 12.7, 360.0, 32.0),
    Gpu("NVIDIA H100 80GB HBM3", "nvidia", 85045477376, (9, 0), 132, 989.0, 494.0, 67.0, 3350.0, 64.0),
    Gpu("AMD Instinct MI300X", "amd", 206141652992, (9, 4), 304, 1307.0, 653.0, 163.0, 5300.0, 64.0),
    Gpu("AMD Instinct MI250X", "amd", 68702699520, (9, 0), 104, 191.0, 0.0, 24.0, 1638.0, 32.0),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """Costs in ns; ``host`` multiplies every cost of the host, so 2.0 is a slow one."""

    gpu: Gpu
    host: float = 1.0
    matmul_efficiency: float = 0.6
    memory_efficiency: float = 0.8
    launch_ns: float = 5 * US
    graph_launch_ns: float = 20 * US  # of the call
    graph_node_ns: float = 0.9 * US  # of the call, for each kernel of the graph
    latency_ns: float = 3 * US  # from the end of a launch to the start of its task on an empty device
    gap_ns: float = 1 * US  # between two tasks of a stream
    event_ns: float = 1 * US  # recording or waiting for an event
    memcpy_ns: float = 8 * US  # of the call
    sync_ns: float = 6 * US  # from the drained stream to the end of the call
    malloc_ns: float = 110 * US
    free_ns: float = 60 * US
    switch_ns: float = 30 * US  # waking the autograd thread, and the training thread after it
    pinned_gbps: float = 24.0
    pageable_gbps: float = 6.0
    link_gbps: float = 100.0  # of an all-reduce
    collective_ns: float = 25 * US  # of the smallest collective
    first_use_ns: float = 800 * US  # loading a kernel's code
    record_ns: float = 0.0  # what the profiler adds to each recorded operator
    queue_depth: int = 1024
    host_noise: float = 0.08
    device_noise: float = 0.02


def draw_machine(rng: random.Random, *, vendor: str | None = None) -> Machine:
    """Return a machine; ``vendor`` fixes the GPU's."""
    gpu = rng.choice([gpu for gpu in GPUS if vendor in (None, gpu.vendor)])
    host = _between(rng, 0.6, 2.6)
    # Bare metal, virtualised, and through another system's driver.
    latency = rng.choice([(1.5, 4.0)] * 6 + [(8.0, 20.0)] * 2 + [(60.0, 120.0)])
    return Machine(
        gpu=gpu,
        host=host,
        matmul_efficiency=rng.uniform(0.4, 0.75),
        memory_efficiency=rng.uniform(0.65, 0.9),
        launch_ns=_between(rng, 3.0, 8.0) * US,
        graph_launch_ns=_between(rng, 8.0, 60.0) * US,
        graph_node_ns=_between(rng, 0.3, 1.2) * US,
        latency_ns=_between(rng, *latency) * US,
        gap_ns=_between(rng, 0.4, 1.8) * US,
        event_ns=_between(rng, 0.7, 2.0) * US,
        memcpy_ns=_between(rng, 4.0, 14.0) * US,
        sync_ns=_between(rng, 4.0, 12.0) * US,
        malloc_ns=_between(rng, 60.0, 400.0) * US,
        free_ns=_between(rng, 20.0, 300.0) * US,
        switch_ns=_between(rng, 15.0, 60.0) * US,
        pinned_gbps=gpu.pcie_gbps * _between(rng, 0.4, 0.9),
        pageable_gbps=_between(rng, 2.0, min(9.0, 0.4 * gpu.pcie_gbps)),
        link_gbps=_between(rng, 8.0, 250.0),
        collective_ns=_between(rng, 10.0, 40.0) * US,
        first_use_ns=_between(rng, 200.0, 4000.0) * US,
        record_ns=rng.choice([0.0, 0.4, 0.8, 1.5]) * US,
        host_noise=rng.uniform(0.02, 0.15),
        device_noise=rng.uniform(0.003, 0.03),
    )


@lru_cache(maxsize=8)
def noise_table(seed: int, spread: float) -> list[float]:
    """Return factors around 1 whose mean is 1: log-normal, of the given spread."""
    normal = np.random.default_rng(seed).standard_normal(NOISE_LENGTH)
    factors: list[float] = np.exp(spread * normal - spread * spread / 2).tolist()
    return factors


def _between(rng: random.Random, low: float, high: float) -> float:
    """Return a number whose logarithm is even between the bounds."""
    return float(low * (high / low) ** rng.random())
