"""What a job of several ranks does, and the one reason for waiting that is planted in it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

__all__ = ["CALM", "HOST_BOUND", "MS", "REASONS", "US", "Plan", "draw_plan", "full_at"]

REASONS = (
    "loader-2",
    "loader-5",
    "compute",
    "slow-link",
    "wandering",
    "late-start",
    "backward-pause",
    "slow-host",
    "contention",
    "nothing",
    "host-bound",
)
CALM = ("nothing", "host-bound")  # nothing is planted: the device takes the step's time, or the host
HOST_BOUND = (
    "slow-host",
    "contention",
    "host-bound",
)  # what is planted would cost nothing where the device has work for longer
SIZES = (2, 4, 8, 16, 32, 64, 128, 256)
US, MS = 1_000.0, 1_000_000.0


@dataclass(frozen=True)
class Plan:
    """What a job does, and what is planted in it."""

    name: str
    seed: int
    reason: str
    num_ranks: int
    split: int  # ranks that share each layer; 1: none
    num_steps: int
    num_layers: int
    layer_ns: float  # of a layer's forward on the device
    host_ns: float  # of an operator
    num_buckets: int
    bucket_bytes: int
    bus_gbps: float
    loader_ns: float
    reads_loss: bool  # the host waits for the device at the end of each step
    noise: float  # of a kernel's length
    rank: int = 0  # the culprit
    members: tuple[int, ...] = ()  # of the slow group
    slow_by: float = 1.0  # its transfers
    pauses: tuple[int, ...] = ()  # rank by step
    pause_ns: float = 0.0
    pause_kind: str = "gc"  # or python
    pause_layer: int = 0  # behind whose backward the culprit pauses in each step
    host_slow_by: float = 1.4  # everything on the culprit's host
    late_ns: float = 0.0
    records_groups: bool = True
    records_numbers: bool = True
    clock_apart_ns: float = 0.0
    waits_for_buckets: bool = False  # the backward goes on only when a bucket is reduced


def draw_plan(seed: int, number: int, reason: str | None = None) -> Plan:
    """Return a job; ``number`` counts within the seed."""
    rng = np.random.default_rng((seed, number))
    sizes = np.array(SIZES)
    kind = reason or REASONS[number % len(REASONS)]
    weights = 1 / np.sqrt(sizes) * (sizes >= (4 if kind == "slow-link" else 2))
    size = int(rng.choice(sizes, p=weights / weights.sum()))
    splits = [n for n in (2, 4, 8) if n <= size // 2]
    split = int(rng.choice(splits)) if splits and (kind == "slow-link" or rng.random() < 0.3) else 1
    steps, culprit = int(rng.integers(4, 9)), int(rng.integers(size))
    layer = float(rng.uniform(0.4, 1.2)) * MS
    group = int(rng.integers(max(size // split, 1)))
    plan = Plan(
        name=f"job-{seed}-{number}",
        seed=seed * 100_003 + number,
        reason=kind,
        num_ranks=size,
        split=split,
        num_steps=steps,
        num_layers=int(rng.integers(6, 13)),
        layer_ns=layer,
        host_ns=float(rng.uniform(15, 60)) * US,
        num_buckets=int(rng.integers(2, 6)),
        bucket_bytes=int(rng.integers(4, 26)) << 20,
        bus_gbps=float(rng.choice([10.0, 25.0, 90.0, 200.0])),
        loader_ns=float(rng.uniform(0.3, 2.0)) * MS,
        reads_loss=kind.startswith("loader") or kind == "wandering" or bool(rng.random() < 0.6),
        noise=float(rng.uniform(0.002, 0.015)),
        rank=culprit,
        members=tuple(range(group * split, (group + 1) * split)) if kind == "slow-link" else (),
        slow_by=float(rng.uniform(2.0, 5.0)),
        pauses=tuple(rng.permutation(max(size, steps))[:steps].astype(int).tolist()) if kind == "wandering" else (),
        pause_ns=float(rng.uniform(8, 30)) * MS,
        pause_kind=str(rng.choice(["gc", "python"])),
        late_ns=float(rng.uniform(8, 30)) * MS,
        records_groups=bool(split > 1 or rng.random() < 0.6),
        records_numbers=bool(rng.random() < 0.7),
        clock_apart_ns=float(rng.choice([0.0, 2.0, 400.0])) * MS,
    )
    plan = replace(plan, pauses=tuple(p % size for p in plan.pauses))
    more = np.random.default_rng((seed, number, 1))  # what was added since, so that the rest stays as it was drawn
    if kind == "backward-pause":
        layers = full_at(plan) if more.random() < 0.5 else range(1, plan.num_layers)
        layer = int(more.choice(sorted(layers)))
        ahead = (1.08 * plan.num_layers + 2 * (plan.num_layers - layer)) * (plan.layer_ns - plan.host_ns)
        return replace(plan, pause_layer=layer, pause_ns=ahead + float(more.uniform(2, 12)) * MS)
    if kind in HOST_BOUND:
        return replace(plan, layer_ns=float(more.uniform(20, 60)) * US, host_ns=float(more.uniform(60, 120)) * US)
    return plan


def full_at(plan: Plan) -> set[int]:
    """Return the layers behind whose backward a bucket of gradients is full."""
    return {bucket * plan.num_layers // plan.num_buckets for bucket in range(plan.num_buckets)}
