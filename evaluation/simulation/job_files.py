"""The recordings of a job as files of torch.profiler, one for each rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from simulation.jobs import Event, JobRun

__all__ = ["write_job"]

BASE_NS = 1_790_000_000_000_000_000
RANKS_PER_HOST = 8
DEVICE = {
    "id": 0,
    "name": "NVIDIA A100-SXM4-80GB",
    "totalGlobalMem": 85_000_000_000,
    "computeMajor": 8,
    "computeMinor": 0,
    "numSms": 108,
}


def write_job(run: JobRun, folder: Path) -> list[Path]:
    """Write a file for each rank and return them."""
    plan = run.plan
    rng = np.random.default_rng(plan.seed + 1)
    hosts = rng.uniform(-1, 1, plan.num_ranks // RANKS_PER_HOST + 1) * plan.clock_apart_ns
    paths = []
    for rank, log in enumerate(run.logs):
        offset = 5e9 + float(hosts[rank // RANKS_PER_HOST])
        path = folder / f"rank{rank}.pt.trace.json"
        path.write_bytes(msgspec.json.encode(_document(run, rank, log, offset)))
        paths.append(path)
    return paths


def _document(run: JobRun, rank: int, log: list[Event], offset: float) -> dict[str, Any]:
    return {
        "schemaVersion": 1,
        "deviceProperties": [DEVICE],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": run.plan.num_ranks},
        "host_name": f"node{rank // RANKS_PER_HOST}",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": [_event(event, offset) for event in log],
        "traceName": f"rank{rank}.pt.trace.json",
    }


def _event(event: Event, offset: float) -> dict[str, Any]:
    is_task = event.stream >= 0
    return {
        "ph": "X",
        "cat": event.category,
        "name": event.name,
        "pid": 0 if is_task else 100,
        "tid": event.stream if is_task else 100,
        "ts": round((event.start + offset) / 1e3, 3),
        "dur": round((event.end - event.start) / 1e3, 3),
        "args": event.args,
    }
