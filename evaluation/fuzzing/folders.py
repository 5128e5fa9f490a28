"""A capture folder as ``diagnose trace`` leaves it, made from small traces."""

from __future__ import annotations

import random
from typing import Any

from fuzzing import made

__all__ = ["Documents", "capture"]

Documents = dict[str, Any]  # file name → JSON document


def capture(rng: random.Random, *, ranks: int = 1, device: bool = True) -> Documents:
    """Return the documents of a folder: a description, two windows, samples, lines and steps for each rank."""
    files: Documents = {}
    for rank in range(ranks):
        timing = "cpu" if not device else "rank" if ranks > 1 else rng.choice(("gpu", "stalled"))
        light, later = f"rank{rank}.light.pt.trace.json.gz", f"rank{rank}.attribution.pt.trace.json.gz"
        samples, lines, steps = (f"rank{rank}.{kind}.json.gz" for kind in ("samples", "lines", "steps"))
        files[light] = made.trace(timing, rng, rank=rank)
        files[later] = made.trace("attribution" if device else "cpu", rng, rank=rank, shift_us=20_000.0)
        files[samples], files[lines], files[steps] = _samples(rng), _lines(), _steps(rng)
        name = "capture.json" if ranks == 1 else f"capture.rank{rank}.json"
        files[name] = _description(rng, rank, ranks, device) | {
            "light_file": light,
            "attribution_file": later,
            "samples_file": samples,
            "lines_file": lines,
            "steps_file": steps,
        }
    return files


def _samples(rng: random.Random) -> dict[str, Any]:
    count = 40
    return {
        "places": [["train.py", 12, "main"], ["dataset.py", 7, "__getitem__"]],
        "time_ns": [made.EPOCH_NS + i * 100_000 for i in range(count)],
        "place": [rng.randrange(2) for _ in range(count)],
        "running": [rng.choice((1, 1, 0, -1)) for _ in range(count)],
        "gc": [[made.EPOCH_NS + 1_122_000, made.EPOCH_NS + 1_126_000]],
    }


def _lines() -> dict[str, Any]:
    file = {"sha256": "0" * 64, "changed_at": "2026-01-01T00:00:00+00:00", "lines": {"12": "loss.backward()"}}
    return {
        "files": {"train.py": file, "dataset.py": file | {"lines": {"7": "return self.items[i]"}, "loops": {"5": 7}}}
    }


def _steps(rng: random.Random) -> dict[str, Any]:
    """Return 64 steps of about 1 ms, every 16th ten times as long."""
    took = [(10 if i % 16 == 15 else 1) * (1_000_000 + rng.randrange(10_000)) for i in range(64)]
    began = [made.EPOCH_NS + sum(took[:i]) for i in range(64)]
    return {
        "began_ns": began,
        "took_ns": took,
        "state": [0] * 40 + [1] * 8 + [2] * 8 + [0] * 8,
        "phases": {"evaluation": [9_000_000 if i % 16 == 15 else 0 for i in range(64)]},
        "paths": [[["train.py", 12, "main"]], [["train.py", 20, "evaluate"], ["train.py", 14, "main"]]],
        "sampled_ns": [start + 400_000 for start in began],
        "path": [int(i % 16 == 15) for i in range(64)],
    }


def _series() -> dict[str, Any]:
    times = [made.EPOCH_NS + i * 500_000 for i in range(6)]
    return {
        "index": 0,
        "uuid": "GPU-1",
        "name": "NVIDIA A100-SXM4-40GB",
        "max_sm_mhz": 1410,
        "power_limit_w": 400.0,
        "memory_total_bytes": 40 << 30,
        "other_processes": [{"pid": 7, "memory_bytes": 1 << 30}],
        "own_process_seen": True,
        "time_ns": times,
        "utilisation": [97, 99, 100, 90, 80, 97],
        "sm_mhz": [1410, 1410, 900, 900, 900, 1410],
        "throttle_reasons": [0, 0, 4, 4, 4, None],
        "power_w": [390.0, 395.5, 399.0, 400.0, 400.0, 380.0],
        "temperature_c": [70, 71, 72, 73, 74, 74],
        "memory_used_bytes": [30 << 30] * 6,
    }


def _description(rng: random.Random, rank: int, ranks: int, device: bool) -> dict[str, Any]:
    gpu = {"index": 0, "uuid": "GPU-1", "name": "NVIDIA A100-SXM4-40GB", "memory_bytes": 40 << 30}
    nvml = {"available": device, "reason": "" if device else "no driver", "gpus": [_series()] * device}
    times = [round(1.0 + rng.random() / 100, 6) for _ in range(6)]
    return {
        "schema_version": 1,
        "run_id": "run-1",
        "tool_version": "1.0",
        "command": ["train.py", "--epochs", "3"],
        "cwd": "/home/user",
        "started_at": "2026-01-01T00:00:00+00:00",
        "python": "3.12.1",
        "torch": "2.9.0",
        "cuda": "12.8" if device else "",
        "rank": rank,
        "world_size": ranks,
        "gpus": [gpu] * device,
        "flags": {"light": {"with_stack": False}, "ddp": {"bucket_cap_mb": 25} if ranks > 1 else {}},
        "found_steps_by": "optimizer",
        "events_per_step": 1,
        "settled_after": 8,
        "unprofiled_ms": times,
        "light_ms": [1.0] * 4,
        "attribution_ms": [1.0] * 3,
        "sampler": {"period_ms": 5.0, "cost_share": 0.004, "ready_share": 0.0},
        "nvml": nvml,
        "memory": {"retries": 0, "peak_allocated_bytes": 1 << 30, "peak_reserved_bytes": 2 << 30},
        "loader": {"batch_size": 32, "num_workers": 0, "dataset": "Images", "pin_memory": False, "workers_busy": 0.5},
        "optimizer": {"class": "SGD", "fused": False, "foreach": None, "num_params": 12, "param_bytes": 4 << 20},
        "notes": ["The script started a profiler of its own."],
        "ended": "stopped",
        "exit_code": 0,
    }
