"""Structural mutations of a trace: what an exporter, a script or an attacker may have put in place of each field."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

from fuzzing import values
from fuzzing.extremes import EXTREMES
from fuzzing.picking import Event, events_of, some

__all__ = ["MUTATIONS", "mutate_trace"]

Mutation = Callable[[random.Random, dict[str, Any]], None]
FIELDS = ("ts", "ts", "ts", "dur", "dur", "dur", "tid", "pid", "ph", "cat", "name", "name", "args", "id", "s")
ARGS = (
    "correlation",
    "device",
    "stream",
    "bytes",
    "grid",
    "block",
    "External id",
    "Input Dims",
    "Input type",
    "Concrete Inputs",
    "Sequence number",
    "Call stack",
    "Bytes",
    "Total Allocated",
    "Total Reserved",
    "Addr",
    "Device Type",
    "Device Id",
    "wait_on_cuda_event_record_corr_id",
    "Collective name",
    "dtype",
    "Group size",
    "In msg nelems",
    "Python id",
    "name",
)
KEYS = (
    "schemaVersion",
    "deviceProperties",
    "computeProperties",
    "distributedInfo",
    "baseTimeNanoseconds",
    "traceName",
    "with_stack",
    "record_shapes",
    "displayTimeUnit",
)
CATEGORIES = (
    "cpu_op",
    "user_annotation",
    "python_function",
    "cuda_runtime",
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "cuda_sync",
    "overhead",
    "cpu_instant_event",
    "gpu_user_annotation",
    "Trace",
    "ac2g",
    "fwdbwd",
    "Operator",
    "no_such_category",
)
SHAPES: tuple[Any, ...] = (
    [[0, 0]],
    [[-1, 4]],
    [[2**62, 2**62], [2**62]],
    [[[]]],
    [[1.5, None]],
    "[[1, 2]]",
    [[10**30, 3], [3, 4]],
    [[64, 128], [128]],
    [{"a": 1}],
    [[float("nan")]],
    [[8] * 3000],
    [[2, 3]] * 3000,
    "grid(4096,)",
    ["?"],
)


def drop(rng: random.Random, document: dict[str, Any]) -> None:
    """Drop some events: half of them, one kind, or the first ones."""
    events = events_of(document)
    gone = {id(event) for event in some(rng, document)}
    if rng.random() < 0.2:
        gone = {id(event) for event in events if rng.random() < 0.5}
    events[:] = [event for event in events if id(event) not in gone]


def duplicate(rng: random.Random, document: dict[str, Any]) -> None:
    events = events_of(document)
    chosen = some(rng, document, most=0.3)
    events += [copy.deepcopy(event) for event in chosen for _ in range(rng.choice((1, 1, 3)))]


def reorder(rng: random.Random, document: dict[str, Any]) -> None:
    events = events_of(document)
    rng.shuffle(events) if rng.random() < 0.5 else events.reverse()


def truncate(rng: random.Random, document: dict[str, Any]) -> None:
    events = events_of(document)
    del events[rng.randrange(len(events) + 1) :]


def keep_kinds(rng: random.Random, document: dict[str, Any]) -> None:
    """Keep one or two categories only."""
    kept = set(rng.sample(CATEGORIES, rng.randint(1, 3)))
    events = events_of(document)
    events[:] = [event for event in events if isinstance(event, dict) and str(event.get("cat")) in kept]


def set_field(rng: random.Random, document: dict[str, Any]) -> None:
    field, found = rng.choice(FIELDS), values.value(rng)
    for event in some(rng, document):
        event[field] = found if rng.random() < 0.8 else values.value(rng)


def set_number(rng: random.Random, document: dict[str, Any]) -> None:
    field, found = rng.choice(("ts", "dur")), values.number(rng)
    for event in some(rng, document):
        event[field] = found


def remove_field(rng: random.Random, document: dict[str, Any]) -> None:
    field = rng.choice(FIELDS)
    for event in some(rng, document):
        event.pop(field, None)


def set_argument(rng: random.Random, document: dict[str, Any]) -> None:
    key, found = rng.choice(ARGS), values.value(rng)
    if key in ("Input Dims", "Input type", "grid", "Concrete Inputs") and rng.random() < 0.6:
        found = rng.choice(SHAPES)
    for event in some(rng, document):
        args = event.get("args")
        event["args"] = {**(args if isinstance(args, dict) else {}), key: found}


def remove_argument(rng: random.Random, document: dict[str, Any]) -> None:
    key = rng.choice(ARGS)
    for event in some(rng, document):
        if isinstance(event.get("args"), dict):
            event["args"].pop(key, None)


def rename(rng: random.Random, document: dict[str, Any]) -> None:
    found = values.name(rng)
    for event in some(rng, document, most=0.3):
        event["name"] = found if rng.random() < 0.9 else values.name(rng)


def recategorise(rng: random.Random, document: dict[str, Any]) -> None:
    found = rng.choice(CATEGORIES)
    for event in some(rng, document, most=0.3):
        event["cat"] = found


def stretch(rng: random.Random, document: dict[str, Any]) -> None:
    """Change times by a factor or a distance: clocks apart, an event of an hour, no length, negative lengths."""
    factor = rng.choice((0.0, 1e-3, -1.0, 0.5, 1.5, 1e6, 3.6e9))
    shift = rng.choice((0.0, 0.0, -1e4, 1e3, 3.6e9, 1e15, -1e15, 0.0004))
    field = rng.choice(("dur", "dur", "ts"))
    for event in some(rng, document):
        if isinstance(event.get(field), (int, float)):
            event[field] = event[field] * (factor if field == "dur" else 1.0) + shift


def jitter(rng: random.Random, document: dict[str, Any]) -> None:
    width = rng.choice((1.0, 50.0, 5000.0))
    for event in some(rng, document):
        if isinstance(event.get("ts"), (int, float)):
            event["ts"] = round(event["ts"] + rng.uniform(-width, width), 3)


def _marks(document: dict[str, Any]) -> list[Event]:
    return [e for e in events_of(document) if isinstance(e, dict) and str(e.get("name")).startswith("ProfilerStep")]


def step_times(rng: random.Random, document: dict[str, Any]) -> None:
    """Give steps no length, a negative or a huge one, or let them overlap or begin together."""
    how = rng.randrange(4)
    for mark in _marks(document):
        ts = mark.get("ts")
        if how == 0:
            mark["dur"] = rng.choice((0, -1, 1e-6))
        elif how == 1:
            mark["dur"] = rng.choice((5e3, 3.6e9))
        elif how == 2 and isinstance(ts, (int, float)):
            mark["ts"], mark["dur"] = ts + rng.uniform(-900, 900), rng.uniform(0, 3000)
        elif how == 3:
            mark["ts"] = 500.0


def step_names(rng: random.Random, document: dict[str, Any]) -> None:
    """Give steps the same number, huge or odd ones, threads of their own, or another category."""
    how = rng.randrange(4)
    for i, mark in enumerate(_marks(document)):
        if how == 0:
            mark["name"] = "ProfilerStep#1"
        elif how == 1:
            mark["name"] = f"ProfilerStep#{rng.choice((-5, 10**30, 2**63, 'x', '', 1.5))}"
        elif how == 2:
            mark["tid"] = i
        else:
            mark["cat"] = rng.choice(CATEGORIES)


def many_steps(rng: random.Random, document: dict[str, Any]) -> None:
    mark = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "dur": rng.choice((0, 1, 1e5)), "args": {}}
    events_of(document).extend({**mark, "name": f"ProfilerStep#{i}", "ts": i * 3.0} for i in range(300))


def intrude(rng: random.Random, document: dict[str, Any]) -> None:
    """Put something into the list that is no event."""
    events = events_of(document)
    for _ in range(rng.choice((1, 1, 5))):
        events.insert(rng.randrange(len(events) + 1), values.value(rng))


def crossed_links(rng: random.Random, document: dict[str, Any]) -> None:
    """Give many events the same link, or each another one's."""
    found = rng.choice((0, 1, -1, 2**63, 7))
    for event in some(rng, document):
        if isinstance(event.get("args"), dict) and "correlation" in event["args"]:
            event["args"]["correlation"] = found if rng.random() < 0.5 else rng.randint(1, 20)


def many_streams(rng: random.Random, document: dict[str, Any]) -> None:
    for event in some(rng, document):
        if isinstance(event.get("args"), dict) and "stream" in event["args"]:
            event["args"]["stream"] = rng.choice((0, -1, 2**31, 2**32 - 1, 2**40, "0x0", "seven", rng.randint(0, 9)))
            event["args"]["device"] = rng.choice((0, 0, 1, -1, 70_000, "0"))


def keys(rng: random.Random, document: dict[str, Any]) -> None:
    """Put another type under a key beside the events, or one level deeper."""
    key = rng.choice(KEYS)
    if rng.random() < 0.5:
        document[key] = values.value(rng)
    elif key in ("deviceProperties", "computeProperties"):
        device = {"id": values.value(rng), "name": values.value(rng), "totalGlobalMem": values.value(rng)}
        device |= {"computeMajor": values.value(rng), "computeMinor": values.value(rng), "numSms": values.value(rng)}
        document[key] = [device] * rng.choice((1, 2)) + [rng.choice((None, [], 3))] * rng.choice((0, 1))
    else:
        info = {"rank": values.value(rng), "world_size": values.value(rng), "backend": values.value(rng)}
        document["distributedInfo"] = info | {"pg_config": values.value(rng)}


def wrong_container(rng: random.Random, document: dict[str, Any]) -> None:
    events = events_of(document)
    document["traceEvents"] = rng.choice(
        ({str(i): event for i, event in enumerate(events)}, None, "events", [events], [None, *events], 3, events * 2)
    )


def nest(rng: random.Random, document: dict[str, Any]) -> None:
    """Nest lists or objects a thousand deep, in an argument or in the place of an event."""
    depth = rng.choice((50, 500, 1000, 3000))
    opening, closing = rng.choice((("[", "]"), ("{@a@:", "}")))
    deep = values.raw(opening * depth + "1" + closing * depth)
    for event in some(rng, document, most=0.1)[:3]:
        if rng.random() < 0.7:
            args = event.get("args")
            event["args"] = {**(args if isinstance(args, dict) else {}), rng.choice(ARGS): deep}
        else:
            event[rng.choice(FIELDS)] = deep


def multiply(rng: random.Random, document: dict[str, Any]) -> None:
    """Repeat the whole list later in time."""
    events = [event for event in events_of(document) if isinstance(event, dict)]
    if len(events) > 2000:
        return
    for i in range(1, rng.choice((2, 4))):
        later = copy.deepcopy(events)
        for event in later:
            if isinstance(event.get("ts"), (int, float)):
                event["ts"] += i * rng.choice((5000.0, 0.0, 1e9))
        events_of(document).extend(later)


MUTATIONS: tuple[Mutation, ...] = (
    drop, duplicate, reorder, truncate, keep_kinds, set_field, set_field, set_number, set_number, remove_field,
    set_argument, set_argument, remove_argument, rename, rename, recategorise, stretch, stretch, jitter,
    step_times, step_times, step_names, many_steps, intrude, crossed_links, many_streams, keys, keys, wrong_container,
    nest, multiply, *EXTREMES, *EXTREMES,
)  # fmt: skip


def mutate_trace(rng: random.Random, document: dict[str, Any]) -> list[str]:
    """Mutate a trace in place, once to four times; return what was done."""
    chosen = [rng.choice(MUTATIONS) for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4)))]
    for mutation in chosen:
        mutation(rng, document)
    return [mutation.__name__ for mutation in chosen]
