"""A diagnosis in other tools' forms: Perfetto's and speedscope's JSON, collapsed stacks, tables.

All are made of the picture of steps that the charts show, whose times count from its begin.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from diagnose.model.charts import Gap, Picture, Span
from diagnose.model.diagnosis import Diagnosis, Where
from diagnose.text.plain_text import one_line

DEVICE, HOST_PART, CAUSES = 1, 2, 3  # processes of the trace, in this order on the screen
DEVICE_LANE = "GPU "  # how the lanes of streams begin
Value: TypeAlias = str | float | int | None
Table: TypeAlias = Mapping[str, Sequence[Value]]  # of each column its values


def perfetto(d: Diagnosis, picture: Picture) -> str:
    """Return a trace in the JSON form that Perfetto and chrome://tracing open.

    Beside streams and threads it has a track of idle time by cause, a counter of the queue's depth, and the findings.
    """
    events: list[dict[str, object]] = []
    lanes = sorted({lane for span in picture.spans for lane in [_track(span.lane)]})
    place = {
        lane: (DEVICE if lane.startswith(DEVICE_LANE) else HOST_PART, number + 1) for number, lane in enumerate(lanes)
    }
    for pid, name in ((DEVICE, "device"), (HOST_PART, "host"), (CAUSES, "diagnose")):
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}})
    for lane, (pid, tid) in place.items():
        title = picture.titles.get(lane, lane)
        events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": title}})
    events.append({"ph": "M", "name": "thread_name", "pid": CAUSES, "tid": 1, "args": {"name": "idle, by cause"}})
    events.append({"ph": "M", "name": "thread_name", "pid": CAUSES, "tid": 2, "args": {"name": "findings"}})
    for span in picture.spans:
        pid, tid = place[_track(span.lane)]
        events.append(_slice((pid, tid), span, span.name, span.category))
    for gap in picture.gaps:
        label = d.legends[gap.cause].label if gap.cause in d.legends else gap.cause
        about = {"rule": gap.cause, "host": gap.detail, "place": gap.place}
        events.append({**_slice((CAUSES, 1), gap, label, "idle"), "args": about})
    for time, depth in picture.depth:
        events.append({"ph": "C", "name": "queue depth", "pid": CAUSES, "ts": time / 1e3, "args": {"launches": depth}})
    for number, finding in enumerate(d.findings):
        cost = round(finding.lost_ns / 1e6, 4)
        shown: dict[str, object] = {"rule": finding.rule, "lost_ms": cost, "evidence": list(finding.evidence)}
        mark = {"ph": "i", "s": "t", "pid": CAUSES, "tid": 2, "ts": number}
        events.append({**mark, "name": finding.title, "cat": "finding", "args": shown})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"headline": d.headline}})


def scalars(d: Diagnosis) -> dict[str, float]:
    """Return a diagnosis in numbers, as trackers of experiments take them; what is not known is missing.

    Times are ms per step, shares of the step 0 to 1. Names have no characters that MLflow refuses.
    """
    found = {"step_ms": d.step_ns / 1e6, "steps": float(d.steps)}
    if d.queue is not None:
        found |= {"queue/depth_p50": d.queue.depth_p50, "queue/busy_share": d.queue.busy_share}
        found["queue/launches_per_step"] = d.queue.launches_per_step
    if d.partition is not None:
        for name in ("compute", "exposed_communication", "exposed_copy", "idle"):
            found[f"share/{name}"] = getattr(d.partition, name)
    found |= {f"idle/{rule}": share for rule, share in d.idle_by_cause.items()}
    for finding in d.findings:
        found[f"lost_ms/{finding.rule}"] = found.get(f"lost_ms/{finding.rule}", 0.0) + finding.lost_ns / 1e6
    if d.flops is not None:
        found |= {"flops/mfu": d.flops.share, "flops/tflop_per_s": d.flops.tflops}
    found |= {f"phase/{name}": share for name, share in d.phases.items()}
    predicted = [each.predicted_step_ns for each in d.prescriptions if each.predicted_step_ns is not None]
    if predicted:
        found["predicted_step_ms"] = min(predicted) / 1e6
    return found


def speedscope(d: Diagnosis, picture: Picture) -> str:
    """Return the host's time as a file of speedscope: a profile for each thread, of operators and runtime calls."""
    frames: dict[str, int] = {}
    profiles = []
    for lane, spans in _host_lanes(picture).items():
        events = [
            {"type": kind, "frame": frames.setdefault(name, len(frames)), "at": at / 1e3}
            for kind, name, at in _openings(spans)
        ]
        end = max(span.end_ns for span in spans) / 1e3
        title = picture.titles.get(lane, lane)
        about = {"type": "evented", "name": title, "unit": "microseconds", "startValue": 0, "endValue": end}
        profiles.append({**about, "events": events})
    data = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": one_line(d.source.path),
        "exporter": "diagnose",
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": name} for name in frames]},
        "profiles": profiles,
    }
    return json.dumps(data)


def collapsed(picture: Picture) -> str:
    """Return the host's self times as collapsed stacks, a line each: names joined by ";", and microseconds."""
    totals: dict[str, int] = {}
    for lane, spans in _host_lanes(picture).items():
        stack = [picture.titles.get(lane, lane)]
        latest = 0
        for kind, name, at in _openings(spans):
            if len(stack) > 1:
                key = ";".join(part.replace(";", ",") for part in stack)
                totals[key] = totals.get(key, 0) + at - latest
            latest = at
            if kind == "O":
                stack.append(name)
            else:
                stack.pop()
    return "".join(f"{key} {round(ns / 1e3)}\n" for key, ns in totals.items() if ns >= 500)


def findings_table(d: Diagnosis) -> Table:
    """Return a row for each finding."""
    first = [(f, next(iter(f.where), Where())) for f in d.findings]
    return {
        "rule": [f.rule for f in d.findings],
        "title": [f.title for f in d.findings],
        "lost_ms": [f.lost_ns / 1e6 for f in d.findings],
        "lost_share": [f.share_of(d.step_ns or float("nan")) for f in d.findings],
        "confidence": [f.confidence for f in d.findings],
        "count": [f.count for f in d.findings],
        "file": [where.file for _, where in first],
        "line": [where.line for _, where in first],
        "function": [where.function for _, where in first],
        "evidence": [" ".join(f.evidence) for f in d.findings],
    }


def kernels_table(d: Diagnosis, picture: Picture) -> Table:
    """Return a row for each kernel; none without a device."""
    kernels = picture.kernels or d.kernels
    return {
        "name": [k.name for k in kernels],
        "family": [k.family for k in kernels],
        "calls_per_step": [k.calls_per_step for k in kernels],
        "ms_per_step": [k.time_ns / 1e6 for k in kernels],
        "share": [k.share for k in kernels],
        "dtype": [k.dtype for k in kernels],
        "peak_share": [k.peak_share for k in kernels],
        "file": [k.where.file for k in kernels],
        "line": [k.where.line for k in kernels],
    }


def csv_table(table: Table) -> str:
    """Return a table as CSV; a text that a spreadsheet would take for a formula begins with an apostrophe."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(map(_cell, row) for row in zip(*table.values(), strict=True))
    return text.getvalue()


def _cell(value: Value) -> Value:
    return f"'{value}" if isinstance(value, str) and value[:1] in {"=", "+", "-", "@"} else value


def _track(lane: str) -> str:
    """Return the thread or stream of a lane; in the charts each level of a thread's nesting is a lane."""
    return lane.partition(" +")[0]


def _slice(track: tuple[int, int], of: Span | Gap, name: str, category: str) -> dict[str, object]:
    times = {"ts": of.start_ns / 1e3, "dur": (of.end_ns - of.start_ns) / 1e3}
    return {"ph": "X", "name": name, "cat": category, "pid": track[0], "tid": track[1], **times}


def _host_lanes(picture: Picture) -> dict[str, list[Span]]:
    lanes: dict[str, list[Span]] = {}
    for span in picture.spans:
        if not span.lane.startswith(DEVICE_LANE):
            lanes.setdefault(_track(span.lane), []).append(span)
    return {lane: sorted(spans, key=lambda each: (each.start_ns, -each.end_ns)) for lane, spans in lanes.items()}


def _openings(spans: Sequence[Span]) -> Iterator[tuple[str, str, int]]:
    """Yield ("O" or "C", name, ns) in order: a span ends, at the latest, with the one that it lies in."""
    open_spans: list[tuple[str, int]] = []
    for span in spans:
        while open_spans and open_spans[-1][1] <= span.start_ns:
            name, end = open_spans.pop()
            yield "C", name, end
        end = min(span.end_ns, open_spans[-1][1]) if open_spans else span.end_ns
        yield "O", span.name, span.start_ns
        open_spans.append((span.name, end))
    while open_spans:
        name, end = open_spans.pop()
        yield "C", name, end
