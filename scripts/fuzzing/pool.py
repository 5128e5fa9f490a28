"""Several workers at once: each is killed when a case takes too long, and replaced when it has died."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fuzzing.checks import MAX_SECONDS
from fuzzing.worker import Result

__all__ = ["run_all"]

STARTING_S = 300.0  # importing everything on a busy machine
KILLED_AFTER_S = 6 * MAX_SECONDS  # wall clock: a worker that shares its core with others takes longer than its bar
Asked = dict[str, Any]


class _Worker:
    """One process and the case that it is busy with."""

    def __init__(self, command: Sequence[str], limit_s: float) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
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


def run_all(
    cases: Iterable[Asked],
    *,
    seed: int,
    jobs: int,
    trace_folders: Sequence[Path] = (),
    limit_s: float = KILLED_AFTER_S,
    module: str = "",
) -> Iterator[Result]:
    """Yield the result of every case, in the order in which they end; ``module`` is imported by workers first."""
    command = [sys.executable, str(Path(__file__).parents[1] / "fuzz.py"), "--worker", "--seed", str(seed)]
    for folder in trace_folders:
        command += ["--traces", str(folder)]
    if module:
        command += ["--import", module]
    todo = deque(cases)
    waiting = selectors.DefaultSelector()
    workers: set[_Worker] = set()
    failures = 0

    def start() -> None:
        worker = _Worker(command, limit_s)
        workers.add(worker)
        waiting.register(worker.stdout, selectors.EVENT_READ, worker)

    def stop(worker: _Worker) -> int:
        workers.discard(worker)
        waiting.unregister(worker.stdout)
        return worker.end()

    try:
        while todo or any(worker.asked for worker in workers):
            busy = sum(worker.asked is not None for worker in workers)
            while len(workers) < min(jobs, len(todo) + busy):
                start()
            for key, _ in waiting.select(timeout=0.5):
                worker = key.data
                lines = worker.read()
                if lines is None:
                    code = stop(worker)
                    if worker.asked is not None:
                        yield _lost(worker.asked, "process ended", f"exit code {code}")
                    elif not worker.is_ready:
                        failures += 1
                        if failures > 3:
                            raise RuntimeError("the workers do not start: scripts/fuzz --worker shows why")
                    continue
                for line in lines:
                    if not worker.is_ready:
                        worker.is_ready = True
                    else:
                        worker.asked = None
                        yield Result.from_json(line)
                if worker.asked is None and todo:
                    worker.ask(todo.popleft())
            for worker in [w for w in workers if w.is_late]:
                asked = worker.asked
                stop(worker)
                if asked is None:
                    raise RuntimeError(f"a worker did not start within {STARTING_S:.0f} s")
                yield _lost(asked, "hang", f"killed after {limit_s:.0f} s", limit_s)
    finally:
        for worker in list(workers):
            stop(worker)
        waiting.close()


def _lost(asked: Asked, kind: str, details: str, seconds: float = 0.0) -> Result:
    return Result(str(asked.get("kind", "file")), int(asked.get("index", 0)), [(kind, details)], seconds=seconds)
