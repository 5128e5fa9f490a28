"""Cuts a capture down to a few whole steps and the device work that they queued, small enough to be committed."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path
from typing import Any

__all__ = ["cut_capture", "cut_trace"]

STEP = re.compile(r"^ProfilerStep#\d+$")
MAX_STEPS = 6
HOST = ("python_function", "cuda_profiler_range")  # what goes first where one step is still too large
QUEUED = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")

Event = dict[str, Any]


def cut_capture(folder: Path, target: Path, most_bytes: int) -> list[Path]:
    """Copy a capture folder with each of its traces cut to ``most_bytes`` of gzip; return the traces.

    Raises:
        ValueError: a trace holds no step marks, or one bare step of it is still too large.
    """
    shutil.rmtree(target, ignore_errors=True)
    cut = {
        p: cut_trace(p.read_bytes(), most_bytes) for p in sorted(folder.iterdir()) if p.name.endswith("trace.json.gz")
    }
    target.mkdir(parents=True)
    made = []
    for path in sorted(folder.iterdir()):
        if path.name.endswith("trace.json.gz"):
            (target / path.name).write_bytes(cut[path])
            made.append(target / path.name)
        elif path.is_file():
            shutil.copy(path, target / path.name)
    return made


def cut_trace(data: bytes, most_bytes: int) -> bytes:
    """Return a trace (gzip of Kineto JSON) with as many of its middle steps as fit, at most six.

    Raises:
        ValueError: it holds no step marks, or one bare step is still too large.
    """
    trace = json.loads(gzip.decompress(data))
    events: list[Event] = trace["traceEvents"]
    marks = sorted((e for e in events if _is_step(e)), key=lambda e: float(e["ts"]))
    if not marks:
        raise ValueError("the trace holds no ProfilerStep marks to cut at")
    for bare in (False, True):
        for num in range(min(MAX_STEPS, len(marks)), 0, -1):
            first = (len(marks) - num) // 2
            kept = _within(events, marks[first], marks[first + num - 1])
            if bare:
                kept = [e for e in kept if e.get("cat") not in HOST]
            packed = gzip.compress(json.dumps({**trace, "traceEvents": kept}).encode(), 9, mtime=0)
            if len(packed) <= most_bytes:
                return packed
    raise ValueError(f"one step alone takes {len(packed)} bytes, more than {most_bytes}")


def _is_step(event: Event) -> bool:
    return event.get("ph") == "X" and event.get("cat") == "user_annotation" and bool(STEP.match(event.get("name", "")))


def _within(events: list[Event], first: Event, last: Event) -> list[Event]:
    """Return metadata, the host's events of these steps, and the tasks that they launched."""
    begin, end = float(first["ts"]), float(last["ts"]) + float(last["dur"])

    def inside(event: Event) -> bool:
        return begin <= float(event.get("ts", -1)) < end

    launched = {
        e["args"]["correlation"]
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and inside(e) and "correlation" in e.get("args", {})
    }
    return [
        e
        for e in events
        if e.get("ph") == "M"
        or (e.get("args", {}).get("correlation") in launched if e.get("cat") in QUEUED else inside(e))
    ]
