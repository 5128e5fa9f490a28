"""The recordings of a job as files of torch.profiler, one for each rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from simulation.jobs import JobRun, RankLog

__all__ = ["write_job"]

BASE_NS = 1_790_000_000_000_000_000
RANKS_PER_HOST = 8


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


def _document(run: JobRun, rank: int, log: RankLog, offset: float) -> dict[str, Any]:
    plan = run.plan
    distributed: dict[str, Any] = {"backend": "nccl", "rank": rank, "world_size": plan.num_ranks}
    events = [_host(*event, offset) for event in log.host]
    events += [_task(*task, offset) for task in log.tasks]
    return {
        "schemaVersion": 1,
        "deviceProperties": [
            {
                "id": 0,
                "name": "NVIDIA A100-SXM4-80GB",
                "totalGlobalMem": 85_000_000_000,
                "computeMajor": 8,
                "computeMinor": 0,
                "numSms": 108,
            }
        ],
        "distributedInfo": distributed,
        "host_name": f"node{rank // RANKS_PER_HOST}",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": events,
        "traceName": f"rank{rank}.pt.trace.json",
    }


def _host(category: str, name: str, start: float, end: float, args: dict[str, Any], offset: float) -> dict[str, Any]:
    return _event(category, name, 100, 100, start + offset, end + offset, args)


def _task(
    name: str, stream: int, start: float, end: float, correlation: int, args: dict[str, Any], offset: float
) -> dict[str, Any]:
    category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
    known = {"device": 0, "stream": stream, "correlation": correlation, **args}
    return _event(category, name, 0, stream, start + offset, end + offset, known)


def _event(category: str, name: str, pid: int, tid: int, start: float, end: float, args: dict[str, Any]) -> Any:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": round(float(start) / 1e3, 3),
        "dur": round(float(end - start) / 1e3, 3),
        "args": args,
    }
