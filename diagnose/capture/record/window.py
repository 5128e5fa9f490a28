"""One interval of profiled steps: torch.profiler between two step boundaries, with a mark around every step."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import resource
import shutil
from pathlib import Path
from typing import Any, Literal, TypeAlias

from diagnose.capture.process.process import silent_stderr
from diagnose.capture.record.gzip_io import open_packed
from diagnose.errors import OutputError
from diagnose.model.files import SPACE, reason
from diagnose.text.masking import mask_values
from diagnose.text.patterns import lazy_pattern

__all__ = ["Window", "WindowKind", "recorded_kinds"]

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
_HOST = lazy_pattern(rb'("host_name": *")[^"]*(")')
_FOLDER = lazy_pattern(rb'("traceName": *")(?:[^"]*/)?([^"]*")')
_MARK = "DiagnoseStep#"  # until the trace is stored: a profiler of the script marks its steps as ProfilerStep#n too
_SCRIPTS_MARK = b'"ScriptProfilerStep#'
LAST_KEY = b'"traceName"'  # what Kineto writes after the last event, with the path of the file as its value
BLOCK_BYTES = 1 << 20
TAIL_BYTES = 16_384  # of the file: far more than the longest path
TORCH_TEMPORARY = ".tmp"  # what torch 2.13 appends to the name while it writes; it stays if that fails
# with_modules is never set: it makes steps six times slower (measured), and with_stack names modules already.


class Window:
    """A profiler with step marks; ``num_steps`` counts the whole steps that it holds."""

    def __init__(self, kind: WindowKind, *, stacks: bool = True) -> None:
        from torch.profiler.profiler import _KinetoProfile

        flags = {**FLAGS[kind], "with_stack": FLAGS[kind]["with_stack"] and stacks}
        config, self.flags = _settings(kind, flags)
        self.kind = kind
        self.num_steps = 0
        self._unfinished = ""
        self._mark: Any = None
        self._wait: Any = None
        self._running = False
        self._profiler = _KinetoProfile(
            activities=_activities(),
            experimental_config=config,
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

    def join_wait(self, iterator: str) -> None:
        """Mark a wait for a batch as torch does, where the window begins within one: torch's own mark lies before."""
        if iterator:
            from torch.profiler import record_function

            self._wait = record_function(f"enumerate(DataLoader)#{iterator}.__next__")
            self._wait.__enter__()

    def end_wait(self) -> None:
        """Close the mark of the wait that the window began in."""
        if self._wait is not None:
            self._wait.__exit__(None, None, None)
            self._wait = None

    def stop(self) -> None:
        """Stop recording; a step that is still open does not count."""
        self.end_wait()
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
                raise OutputError(_incomplete(raw))
            size = raw.stat().st_size / 1e6
            _compress(raw, packed, self._unfinished)
            packed.replace(path)
        finally:
            for left in (raw, packed, _temporary(raw)):
                left.unlink(missing_ok=True)
        return size


def _settings(kind: WindowKind, flags: dict[str, bool]) -> tuple[Any, dict[str, object]]:
    """Return the experimental config with every wanted knob that this torch has, and all settings by name."""
    from torch._C import _profiler

    make: Any = _profiler._ExperimentalConfig
    text = make.__init__.__doc__ or ""
    known = set(re.findall(r"(\w+): bool", text))
    knobs = {name: value for name, value in KNOBS[kind].items() if name in known}
    return make(**knobs), {**flags, **knobs, "with_modules": False}


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
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            tail = file.read().rstrip()
    except FileNotFoundError:
        os.close(os.open(raw.parent, os.O_RDONLY))  # raises where no file can be opened any more: that is the reason
        return False
    return tail.endswith(b"}") and LAST_KEY in tail


def _incomplete(raw: Path) -> str:
    """Return why torch did not write all of ``raw``, as far as that can still be seen."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and max(map(_size, (raw, _temporary(raw)))) >= limit:
        return f"torch.profiler did not write all of it: {reason(OSError(errno.EFBIG, os.strerror(errno.EFBIG)))}"
    free = shutil.disk_usage(raw.parent).free / 1e6
    return f"torch.profiler did not write all of it, with {free:.0f} MB free there. {SPACE}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _temporary(raw: Path) -> Path:
    return raw.with_name(raw.name + TORCH_TEMPORARY)


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
        while lines := text.read(BLOCK_BYTES) + text.readline():  # an event has many lines: one by one takes seconds
            if b"Step#" in lines:
                lines = _with_marks(lines, unfinished)
            if b'"traceName"' in lines:
                lines = b"".join(map(_without_path, lines.splitlines(keepends=True)))
            packed.write(lines)


def _without_path(line: bytes) -> bytes:
    return _without_host(line) if b'"traceName"' in line else line


def _with_marks(lines: bytes, unfinished: str) -> bytes:
    """Return lines with the names of step marks as a reader expects them."""
    lines = lines.replace(b'"ProfilerStep#', _SCRIPTS_MARK)
    if unfinished:
        lines = lines.replace(
            f'"{unfinished}"'.encode(), f'"UnfinishedProfilerStep#{unfinished[len(_MARK) :]}"'.encode()
        )
    return lines.replace(f'"{_MARK}'.encode(), b'"ProfilerStep#')


def _without_host(line: bytes) -> bytes:
    """Return a line of the trace's head or end without the host, the path that it was written to, and credentials."""
    line = _FOLDER.sub(rb"\1\2", _HOST.sub(rb"\1\2", line))
    try:
        known = json.loads(b"{%b}" % line.strip().removesuffix(b","))
    except ValueError:  # not a key with its value
        return line
    masked = mask_values(known)
    return line if masked == known else json.dumps(masked)[1:-1].encode() + b",\n"
