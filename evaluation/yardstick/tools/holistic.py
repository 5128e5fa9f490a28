"""Holistic Trace Analysis: how the time divides; the largest part of it is taken as the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from yardstick.answer import Answer, NoAnswerError
from yardstick.case import Recording, Script
from yardstick.processes import ended, last_line
from yardstick.readers import ROOT
from yardstick.tools.families import COLLECTIVES, COPIES, HOST, KERNELS
from yardstick.tools.tool import Tool, timed_trace

__all__ = ["TOOL"]

QUESTIONS = ROOT / "evaluation" / "benchmarks" / "hta_questions.py"
IDLE = {
    "host_wait": ("the GPU is idle and waits for the host", HOST),
    "kernel_wait": ("the GPU is idle between kernels that were launched", ("kernel-latency",)),
    "other": ("the GPU is idle for another reason", ("stream-dependency", *COPIES)),
}


def _ask(python: Path, subject: Script | Recording, folder: Path) -> str:
    run = ended((str(python), str(QUESTIONS), str(timed_trace(subject, folder))), folder)
    if len(_tables(run.stdout)) < 2:  # a third question, which is not scored, fails on some traces
        raise NoAnswerError(last_line(run))
    return run.stdout


def _tables(printed: str) -> list[dict[str, dict[str, Any]]]:
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def _read(raw: str) -> Answer:
    temporal, idle = _tables(raw)[:2]
    shares = {key: temporal[f"{key}_pctg"]["0"] for key in ("idle_time", "compute_time", "non_compute_time")}
    largest = max(shares, key=lambda key: shares[key])
    if largest == "compute_time":
        return Answer(f"kernels compute for {shares[largest]:.0f}% of the time", KERNELS)
    if largest == "non_compute_time":
        return Answer(f"communication and copies take {shares[largest]:.0f}% of the time", (*COLLECTIVES, *COPIES))
    waits: dict[str, float] = {}
    for row, kind in idle["idle_category"].items():
        waits[kind] = waits.get(kind, 0.0) + idle["idle_time"][row]
    said, names = IDLE[max(waits, key=lambda kind: waits[kind])]
    return Answer(f"{said}, for {shares[largest]:.0f}% of the time", names)


TOOL = Tool(
    name="hta",
    form="temporal and idle-time breakdown of `TraceAnalysis`; the largest part",
    kinds=("recording",),
    answers=("cause",),
    ask=_ask,
    read=_read,
    requirements=("traceinsight==0.6.1",),
)
