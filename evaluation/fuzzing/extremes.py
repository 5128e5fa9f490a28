"""Mutations that keep a trace well formed and make it impossible or huge: sizes, streams, times, numbers as text."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

from fuzzing.picking import Event, events_of, some

__all__ = ["EXTREMES"]

MAX_STREAMS = 600  # of a mutant: as many as show work that grows with their square, and still quick
SIDES = (2**20, 2**31, 2**40, 2**62, 2**63 - 1, 2**63, 10**30)
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def _tasks(document: dict[str, Any]) -> list[Event]:
    events = [event for event in events_of(document) if isinstance(event, dict)]
    return [e for e in events if str(e.get("cat")).lower() in _DEVICE and isinstance(e.get("args"), dict)]


def huge_dimensions(rng: random.Random, document: dict[str, Any]) -> None:
    """Give operators shapes of tensors that no memory holds, all of them or one side of each."""
    side, one_side = rng.choice(SIDES), rng.random() < 0.5
    shapes: list[list[int]] = [[side, side], [side, side]] if rng.random() < 0.6 else [[64, side], [side], [side, 64]]
    for event in some(rng, document):
        args = event.get("args")
        if event.get("cat") != "cpu_op" or not isinstance(args, dict):
            continue
        known = args.get("Input Dims")
        if one_side and isinstance(known, list):
            args["Input Dims"] = [[side, *d[1:]] if isinstance(d, list) and d else d for d in known]
        else:
            args |= {"Input Dims": copy.deepcopy(shapes), "Input type": ["float"] * len(shapes)}


def huge_numbers(rng: random.Random, document: dict[str, Any]) -> None:
    """Give operators numbers among their arguments that none has: strides of nothing, sizes without end."""
    number = rng.choice((0, -1, 2**63, 10**30, 10**400))
    listed = rng.choice((str(number), f"[{number}, {number}]"))
    for event in some(rng, document):
        args = event.get("args")
        if event.get("cat") == "cpu_op" and isinstance(args, dict):
            event["args"] = {**args, "Concrete Inputs": [listed] * rng.choice((1, 3, 12))}


def stream_each(rng: random.Random, document: dict[str, Any]) -> None:
    """Put each task on a stream of its own, and add some hundred."""
    tasks = _tasks(document)
    for i, task in enumerate(tasks):
        task["args"]["stream"] = task["tid"] = i
    for i in range(rng.choice((0, 50, MAX_STREAMS)) if tasks else 0):
        task = copy.deepcopy(rng.choice(tasks))
        task["args"]["stream"] = task["tid"] = 1000 + i
        events_of(document).append(task)


def overlap(rng: random.Random, document: dict[str, Any]) -> None:
    """Make the tasks longer than the time to the next one."""
    factor = rng.choice((1.3, 2.0, 30.0, 1e3))
    for task in _tasks(document):
        if isinstance(task.get("dur"), (int, float)):
            task["dur"] = task["dur"] * factor


def clock_back(rng: random.Random, document: dict[str, Any]) -> None:
    """Set the clock back once: later events, of the host, of the device or all, come earlier."""
    events = [e for e in events_of(document) if isinstance(e, dict) and isinstance(e.get("ts"), (int, float))]
    if not events:
        return
    times = sorted(event["ts"] for event in events)
    at, by = times[rng.randrange(len(times))], (times[-1] - times[0]) * rng.choice((0.01, 0.3, 0.75))
    moved = rng.choice((_DEVICE, None, None))
    for event in events:
        if event["ts"] > at and (moved is None or str(event.get("cat")).lower() in moved):
            event["ts"] -= by


def numbers_as_text(rng: random.Random, document: dict[str, Any]) -> None:
    """Write numbers of events, and of their arguments, as text."""
    inside = rng.random() < 0.7
    for event in some(rng, document):
        args = event.get("args")
        for held in (event, args) if inside and isinstance(args, dict) else (event,):
            held.update({key: str(found) for key, found in held.items() if _is_number(found) and rng.random() < 0.8})


def _is_number(found: object) -> bool:
    return isinstance(found, (int, float, list)) and not isinstance(found, bool)


def lone_task(rng: random.Random, document: dict[str, Any]) -> None:
    """Keep one task, with nothing else or with the host's side only."""
    tasks = _tasks(document)
    if not tasks:
        return
    kept, with_host = rng.choice(tasks), rng.random() < 0.4
    others = [event for event in events_of(document) if with_host and event not in tasks]
    document["traceEvents"] = [kept, *others]


def graphs_without_nodes(rng: random.Random, document: dict[str, Any]) -> None:
    """Launch graphs that leave nothing, next to few other tasks."""
    events = events_of(document)
    for event in events:
        if isinstance(event, dict) and str(event.get("name")).startswith(("cudaLaunchKernel", "hipLaunchKernel")):
            event["name"] = "cudaGraphLaunch"
    gone = {id(task) for task in _tasks(document) if task.get("cat") == "kernel" or rng.random() < 0.5}
    events[:] = [event for event in events if id(event) not in gone]


EXTREMES: tuple[Callable[[random.Random, dict[str, Any]], None], ...] = (
    huge_dimensions, huge_numbers, stream_each, overlap, clock_back, numbers_as_text, lone_task, graphs_without_nodes,
)  # fmt: skip
