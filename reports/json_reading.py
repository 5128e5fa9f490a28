"""A diagnosis back from its JSON, so that a report kept from yesterday can be compared with today's.

What the JSON does not hold is missing: the picture, examples' places beyond their line, sampled series.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from diagnose.errors import InputError
from diagnose.findings import Diagnosis, Finding, Partition, Prescription, Queue, Source, Where
from diagnose.reports.json import SCHEMA_VERSION
from diagnose.trace import Note

__all__ = ["from_dict", "from_json"]

Fields: TypeAlias = Mapping[str, Any]
VERDICTS = frozenset({"cpu-bound", "kernel-bound", "gaps", "no-gpu"})


def from_json(text: str | bytes, *, source: str) -> Diagnosis:
    """Read what ``Diagnosis.to_json`` wrote; ``source`` names it in errors.

    Raises:
        InputError: it is not JSON, not a diagnosis, or of a later schema.
    """
    try:
        data = json.loads(text)
    except (ValueError, UnicodeDecodeError):
        raise InputError(f"{source} is not JSON; name a report that diagnose wrote with --json.") from None
    return from_dict(data, source=source)


def from_dict(data: object, *, source: str) -> Diagnosis:
    """Read what ``reports.json.to_dict`` gave.

    Raises:
        InputError: it is not a diagnosis, or of a later schema.
    """
    if not isinstance(data, dict) or "verdict" not in data or "schema_version" not in data:
        raise InputError(f"{source} is not a diagnosis; name a report that diagnose wrote with --json.")
    version = data["schema_version"]
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise InputError(f"{source} was written by a newer diagnose (schema {version}); please upgrade.")
    try:
        return _diagnosis(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{source} is a damaged diagnosis ({type(error).__name__}: {error}); write it again with --json."
        ) from None


def _diagnosis(d: Fields) -> Diagnosis:
    if d["verdict"] not in VERDICTS:
        raise ValueError(f"unknown verdict {d['verdict']!r}")
    return Diagnosis(
        verdict=d["verdict"],
        headline=str(d["headline"]),
        dominant=d["dominant"],
        step_ns=_ns(d["step_ms"]),
        step_times_ns=tuple(int(_ns(ms)) for ms in d["step_times_ms"]),
        queue=_queue(d["queue"]),
        partition=None if d["partition"] is None else Partition(**{k: float(v) for k, v in d["partition"].items()}),
        idle_by_cause=_shares(d["idle_by_cause"]),
        findings=tuple(_finding(f) for f in d["findings"]),
        prescriptions=tuple(_prescription(p) for p in d["prescriptions"]),
        trust=tuple(Note(str(note["text"]), note.get("rule")) for note in d["trust"]),
        source=_source(d["source"]),
        replay_error=(d.get("replay") or {}).get("error_share"),
        host_by_cause=_shares(d.get("host_by_cause") or {}),
        profiler_overhead=d.get("profiler_overhead"),
        recording_ns=_ns(d.get("recording_ms") or 0.0),
    )


def _source(s: Fields) -> Source:
    return Source(
        path=str(s["path"]),
        command=str(s["command"]),
        torch=str(s["torch"]),
        devices=tuple(map(str, s["devices"])),
        world_size=int(s["world_size"]),
        found_steps_by=str(s["found_steps_by"]),
        unprofiled_step_ns=tuple(int(_ns(ms)) for ms in s["unprofiled_step_ms"]),
        settled_after=s["settled_after"],
        samples=dict(s["samples"]),
    )


def _queue(q: Fields | None) -> Queue | None:
    if q is None:
        return None
    rest = {name: float(value) for name, value in q.items() if name != "delay_p50_ms"}
    return Queue(**rest, delay_p50_ns=int(_ns(q["delay_p50_ms"])))


def _finding(f: Fields) -> Finding:
    return Finding(
        rule=str(f["rule"]),
        title=str(f["title"]),
        lost_ns=_ns(f["lost_ms"]),
        count=int(f["count"]),
        total_ns=int(_ns(f["total_ms"])),
        median_ns=int(_ns(f["median_ms"])),
        evidence=tuple(map(str, f["evidence"])),
        where=tuple(_where(w) for w in f["where"]),
        confidence=f["confidence"],
        facts=dict(f["facts"]),
        path_share=f.get("path_share"),
    )


def _where(w: Fields) -> Where:
    return Where(w["file"], w["line"], w["function"], w["op"], tuple(map(str, w["stack"])), w["code"])


def _prescription(p: Fields) -> Prescription:
    texts = {name: str(p[name]) for name in ("title", "before", "after", "safety", "needs", "remedy")}
    predicted = p["predicted_step_ms"]
    return Prescription(
        rule=str(p["rule"]),
        id=str(p["id"]),
        saves_ns=_pair(p["saves_ms"]),
        predicted_step_ns=None if predicted is None else _ns(predicted),
        basis=p.get("basis", "bound"),
        assumes=str(p.get("assumes", "")),
        **texts,  # type: ignore[arg-type]  # all of them are texts
    )


def _pair(values: Sequence[float | None]) -> tuple[float, float]:
    least, most = values
    return _ns(least), _ns(most)


def _shares(shares: Mapping[str, float | None]) -> dict[str, float]:
    return {str(name): float(share or 0.0) for name, share in shares.items()}


def _ns(ms: float | None) -> float:
    return float("nan") if ms is None else float(ms) * 1e6
