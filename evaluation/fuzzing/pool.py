"""Several workers at once: each is killed when a case takes too long, and replaced when it has died."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzzing.checks import MAX_SECONDS
from fuzzing.worker import Result, scratch_folder

__all__ = ["Setting", "run_all"]

STARTING_S = 300.0  # importing everything on a busy machine
KILLED_AFTER_S = 6 * MAX_SECONDS  # wall clock: a worker that shares its core with others takes longer than its bar
MAX_FAILED_STARTS = 3
Asked = dict[str, Any]


class _Worker:
    """One process and the case that it is busy with."""

    def __init__(self, command: Sequence[str], limit_s: float, scratch: str) -> None:
        environment = {
            **{name: value for name, value in os.environ.items() if name != "DIAGNOSE_DEBUG"},  # as for a user
            "TMPDIR": scratch,
            "DIAGNOSE_NO_CACHE": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONWARNINGS": "default",
        }
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        self._limit_s = limit_s
        self.asked: Asked | None = None
        self._deadline = time.monotonic() + STARTING_S
        self.is_ready = False
        self._text = b""

    @property
    def stdout(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    @property
    def is_late(self) -> bool:
        return (self.asked is not None or not self.is_ready) and time.monotonic() > self._deadline

    def ask(self, asked: Asked) -> None:
        """Hand over a case; a worker that has ended meanwhile is seen when it is read."""
        self.asked, self._deadline = asked, time.monotonic() + self._limit_s
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()

    def read(self) -> list[str] | None:
        """Return the lines that have come, None at the end."""
        data = os.read(self.stdout, 1 << 16)
        if not data:
            return None
        *lines, self._text = (self._text + data).split(b"\n")
        return [line.decode() for line in lines]

    def end(self) -> int:
        """Kill the process and return how it had ended."""
        with contextlib.suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        if self._process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.2)
        self._process.kill()
        code = self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code


@dataclass(frozen=True)
class Setting:
    """What every worker is started with."""

    seed: int = 0
    jobs: int = 1
    trace_folders: Sequence[Path] = ()
    limit_s: float = KILLED_AFTER_S
    module: str = ""  # imported by workers first

    @property
    def command(self) -> list[str]:
        """Return the command of a worker."""
        command = [sys.executable, str(Path(__file__).parents[1] / "fuzz.py"), "--worker", "--seed", str(self.seed)]
        for folder in self.trace_folders:
            command += ["--traces", str(folder)]
        return [*command, *(["--import", self.module] if self.module else [])]


class _Pool:
    """The workers, and what is still to be done."""

    def __init__(self, setting: Setting, cases: Iterable[Asked]) -> None:
        self._scratch = tempfile.TemporaryDirectory(dir=scratch_folder(), prefix="fuzz-")
        self._setting = setting
        self._todo = deque(cases)
        self._waiting = selectors.DefaultSelector()
        self._workers: set[_Worker] = set()
        self._failures = 0

    def results(self) -> Iterator[Result]:
        while self._todo or any(worker.asked for worker in self._workers):
            busy = sum(worker.asked is not None for worker in self._workers)
            while len(self._workers) < min(self._setting.jobs, len(self._todo) + busy):
                self._start()
            for key, _ in self._waiting.select(timeout=0.5):
                yield from self._heard(key.data)
            for worker in [worker for worker in self._workers if worker.is_late]:
                yield self._ended_late(worker)

    def close(self) -> None:
        for worker in list(self._workers):
            self._stop(worker)
        self._waiting.close()
        self._scratch.cleanup()  # with what killed workers have left

    def _start(self) -> None:
        worker = _Worker(self._setting.command, self._setting.limit_s, self._scratch.name)
        self._workers.add(worker)
        self._waiting.register(worker.stdout, selectors.EVENT_READ, worker)

    def _stop(self, worker: _Worker) -> int:
        self._workers.discard(worker)
        self._waiting.unregister(worker.stdout)
        return worker.end()

    def _heard(self, worker: _Worker) -> Iterator[Result]:
        lines = worker.read()
        if lines is None:
            code = self._stop(worker)
            if worker.asked is not None:
                yield _lost(worker.asked, "process ended", f"exit code {code}")
            elif not worker.is_ready:
                self._failures += 1
                if self._failures > MAX_FAILED_STARTS:
                    raise RuntimeError("the workers do not start: evaluation/fuzz --worker shows why")
            return
        for line in lines:
            if worker.is_ready:
                worker.asked = None
                yield Result.from_json(line)
            worker.is_ready = True
        if lines and worker.asked is None and self._todo:
            worker.ask(self._todo.popleft())

    def _ended_late(self, worker: _Worker) -> Result:
        asked = worker.asked
        self._stop(worker)
        if asked is None:
            raise RuntimeError(f"a worker did not start within {STARTING_S:.0f} s")
        return _lost(asked, "hang", f"killed after {self._setting.limit_s:.0f} s", self._setting.limit_s)


def run_all(cases: Iterable[Asked], setting: Setting) -> Iterator[Result]:
    """Yield the result of every case, in the order in which they end."""
    pool = _Pool(setting, cases)
    try:
        yield from pool.results()
    finally:
        pool.close()


def _lost(asked: Asked, kind: str, details: str, seconds: float = 0.0) -> Result:
    return Result(str(asked.get("kind", "file")), int(asked.get("index", 0)), [(kind, details)], seconds=seconds)
