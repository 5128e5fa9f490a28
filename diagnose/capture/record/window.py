"""One interval of profiled steps: torch.profiler between two step boundaries, with a mark around every step."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import resource
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Any, Literal, NamedTuple, TypeAlias, cast

from diagnose.capture.process.process import heap_mb, silent_stderr
from diagnose.errors import OutputError
from diagnose.model.files import SPACE, open_private, reason
from diagnose.text.masking import mask_values

# Writes .gz files fast: isal packs traces several times faster than zlib. Level 3 is slower and saves a few percent.


def packed(data: bytes) -> bytes:
    """Return the data compressed."""
    from isal import igzip

    compress: Any = igzip.compress
    return bytes(compress(data, 2))


@contextmanager
def open_packed(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file to write bytes to that are compressed into ``path``; a block that fails leaves no file.

    Raises:
        OSError: the file exists already or cannot be written, to its last byte.
    """
    from isal import igzip

    make: Any = igzip.IGzipFile
    try:
        with open_private(path) as file, make(filename="", mode="wb", compresslevel=2, fileobj=file) as stream:
            yield cast("IO[bytes]", stream)
    except FileExistsError:
        raise
    except BaseException:
        path.unlink(missing_ok=True)
        raise


# Counts the Python functions that a step calls, before the profiler is to record each of them.
#
# A dataset or a loop in pure Python calls a million functions a step; recorded they are 250 MB, and minutes of work.

# Half of what the attribution window may hold, 33 MB and two seconds of writing and reading: one step is recorded
# before those that count.
MAX_STEP_CALLS = 50_000


class FrameCount:
    """Counts on the thread that starts it, up to what a step may call: 50 ms of its time at most."""

    def __init__(self) -> None:
        self._events = 0
        self._running = False
        self.is_known = False

    def start(self) -> None:
        """Begin to count; does nothing where the script has a profile function of its own."""
        if sys.getprofile() is None:
            self._running = True
            sys.setprofile(self._on_event)

    def stop(self) -> None:
        """Stop counting."""
        if self._running:
            self._running, self.is_known = False, True
            if sys.getprofile() == self._on_event:
                sys.setprofile(None)

    @property
    def functions(self) -> int:
        """Return how many functions were called; above MAX_STEP_CALLS there may have been any number more."""
        return self._events // 2  # a call and a return

    def _on_event(self, _frame: FrameType, _event: str, _arg: object) -> None:
        self._events += 1
        if self._events > 2 * (MAX_STEP_CALLS + 1):
            sys.setprofile(None)


WindowKind: TypeAlias = Literal["light", "attribution"]
"""What files and JSON keys call the two windows; "light" is the timing window, without stacks and shapes."""

KNOBS: dict[WindowKind, dict[str, bool]] = {
    # trace_only skips building Python objects for events that nothing reads.
    "light": {"profile_all_threads": True, "trace_only": True},
    # profile_all_threads would lose the memory events (torch 2.13), and adjust_profiler_step would cut every step
    # mark down to the Python call that it begins in, which is the end of the step before.
    "attribution": {"enable_cuda_sync_events": True, "record_python_gc_info": True},
}
FLAGS: dict[WindowKind, dict[str, bool]] = {
    "light": {"record_shapes": False, "with_stack": False, "profile_memory": False},
    "attribution": {"record_shapes": True, "with_stack": True, "profile_memory": True},
}
_HOST = rb'("host_name": *")[^"]*(")'
_FOLDER = rb'("traceName": *")(?:[^"]*/)?([^"]*")'
_MARK = "DiagnoseStep#"  # until the trace is stored: a profiler of the script marks its steps as ProfilerStep#n too
LAST_KEY = b'"traceName"'  # what Kineto writes after the last event, with the path of the file as its value
TORCH_TEMPORARY = ".tmp"  # what torch 2.13 appends to the name while it writes; it stays if that fails
# with_modules is never set: it makes steps six times slower (measured), and with_stack names modules already.


class Window:
    """A profiler with step marks; ``num_steps`` counts the whole steps that it holds."""

    def __init__(self, kind: WindowKind, *, stacks: bool = True) -> None:
        from torch._C import _profiler
        from torch.profiler.profiler import _KinetoProfile

        flags = {**FLAGS[kind], "with_stack": FLAGS[kind]["with_stack"] and stacks}
        make: Any = _profiler._ExperimentalConfig
        known = set(re.findall(r"(\w+): bool", make.__init__.__doc__ or ""))
        knobs = {name: value for name, value in KNOBS[kind].items() if name in known}  # that this torch has
        self.flags: dict[str, object] = {**flags, **knobs, "with_modules": False}
        self.kind = kind
        self.num_steps = 0
        self._unfinished = ""
        self._mark: Any = None
        self._running = False
        self._profiler = _KinetoProfile(
            activities=_activities(),
            experimental_config=make(**knobs),
            with_modules=False,
            record_shapes=flags["record_shapes"],
            with_stack=flags["with_stack"],
            profile_memory=flags["profile_memory"],
        )

    def start(self) -> None:
        """Begin recording."""
        import torch

        block = torch.empty(1) if FLAGS[self.kind]["profile_memory"] else None
        self._profiler.prepare_trace()
        self._profiler.start_trace()
        with silent_stderr():  # torch warns once about a block that it did not see being allocated: let it be this one
            del block
        self._running = True

    def begin_step(self, number: int) -> None:
        """Open the mark of a step; does nothing once the window was stopped inside one."""
        if not self._running:
            return
        from torch.profiler import record_function

        self._unfinished = f"{_MARK}{number}"
        self._mark = record_function(self._unfinished)
        self._mark.__enter__()

    def end_step(self) -> None:
        """Close the mark of the step that is over."""
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
            self._unfinished = ""
            self.num_steps += 1

    def stop(self) -> None:
        """Stop recording; a step that is still open does not count."""
        if self._running:
            self._running = False
            self._mark = None
            self._profiler.stop_trace()

    def export(self, path: Path) -> float:
        """Write the trace to ``path`` (.gz) and return the size of its JSON text in MB.

        Raises:
            OSError: it cannot be written.
            OutputError: torch has not written all of it, which it does not report.
        """
        raw, packed = path.with_name(path.name + ".raw"), path.with_name(path.name + ".part")
        try:
            with contextlib.suppress(FileNotFoundError):  # what torch could not write it cannot rename either
                self._profiler.export_chrome_trace(str(raw))
            if not _is_complete(raw):
                raise OutputError(f"torch.profiler did not write all of it{_why_incomplete(raw)}")
            size = raw.stat().st_size / 1e6
            _compress(raw, packed, self._unfinished)
            packed.replace(path)
        finally:
            for left in (raw, packed, raw.with_name(raw.name + TORCH_TEMPORARY)):
                left.unlink(missing_ok=True)
        return size


DEVICE_KINDS = ("CUDA", "XPU", "HPU", "MTIA")  # of ProfilerActivity; MPS and devices out of tree have none


def _activities() -> list[Any]:
    """Return the CPU and the kinds of device that the script has begun to use."""
    import torch
    from torch import profiler

    supported: Any = profiler.supported_activities
    chosen: list[Any] = [profiler.ProfilerActivity.CPU]
    for name in DEVICE_KINDS:
        activity: Any = getattr(profiler.ProfilerActivity, name, None)
        module: Any = getattr(torch, name.lower(), None)
        begun: Any = getattr(module, "is_initialized", lambda: False)
        if activity in supported() and begun():
            chosen.append(activity)
    return chosen


def recorded_kinds() -> list[str]:
    """Return the kinds of device that the profiler records, as torch names devices; ROCm's are called cuda."""
    return [str(activity).rpartition(".")[2].lower() for activity in _activities()]


def _is_complete(raw: Path) -> bool:
    """Return whether torch wrote a trace to its end: on a full disk it stops anywhere, without an error."""
    try:
        with raw.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 16_384))  # far more than the longest path
            tail = file.read().rstrip()
    except FileNotFoundError:
        os.close(os.open(raw.parent, os.O_RDONLY))  # raises where no file can be opened any more: that is the reason
        return False
    return tail.endswith(b"}") and LAST_KEY in tail


def _why_incomplete(raw: Path) -> str:
    """Return the end of a sentence on why torch did not write all of ``raw``, as far as that can still be seen."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    written = [path.stat().st_size for path in (raw, raw.with_name(raw.name + TORCH_TEMPORARY)) if path.exists()]
    if limit != resource.RLIM_INFINITY and max(written, default=0) >= limit:
        return f": {reason(OSError(errno.EFBIG, os.strerror(errno.EFBIG)))}"
    return f", with {shutil.disk_usage(raw.parent).free / 1e6:.0f} MB free there. {SPACE}"


def _compress(source: Path, target: Path, unfinished: str) -> None:
    """Compress the trace, with the marks of its steps under the name that torch gives them.

    The mark of an unfinished step is renamed, because it ends nowhere in particular, and so are marks of the script's
    own. What stands around the events loses the name of the host, the folder and credentials.
    """
    with source.open("rb") as text, open_packed(target) as packed:
        for line in text:
            packed.write(_without_host(line))
            if b'"traceEvents"' in line:
                break
        while lines := text.read(1 << 20) + text.readline():  # an event has many lines: one by one takes seconds
            if b"Step#" in lines:
                lines = lines.replace(b'"ProfilerStep#', b'"ScriptProfilerStep#')
                if unfinished:
                    new = f'"UnfinishedProfilerStep#{unfinished[len(_MARK) :]}"'
                    lines = lines.replace(f'"{unfinished}"'.encode(), new.encode())
                lines = lines.replace(f'"{_MARK}'.encode(), b'"ProfilerStep#')
            if LAST_KEY in lines:
                each = lines.splitlines(keepends=True)
                lines = b"".join(_without_host(line) if LAST_KEY in line else line for line in each)
            packed.write(lines)


def _without_host(line: bytes) -> bytes:
    """Return a line of the trace's head or end without the host, the path that it was written to, and credentials."""
    line = re.sub(_FOLDER, rb"\1\2", re.sub(_HOST, rb"\1\2", line))
    try:
        known = json.loads(b"{%b}" % line.strip().removesuffix(b","))
    except ValueError:  # not a key with its value
        return line
    masked = mask_values(known)
    return line if masked == known else json.dumps(masked)[1:-1].encode() + b",\n"


# Estimates the size of a trace while it is being recorded.
#
# Nothing in torch counts a profiler's events, so upper bounds are combined, and the lowest one counts: the time times
# the highest rate at which events can come; the growth of the heap times the JSON text that a recorded MB becomes;
# and, where it is known what a step gives, twice that for each step. What the script itself takes is left out of the
# growth, as far as steps without a profiler have shown it: what it keeps from step to step, and within a step what it
# takes and gives back.

TRACE_POLL_S = 0.01  # how often a window's size is looked at
# MB of JSON a second. Measured on one core of 2 GHz: 300 for calls of C functions from Python, 50 for operators with
# shapes, 15 for operators alone; a faster core and several threads are allowed for.
MAX_MB_PER_S: dict[WindowKind, float] = {"light": 200.0, "attribution": 1000.0}
# Measured: 10.9 to 11.2 for Python frames, 1.3 to 2.1 for operators with shapes, 1.2 to 1.4 for operators alone.
JSON_PER_HEAP: dict[WindowKind, float] = {"light": 2.0, "attribution": 11.5}
SAFETY = 2.0  # against the mean rate of a window: events come in bursts


class ScriptHeap:
    """What steps without a profiler take of the heap."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None  # step boundaries: when, and how much
        self._latest = (0.0, 0.0)
        self._low = math.inf
        self.swing_mb = 0.0  # what the heap grows by within a step, at most

    def look(self) -> None:
        """Take notice of the heap, on any thread."""
        heap = heap_mb()
        if heap is not None:
            self._low = min(self._low, heap)
            self.swing_mb = max(self.swing_mb, heap - self._low)

    def boundary(self) -> None:
        """Take notice that a step without a profiler is over."""
        heap = heap_mb()
        if heap is not None:
            self._low, self._latest = heap, (time.monotonic(), heap)
            self._first = self._first or self._latest

    @property
    def kept_mb_per_s(self) -> float:
        """Return how fast the script's own memory grows from step to step."""
        began, first = self._first or self._latest
        ended, latest = self._latest
        return max(0.0, (latest - first) / (ended - began)) if ended > began else 0.0


class StepSize(NamedTuple):
    """What a step is expected to give and how long it takes without the profiler."""

    mb: float
    s: float

    @property
    def most_mb_per_s(self) -> float:
        """Return the highest rate to be reckoned with."""
        return SAFETY * self.mb / max(self.s, 1e-6)


UNKNOWN_STEP = StepSize(math.inf, math.inf)


class TraceSize:
    """The estimate for one window, which begins now.

    ``mb_per_s`` is the highest rate, ``step`` what a step gives, where these are known.
    """

    def __init__(
        self,
        kind: WindowKind,
        mb_per_s: float | None = None,
        script: ScriptHeap | None = None,
        step: StepSize = UNKNOWN_STEP,
    ) -> None:
        self._step = step
        self._num_steps = 0
        self._mb_per_s = mb_per_s or MAX_MB_PER_S[kind]
        self._json_per_heap = JSON_PER_HEAP[kind]
        script = script or ScriptHeap()
        self._kept_mb_per_s, self._swing_mb = script.kept_mb_per_s, script.swing_mb
        self._began = self._step_began = time.monotonic()
        self._lowest = heap_mb() or math.inf
        self.whole_steps_mb = 0.0  # an upper bound of what the steps give that are over

    @property
    def elapsed_s(self) -> float:
        """Return the time since the window began."""
        return time.monotonic() - self._began

    def safe_s(self, limit_mb: float) -> float:
        """Return for how long the trace cannot reach a size, whatever is recorded."""
        return limit_mb / self._mb_per_s - self.elapsed_s - TRACE_POLL_S

    def boundary(self) -> None:
        """Take notice that a step is over, so that what it took for itself has been given back."""
        self._num_steps += 1
        self._step_began = time.monotonic()
        self.whole_steps_mb = self._estimate(0.0, self._num_steps)

    def mb(self) -> float:
        """Return an upper bound of the size at the next look."""
        return max(self.whole_steps_mb, self._estimate(self._swing_mb, self._num_steps + 1))

    def _estimate(self, swing_mb: float, num_steps: int) -> float:
        bound = (self.elapsed_s + TRACE_POLL_S) * self._mb_per_s
        # Recording lengthens a step, on a busy machine up to four times: one that lasts longer does something else.
        if time.monotonic() - self._step_began <= 4.0 * self._step.s:
            bound = min(bound, SAFETY * num_steps * self._step.mb)
        heap = heap_mb()
        if heap is None:
            return bound
        self._lowest = min(self._lowest, heap)
        grown = heap - self._lowest - swing_mb - self.elapsed_s * self._kept_mb_per_s
        return min(bound, max(0.0, grown) * self._json_per_heap)
