"""Repeats a recorded trace in time until it has a wanted size: long traces to measure readers with.

    python evaluation/benchmarks/repeat.py TRACE OUT.json MEGABYTES

Every repetition is moved behind the one before it, with ids and step numbers of its own; threads, devices and
everything else stay. The text is laid out as the profiler does it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

_PAUSE_US = 1000  # between two repetitions
_IDS = ("correlation", "External id", "external id", "wait_on_cuda_event_record_corr_id", "Sequence number", "Ev Idx")
_STEP = re.compile(r"ProfilerStep#(\d+)")

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Period:
    """What one repetition adds to times, ids and step numbers."""

    us: float
    ids: int
    steps: int


def repeat(source: Path, target: Path, num_bytes: float) -> int:
    """Write ``source``, a trace as JSON or gzip, as often as ``num_bytes`` of text need; return the size written."""
    keys, events = _load(source)
    period = _period(events)
    with target.open("w") as file:
        file.write(json.dumps(keys, indent=1)[:-2] + ',\n "traceEvents": [\n')
        per_round = _write(file, events, period, 0)
        for number in range(1, max(1, round(num_bytes / per_round))):
            file.write(",\n")
            _write(file, events, period, number)
        file.write("\n]}\n")
    return target.stat().st_size


def _load(source: Path) -> tuple[Mapping[str, Any], list[Event]]:
    data = source.read_bytes()
    trace = json.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    return {name: value for name, value in trace.items() if name != "traceEvents"}, trace["traceEvents"]


def _period(events: list[Event]) -> _Period:
    timed = [event for event in events if event.get("ph") == "X" and event.get("cat") != "Trace"]
    begin = min(event["ts"] for event in timed)
    end = max(event["ts"] + event["dur"] for event in timed)
    ids = [value for event in events for value in _ids(event)]
    steps = {int(found.group(1)) for event in timed if (found := _STEP.fullmatch(event["name"]))}
    return _Period(end - begin + _PAUSE_US, max(ids, default=0) + 1, max(steps) - min(steps) + 1 if steps else 0)


def _ids(event: Event) -> Iterator[int]:
    yield from (value for name, value in event.get("args", {}).items() if name in _IDS and value > 0)
    if isinstance(event.get("id"), int):
        yield event["id"]


def _write(file: TextIO, events: list[Event], period: _Period, number: int) -> int:
    before = file.tell()
    texts = (_text(_moved(event, period, number)) for event in events if not number or _recurs(event))
    file.write(next(texts))
    for text in texts:
        file.write(",\n" + text)
    return file.tell() - before


def _recurs(event: Event) -> bool:
    return event.get("ph") != "M" and event.get("cat") != "Trace"


def _moved(event: Event, period: _Period, number: int) -> Event:
    if not number:
        return event
    moved = {**event, "ts": round(event["ts"] + number * period.us, 3)} if "ts" in event else dict(event)
    if isinstance(event.get("id"), int):
        moved["id"] = event["id"] + number * period.ids
    if "args" in event:
        moved["args"] = {
            name: value + number * period.ids if name in _IDS and value > 0 else value
            for name, value in event["args"].items()
        }
    if found := _STEP.fullmatch(event.get("name", "")):
        moved["name"] = f"ProfilerStep#{int(found.group(1)) + number * period.steps}"
    return moved


def _text(event: Event) -> str:
    outside = json.dumps({name: value for name, value in event.items() if name != "args"})[1:-1]
    if "args" not in event:
        return f"  {{\n    {outside}\n  }}"
    inside = json.dumps(event["args"])[1:-1]
    return f'  {{\n    {outside},\n    "args": {{\n      {inside}\n    }}\n  }}'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("trace", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("megabytes", type=float)
    options = parser.parse_args()
    size = repeat(options.trace, options.out, options.megabytes * 1e6)
    print(f"{options.out}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
