"""Compares what a capture says with what CUDA's own clocks and counters and NVML say of the same steps; prints JSON.

Step time against CUDA events around the same number of steps; one large product's kernel against events around it;
the peak of memory against the allocator's; the share in which the device is busy against NVML's utilisation, which
says in which share of its samples any kernel ran. Exits 2 with a sentence where there is no GPU.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable

import torch

SIZE = 8192  # of the product: long beside every latency
STEPS = 50
REPEATS = 20


def timed(work: Callable[[], object], count: int) -> float:
    """Return the device's time per call, ms, by events around ``count`` calls."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for _ in range(count):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / count


def main() -> int:
    if not torch.cuda.is_available():
        print("agreement: torch sees no GPU here, so there is nothing to compare with.", file=sys.stderr)
        return 2
    import diagnose

    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(16))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x = torch.randn(4096, 2048, device="cuda")

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(10):
        step()
    by_events = timed(step, STEPS)
    found = diagnose.analyze(step)
    products = diagnose.analyze(lambda: a @ b)
    one = timed(lambda: a @ b, REPEATS)
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    busy = found.queue.busy_share if found.queue else None
    print(
        json.dumps(
            {
                "step_ms": {"events": by_events, "capture": found.step_ns / 1e6},
                "product_ms": {"events": one, "capture": products.step_ns / 1e6},
                "peak_bytes": {"allocator": peak, "capture": found.memory.peak_allocated if found.memory else None},
                "busy": {"nvml_percent": _utilisation(found.source.samples), "capture_percent": busy and 100 * busy},
                "device": torch.cuda.get_device_name(),
                "torch": torch.__version__,
            }
        )
    )
    return 0


def _utilisation(samples: object) -> float | None:
    """Return the median of NVML's utilisation, percent, as the capture keeps it."""
    gpus = samples.get("gpus") if isinstance(samples, dict) else None
    series = [gpu.get("utilisation") or [] for gpu in gpus or () if isinstance(gpu, dict)]
    values = [value for one in series for value in one if isinstance(value, int | float)]
    return statistics.median(values) if values else None


if __name__ == "__main__":
    raise SystemExit(main())
