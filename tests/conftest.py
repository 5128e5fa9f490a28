"""Recordings as literals: a test says in calls and µs what ran where, and asks the product about it.

r = recording()
r.step(1, 0, 1000)
r.kernel("gemm", 0, 300, launched=(-20, -15))
r.kernel("gemm", 700, 1000, launched=(685, 690))
assert r.booked() == {"python-stall": 400_000}      # ns
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest

if shutil.which("nvidia-smi") is None:  # Triton decides when it is first imported, by whomever, whether it interprets
    os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.update(DIAGNOSE_DEBUG="1", DIAGNOSE_NO_CACHE="1")  # a fault of a rule fails its test; see `noted`

from diagnose.analyzers import META
from diagnose.changes.common.prescribe import prescribe
from diagnose.errors import DEBUG
from diagnose.model.arrays import read_only
from diagnose.model.capture import Capture, CaptureInfo, RunSteps, Samples
from diagnose.model.diagnosis import Diagnosis, Finding, Prescription
from diagnose.model.events import Device, Events, Kind, Thread, Trace
from diagnose.pipeline.find import build_tables
from diagnose.pipeline.rank import analyze_rank
from diagnose.tables import Tables
from diagnose.tables.program import program_of

COLUMNS = (
    "thread", "device", "stream", "correlation", "size", "shapes", "types", "values", "detail", "sequence", "grid",
    "awaits",
)  # fmt: skip
EPOCH_NS = 1_700_000_000_000_000_000
COPY_CALL, LAUNCH_CALL = "cudaMemcpyAsync", "cudaLaunchKernel"

import_module("diagnose.api")  # binds the reports to diagnoses

# A shell that runs the tests in the background ignores the interrupt, and every script they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass
class Row:
    """One event, times in µs."""

    kind: Kind
    name: str
    start: float
    end: float
    values: dict[str, Any] = field(default_factory=dict)
    cause: Row | None = None


class Recording:
    """What ran when: every method adds events and times are µs; the rest asks what the product makes of them."""

    def __init__(self, *, devices: Sequence[Device] = (Device(0, "NVIDIA A100", 80 << 30, 108, (8, 0)),)) -> None:
        self.devices = tuple(devices)
        self.rows: list[Row] = []
        self.names: list[str] = []
        self.thread_names: list[str] = ["main"]
        self.world_size = 1
        self.epoch_ns = EPOCH_NS
        self.sampled: list[tuple[float, tuple[str, int, str], int]] = []
        self.collections: list[tuple[float, float]] = []  # that the capture noted, in the window or not
        self.lines: dict[tuple[str, int], str] = {}  # source text by file and line
        self.info: CaptureInfo | None = None
        self.run: RunSteps | None = None

    # The host

    def step(self, number: int, start: float, end: float, thread: str = "main") -> Row:
        return self.annotation(f"ProfilerStep#{number}", start, end, thread)

    def annotation(self, name: str, start: float, end: float, thread: str = "main") -> Row:
        return self._host(Kind.ANNOTATION, name, start, end, thread)

    def op(self, name: str, start: float, end: float, thread: str = "main", *, sequence: int = -1, **texts: str) -> Row:
        """Add an operator; ``shapes``, ``types``, ``values`` and ``detail`` (its call stack) are texts."""
        values = {column: self._name(text) for column, text in texts.items()} | {"sequence": sequence}
        return self._host(Kind.OP, name, start, end, thread, **values)

    def frame(self, name: str, start: float, end: float, thread: str = "main") -> Row:
        return self._host(Kind.PYTHON, name, start, end, thread)

    def gc(self, start: float, end: float, thread: str = "main") -> Row:
        return self._host(Kind.GC, "Python GC", start, end, thread)

    def overhead(self, name: str, start: float, end: float, thread: str = "main") -> Row:
        return self._host(Kind.OVERHEAD, name, start, end, thread)

    def runtime(
        self, name: str, start: float, end: float, *, thread: str = "main", launches: Sequence[Row] | Row = ()
    ) -> Row:
        """Add a call; ``launches`` are the device tasks that it queued."""
        call = self._host(Kind.RUNTIME, name, start, end, thread, correlation=len(self.rows) + 1)
        for task in [launches] if isinstance(launches, Row) else launches:
            task.cause = call
            task.values["correlation"] = call.values["correlation"]
        return call

    def _host(self, kind: Kind, name: str, start: float, end: float, thread: str, **values: Any) -> Row:
        if thread not in self.thread_names:
            self.thread_names.append(thread)
        return self._add(kind, name, start, end, thread=self.thread_names.index(thread), **values)

    # The device

    def kernel(
        self,
        name: str,
        start: float,
        end: float,
        *,
        stream: int = 7,
        device: int = 0,
        launched: tuple[float, float] | None = None,
        thread: str = "main",
        call: str = LAUNCH_CALL,
        grid: int = -1,
    ) -> Row:
        """Add a kernel, and the call that launched it where ``launched`` gives the call's times."""
        task = self._add(Kind.KERNEL, name, start, end, stream=stream, device=device, grid=grid)
        if launched is not None:
            self.runtime(call, *launched, thread=thread, launches=task)
        return task

    def copy(
        self,
        name: str,
        start: float,
        end: float,
        *,
        stream: int = 7,
        size: int = -1,
        launched: tuple[float, float] | None = None,
        call: str = COPY_CALL,
    ) -> Row:
        """Add a copy on the device, and the call that queued it where ``launched`` gives the call's times."""
        task = self._add(Kind.MEMCPY, name, start, end, stream=stream, device=0, size=size)
        if launched is not None:
            self.runtime(call, *launched, launches=task)
        return task

    def memory(self, time: float, size: int, address: int, total: int, *, reserved: int = -1, device: int = 0) -> Row:
        """Add a block taken (or given back, where ``size`` is negative); ``total`` bytes are allocated after it."""
        values = {"size": size, "correlation": address, "sequence": total, "awaits": reserved, "device": device}
        return self._host(Kind.MEMORY, "[memory]", time, time, "main", **values)

    def _add(self, kind: Kind, name: str, start: float, end: float, **values: Any) -> Row:
        row = Row(kind, name, start, end, values)
        self.rows.append(row)
        return row

    # Beside the trace

    def sample(self, time: float, place: tuple[str, int, str] = ("train.py", 12, "main"), *, running: int = 1) -> None:
        """Add what the sampler saw of the training thread at a time."""
        self.sampled.append((time, place, running))

    def samples_every(self, period: float, start: float, end: float, place: tuple[str, int, str], running: int) -> None:
        """Sample at start, start + period, … before end."""
        for time in np.arange(start, end, period).tolist():
            self.sample(time, place, running=running)

    def with_info(self, **fields: Any) -> None:
        """State what capture.json holds."""
        self.info = msgspec.convert(fields, CaptureInfo)

    # What the product makes of it

    @property
    def trace(self) -> Trace:
        order = sorted(range(len(self.rows)), key=lambda i: (self.rows[i].start, -self.rows[i].end, i))
        rows = [self.rows[i] for i in order]
        place = {id(row): i for i, row in enumerate(rows)}
        columns: dict[str, Any] = {
            column: np.array([row.values.get(column, -1) for row in rows], np.int64) for column in COLUMNS
        }
        columns |= {
            "start": np.array([round(row.start * 1000) for row in rows], np.int64),
            "end": np.array([round(row.end * 1000) for row in rows], np.int64),
            "kind": np.array([row.kind for row in rows], np.uint8),
            "name": np.array([self._name(row.name) for row in rows], np.int32),
            "cause": np.array([place[id(row.cause)] if row.cause else -1 for row in rows], np.int32),
        }
        return Trace(
            events=Events(**read_only(columns)),
            names=tuple(self.names),
            threads=tuple(Thread("1", str(100 + i), name) for i, name in enumerate(self.thread_names)),
            devices=self.devices,
            world_size=self.world_size,
            epoch_ns=self.epoch_ns,
        )

    @property
    def samples(self) -> Samples | None:
        if not self.sampled and not self.collections:
            return None
        places = list(dict.fromkeys(place for _, place, _ in self.sampled))
        return Samples(
            time_ns=np.array([self.epoch_ns + round(time * 1000) for time, _, _ in self.sampled], np.int64),
            place=np.array([places.index(place) for _, place, _ in self.sampled], np.int32),
            running=np.array([running for _, _, running in self.sampled], np.int8),
            places=tuple(places),
            gc_runs=tuple(tuple(self.epoch_ns + round(each * 1000) for each in run) for run in self.collections),
        )

    def capture(self, attribution: Recording | None = None) -> Capture:
        beside = (self.info, self.samples, self.lines, self.run)
        return Capture(self.trace, attribution.trace if attribution else None, *beside)

    def tables(self) -> Tables:
        return build_tables(capture := self.capture(), capture.trace)

    def booked(self) -> dict[str, int]:
        """Return idle ns by rule."""
        return dict(self.tables().causes.totals())

    def find(self, rule: str) -> Finding | None:
        """Return what a rule finds, however small."""
        t = self.tables()
        given = [np.ones(len(t.tasks.row), bool)] if META[rule].kind == "kernel" and t.device_id >= 0 else []
        (found,) = analyzer(rule).find(t, *given) or [None]
        return found

    def prescribe(self, rule: str) -> list[Prescription]:
        """Return what a rule prescribes for what it finds, which must be fit to be shown."""
        finding, t = self.find(rule), self.tables()
        assert finding is not None, f"{rule} found nothing"
        found = prescribe(finding, t.steps.step_ns, program_of(t))
        for prescription in found:
            assert prescription.rule == rule
            assert_presentable(prescription)
        return found

    def diagnosis(self, attribution: Recording | None = None) -> Diagnosis:
        answer = analyze_rank(self.capture(attribution))
        answer.to_json()  # checked against the schema, as every JSON that a test makes
        return answer

    def _name(self, text: str) -> int:
        if text not in self.names:
            self.names.append(text)
        return self.names.index(text)


VERB = re.compile(
    "(Accumulate|Add|Align|Allow|Append|Apply|Ask|Autotune|Avoid|Balance|Call|Capture|Check|Clip|Co(llect|mpile|mpute|nvert|nvolve|py|unt)|Cut|Detach|Do|Draw"
    "|Evaluate|Exchange|Factorise|Filter|Find|Flush|Freeze|Fuse|Give|Group|Keep|Leave|List|Lo(ad|g|ok)|M(ake|ark|easure|ove|ultiply)|Pa(ck|d|rse|ss)|Pin|Re(ad|cord|duce|move|place|play|store|turn)|Round"
    "|Run|S(ave|catter|elect|end|et|hard|hare|olve|ort|plit|um)|Prepare|St(ack|art|ep|op)"
    "|Switch|Take|Try|Use|Vectorise|Wait|Write) "
)


SENTENCES = (
    "cheaper-sample",
    "compute-first",
    "cheaper-sampler",
    "python-off-the-loop",
)  # which have no code where none is known


def assert_presentable(p: Prescription) -> None:
    """Check what holds for every prescription; a new verb is added to VERB."""
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", p.id)
    assert VERB.match(p.title), "an imperative"
    assert p.after or not p.before or p.id in SENTENCES, "code, or a sentence alone"
    assert not p.title.endswith(".")
    assert p.safety.startswith(("same numbers", "may change the numbers: "))
    assert 0 <= p.saves_ns[0] <= p.saves_ns[1]
    assert not p.remedy or p.remedy.startswith("diagnose.kernels.")


def analyzer(rule: str) -> ModuleType:
    """Return the module of a rule."""
    return import_module(f"diagnose.analyzers.{rule.replace('-', '_')}")


def late_gap(**options: Any) -> Recording:
    """Return a step of 1000 µs, idle from 300 to 700: the launch at 690 to 695 came late.

    What the training thread did from 300 to 690 is the test's to say; the last 10 µs are the launch's own.
    """
    r = Recording(**options)
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 200)
    r.kernel("gemm", 0, 300, launched=(-20, -15))
    r.op("aten::relu", 690, 1000)
    r.kernel("relu", 700, 1000, launched=(690, 695))
    return r


def queued_gap(start: float = 300, end: float = 700, *, stream_before: int = 7, stream_after: int = 7) -> Recording:
    """Return a step of 1000 µs, idle in between although the next task was launched long before."""
    r = Recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, start, launched=(-20, -15), stream=stream_before)
    r.kernel("relu", end, 1000, launched=(-10, -5), stream=stream_after)
    return r


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a fault become a note or a sentence, as it does for a user."""
    monkeypatch.delenv(DEBUG)


@pytest.fixture
def recording() -> type[Recording]:
    return Recording


@pytest.fixture
def late() -> Recording:
    return late_gap()


@pytest.fixture
def queued() -> Any:
    return queued_gap


@pytest.fixture(scope="session")
def presentable() -> Callable[[Prescription], None]:
    return assert_presentable
