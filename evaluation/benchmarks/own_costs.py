"""What diagnose itself costs: the sampler in the thread it watches, and one what-if on a long trace; JSON on stdout."""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time

from diagnose.capture.record.sampler import Taken
from diagnose.capture.record.samplers import ExactSampler, SamplerProcess
from diagnose.pipeline.find import build_tables
from diagnose.replay import build, scale_kernels, simulate
from diagnose.trace_reader.folders import open_captures

PERIOD_MS = 5.0
NUM_ADDITIONS = 100_000
STEPS = 20  # of one interval
STRETCHES = 16  # sampled and not sampled in turn
ROUNDS = 5


def step() -> None:
    """Compute in Python for about 5 ms: the interpreter's lock is never free by itself, the worst case for sampling."""
    total = 0
    for i in range(NUM_ADDITIONS):
        total += i * i


def sampler_costs() -> tuple[float, float]:
    """Return (how much longer the step gets while it is sampled, CPU time of the sampling process over time)."""
    longer, shares, process = [], [], SamplerProcess()
    for _ in range(ROUNDS):
        rows = Taken(threading.get_ident(), threading.get_native_id(), PERIOD_MS)
        sampler, plain, sampled = ExactSampler(process, rows), [], []
        for number in range(STRETCHES):
            taken = plain if number % 2 else sampled
            if taken is sampled and not sampler.start():
                sys.exit(process.failure)
            began = time.perf_counter()
            for _ in range(STEPS):
                step()
            taken.append(time.perf_counter() - began)
            sampler.stop()
        longer.append(statistics.median(sampled) / statistics.median(plain) - 1)
        shares.append(float(str(rows.summary()["cost_share"])))
    process.close()
    return statistics.median(longer), statistics.median(shares)


def what_if(path: str) -> tuple[int, float]:
    """Return the nodes of a trace's graph and the median seconds of one change and its replay."""
    capture = open_captures([path])[0]
    t = build_tables(capture, capture.trace)
    graph = build(t)
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        simulate(scale_kernels(graph, t.trace, "gemm", 0.5))
        took.append(time.perf_counter() - began)
    return len(graph), statistics.median(took)


if __name__ == "__main__":
    nodes, seconds = what_if(sys.argv[1])
    slowdown, share = sampler_costs()
    json.dump({"nodes": nodes, "what_if_s": seconds, "sampler_slowdown": slowdown, "sampler_share": share}, sys.stdout)
