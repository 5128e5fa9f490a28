"""Traces as literals: a test writes the events that it is about and reads them back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diagnose.model.events import Trace
from diagnose.trace_reader import read_trace
from tests.trace_reader.guarantees import check_trace

CORPUS = Path(__file__).parents[2].parent / "shared" / "traces"

Event = dict[str, Any]
ReadEvents = Callable[..., Trace]


def op(name: str, ts: float, dur: float, **args: Any) -> Event:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def launch(ts: float, dur: float, correlation: int, name: str = "cudaLaunchKernel") -> Event:
    args = {"cbid": 211, "correlation": correlation}
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def kernel(ts: float, dur: float, correlation: int, name: str = "gemm", **args: Any) -> Event:
    args = {"device": 0, "stream": 7, "correlation": correlation, **args}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args}


@pytest.fixture
def read_text(tmp_path: Path) -> Callable[..., Trace]:
    """Read text (or bytes) as a trace file of the given name."""

    def read(text: str | bytes, name: str = "trace.json") -> Trace:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        trace = read_trace(path)
        check_trace(trace)
        return trace

    return read


@pytest.fixture
def read_events(read_text: Callable[..., Trace]) -> ReadEvents:
    """Read events with other top-level keys around them."""

    def read(*events: Event, name: str = "trace.json", **keys: Any) -> Trace:
        return read_text(json.dumps({**keys, "traceEvents": events}), name)

    return read


@pytest.fixture(scope="session")
def corpus() -> list[Path]:
    """Return the recorded traces beside the repository."""
    files = sorted(CORPUS.glob("*.json.gz"))
    if not files:
        pytest.skip("the recorded traces (../shared/traces) are not here")
    return files
