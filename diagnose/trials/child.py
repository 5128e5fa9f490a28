"""The process of one trial: patches torch as ordered, runs the script as Python would, times its steps, stops it.

``sys.argv`` holds the file of the order, then [-m] SCRIPT and its arguments. torch is imported by the script.

Several forms of a script are alive at once and exactly one runs (`diagnose.trials.turns`). The parent listens on a unix
socket; each process connects to it and exchanges lines:

    {"imported": true}    from the process: torch is imported; several may import at once, but they warm up in turn
    begin                 from the parent
    {"ready": true, "device_free": bytes}    the warm-up is over, and the device has no work; null without a device
    go 0.15               a block of so many seconds
    {"steps": [ns, ...], "queued": [ns, ...], "apart": 0.0, "dropped": 1, "wall_ns": ns}    of the block; the device
                          has no work; for the middle two see `diagnose.trials.turns.Block`
    stop                  the script is stopped, as in every trial

While it waits, the parent stops the process and its workers (SIGSTOP): workers would go on loading batches, and a block
would begin with more of them than the script has at that point of its step.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import socket
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from math import ceil, inf
from pathlib import Path
from statistics import median
from typing import IO, Any, NoReturn

from diagnose.capture.options import CaptureOptions
from diagnose.capture.process.process import ForkedChildren, rank_and_size
from diagnose.capture.process.run import leave_behind, silence_kineto, trace_script
from diagnose.capture.process.script import Outcome, StopScript, check_script, run_script
from diagnose.capture.record.script_config import ScriptConfig
from diagnose.capture.steps.hooks import when_imported
from diagnose.capture.steps.listener import Listener
from diagnose.changes import patch_of
from diagnose.changes.common.change import CannotApply, Log, Undo, replace_attribute
from diagnose.errors import DiagnoseError
from diagnose.model.files import replace_private
from diagnose.trials.measuring import (
    MIN_MEDIAN_STEPS,
    Numbers,
    PeakMemory,
    SampleDraws,
    StepTimer,
    TrialRequest,
    TrialResult,
    error_text,
    seed_everything,
    used_cuda,
)
from diagnose.trials.own_time import CpuTime

MAX_MESSAGE_BYTES = 8 << 20  # of one answer: a block of some tenths of a second holds some thousand steps at most
# The first steps of a block differ from the script's: caches hold what another process worked on, clocks and workers
# wake up, and the host has no lead over the device yet.
DROPPED_NS = 10e6
FIRST_STEPS = 4  # that show how many steps a first block has


class Turns:
    """The process's end of the conversation; without the parent everything is over."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._lines = self._socket.makefile("r", encoding="utf-8")

    def begin(self) -> None:
        """Wait until this process may begin to work; torch has just been imported."""
        self._send({"imported": True})
        self._lines.readline()

    def ready(self) -> None:
        """Report that blocks can be asked for."""
        cuda = used_cuda()
        self._send({"ready": True, "device_free": None if cuda is None else int(cuda.mem_get_info()[0])})

    def answer(self, step_ns: list[float], **more: object) -> None:
        """Report a block."""
        self._send({"steps": step_ns, **more})

    def wait(self) -> float | None:
        """Wait for the next block; return its seconds, None if there is none."""
        words = self._lines.readline().split()
        return float(words[1]) if words[:1] == ["go"] else None

    def close(self) -> None:
        """End the conversation, also for workers, which have inherited the socket."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._lines.close()
        self._socket.close()

    def _send(self, message: object) -> None:
        with contextlib.suppress(OSError):  # the parent has ended: the next wait returns at once
            self._socket.sendall(json.dumps(message).encode() + b"\n")


class TurnTimer(StepTimer):
    """Warms up as every trial does, then times steps in blocks until there are none to time.

    Nothing is sent, read or waited for within a block. On a GPU its steps are timed between events in the device's
    queue, as elsewhere: the host runs ahead of the device again after the dropped steps, so a block is no longer for
    the drains at both of its ends.
    """

    def __init__(self, turns: Turns, warm_up: int, *, alone: bool, timing_begins: Callable[[], None]) -> None:
        self._turns = turns
        super().__init__(warm_up, 0, alone=alone, timing_begins=timing_begins)

    def step_ns(self) -> tuple[float, ...]:
        """Return the steps of all blocks."""
        return tuple(self._done)

    def _script(self) -> Generator[None, int, None]:
        self._done: list[float] = []
        yield from self._settle()
        usual_ns = median((yield from self._steps(1, FIRST_STEPS, inf)))  # on a GPU the warm-up timed the host alone
        self._timing_begins()
        self._turns.ready()
        while (seconds := self._turns.wait()) is not None:
            dropped, num = block_plan(usual_ns, seconds)
            began = time.perf_counter_ns()
            # A block that takes three times as long ends with fewer steps than planned: they have become longer.
            steps = yield from self._steps(dropped, num, 3.0 * seconds * 1e9)
            wall_ns = time.perf_counter_ns() - began
            self._turns.answer(steps, queued=self._queued, apart=self._apart, dropped=dropped, wall_ns=wall_ns)
            usual_ns = median(steps)
            self._done += steps

    def _steps(self, dropped: int, num: int, limit_ns: float) -> Generator[None, int, list[float]]:
        """Drop some steps and time others; return these once the device has no work."""
        self._host, self._marks, self._queued = [], [], []
        self._last = time.perf_counter_ns()
        for _ in range(dropped):
            yield
        timed_from, began = time.perf_counter_ns(), CpuTime.now()
        self._mark()
        for _ in range(num):
            self._host.append((yield))
            self._queued.append(self._queued_ns)
            self._mark()
            if self._last - timed_from > limit_ns:
                break
        self._apart = began.apart(sum(self._host) - sum(self._queued))
        if (cuda := used_cuda()) is not None:
            cuda.synchronize()
            self._apart = 1.0
        return list(super().step_ns())


def block_plan(usual_ns: float, seconds: float) -> tuple[int, int]:
    """Return how many steps of a block are dropped, and how many are timed: at least one of each."""
    return max(1, ceil(DROPPED_NS / usual_ns)), max(1, round(seconds * 1e9 / usual_ns))


def main() -> NoReturn:
    """Carry the order out, write the result, and leave without waiting for the script's threads."""
    order = TrialRequest.read(Path(sys.argv[1]))
    module = sys.argv[2] == "-m"
    script = sys.argv[3:] if module else sys.argv[2:]
    seed_everything(order.seed, when_imported)
    log = Log()
    undo = _patch(order, log)
    run_it = _trace if order.capture else _measure
    try:
        if order.cannot:
            raise CannotApply(order.cannot)
        for made in order.made:
            log.did(made)
        with edited(order.sources):
            run = run_it(order, script, module=module)
    except DiagnoseError as error:
        run = TrialResult(failure=str(error))
    finally:
        for one in reversed(undo):
            one()
    log.settle()
    run = replace(run, applied=tuple(log.done), refused=tuple(log.refused))
    rank = rank_and_size()[0]
    replace_private(Path(f"{order.result}.rank{rank}" if rank else order.result), run.to_json().encode())
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def _patch(order: TrialRequest, log: Log) -> list[Undo]:
    """Set the variables of the patches, and install them once torch is imported; return what undoes them."""
    undo: list[Undo] = []
    patches = [(patch, order.arguments.get(name, {})) for name in order.ids if (patch := patch_of(name)) is not None]

    def install() -> None:
        for patch, given in patches:
            if patch.install is not None:
                undo.append(patch.install(log, given))

    for variable, value in (pair for patch, _ in patches for pair in patch.environment.items()):
        os.environ.pop(variable, None)
        if value is not None:
            os.environ[variable] = value
        log.did(f"{variable} is not set" if value is None else f"{variable}={value}")
    when_imported("torch", install)
    return undo


@contextmanager
def edited(sources: Mapping[str, str]) -> Iterator[None]:
    """Within the block, whoever opens, imports or shows one of these files gets the text given for it.

    The files stay as they are.
    """
    texts = {os.path.realpath(path): text for path, text in sources.items()}
    original, get_data, path_stats = io.open_code, SourceFileLoader.get_data, SourceFileLoader.path_stats

    def text_of(path: str) -> str | None:
        return texts.get(os.path.realpath(path))

    def open_code(path: str) -> IO[bytes]:
        text = text_of(path)
        return original(path) if text is None else io.BytesIO(text.encode())

    def data_of(loader: SourceFileLoader, path: str) -> bytes:
        text = text_of(path)
        return get_data(loader, path) if text is None else text.encode()

    def stats_of(loader: SourceFileLoader, path: str) -> Mapping[str, Any]:
        if text_of(path) is not None:
            raise OSError  # as of a file without a date: its bytecode is neither read nor written
        return path_stats(loader, path)

    with ExitStack() as stack:
        if texts:
            stack.callback(replace_attribute(io, "open_code", open_code))
            stack.callback(replace_attribute(SourceFileLoader, "get_data", data_of))
            stack.callback(replace_attribute(SourceFileLoader, "path_stats", stats_of))
        for path, text in sources.items():
            linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
        yield


def _trace(order: TrialRequest, script: Sequence[str], *, module: bool) -> TrialResult:
    options = CaptureOptions(output=Path(order.capture), force=True, quiet=True)
    if order.capture_s is not None:
        options = replace(options, max_seconds=min(options.max_seconds, order.capture_s))
    trace_script(script, options, module=module)
    return TrialResult()


def _measure(order: TrialRequest, script: Sequence[str], *, module: bool) -> TrialResult:
    check_script(script, module=module)
    silence_kineto()
    numbers, draws, memory = Numbers(), SampleDraws(), PeakMemory()
    turns = Turns(order.turns) if order.turns else None

    def timing_begins() -> None:
        memory.start()
        if turns is not None:
            listener.lock()  # a block has no time for a new definition of a step

    alone = rank_and_size()[1] == 1
    if turns is None:
        timer = StepTimer(order.warm_up, order.timed, alone=alone, timing_begins=timing_begins)
    else:
        timer = TurnTimer(turns, order.warm_up, alone=alone, timing_begins=timing_begins)
        when_imported("torch", turns.begin)

    def boundary(fresh: bool) -> None:  # a callback
        if fresh:
            timer.restart()
            return
        timer.boundary()
        if timer.done:
            raise StopScript

    listener = Listener(order.step_on, ScriptConfig(), boundary)  # type: ignore[arg-type]  # checked by the parent
    for watching in (numbers, draws, listener):
        when_imported("torch", watching.install)
    owner, forked = os.getpid(), ForkedChildren()
    outcome = run_script(script, module=module)
    if os.getpid() != owner:  # the script forked, and this is the child at the script's end
        os._exit(outcome.exit_code)
    if turns is not None:
        turns.close()
    listener.remove()
    listener.shut_loaders()
    numbers.remove()
    draws.remove()
    step_ns = timer.step_ns()
    failure = why_nothing(order, outcome, timer, len(step_ns))
    run = TrialResult(
        step_ns=() if failure else step_ns,
        losses=numbers.losses,
        first_epoch=numbers.first_epoch,
        grad_norms=numbers.grad_norms,
        skipped_steps=numbers.skipped_steps,
        peak_bytes=memory.read(),
        converged=timer.converged,
        failure=failure,
        samples_draw=draws.found,
    )
    leave_behind(outcome, forked)
    return run


def why_nothing(order: TrialRequest, outcome: Outcome, timer: StepTimer, num_timed: int) -> str:
    """Return why there is nothing to compare, "" where there is; a change under which the script raises has failed."""
    error = outcome.error
    if isinstance(error, CannotApply):
        return str(error)
    if outcome.ended == "raised" and error is not None and (order.ids or order.made or num_timed < MIN_MEDIAN_STEPS):
        return f"The script raised {error_text(error)}."
    if num_timed >= MIN_MEDIAN_STEPS:
        return ""
    return f"The script ended after {timer.num_steps} steps that could be timed; it must run for more to be measured."


if __name__ == "__main__":
    main()
