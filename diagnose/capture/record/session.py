"""One capture in one process: the listener's boundaries drive the plan, and everything lands in one folder."""

from __future__ import annotations

import math
import os
import platform
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import TypeAlias

from diagnose import __version__
from diagnose.capture.host.turns import TurnCount
from diagnose.capture.host.unread import unread_results
from diagnose.capture.options import CaptureOptions
from diagnose.capture.process.process import agree_on_run_id, compiled_graphs, rank_and_size, ranks_on_this_node
from diagnose.capture.record.compiled import CompilationLog, compiled_places, compiled_record
from diagnose.capture.record.constructions import wide_sources
from diagnose.capture.record.folder import CaptureFolder, RunLog, write_rows
from diagnose.capture.record.gpus import GpuMonitor, allocator_counters, allocator_map, counted_between, describe_gpus
from diagnose.capture.record.measurements import Measurements, PlanHooks
from diagnose.capture.record.plan import LONG_STEP_S, Plan
from diagnose.capture.record.recording import OtherProfilers, StepInterrupt
from diagnose.capture.record.sampler import Taken, is_users_file, place_of, users_frames
from diagnose.capture.record.samplers import Samplers
from diagnose.capture.record.script_config import ScriptConfig, process_flags
from diagnose.capture.record.source_lines import SourceLines, parsed
from diagnose.capture.record.window import recorded_kinds
from diagnose.capture.steps.hooks import in_backward
from diagnose.capture.steps.listener import Listener
from diagnose.errors import OutputError
from diagnose.model.accelerators import unrecorded_note
from diagnose.model.capture import CaptureInfo
from diagnose.model.files import printable, reason
from diagnose.model.records import (
    AllocatorRecord,
    AutocastRecord,
    CompiledRecord,
    DdpRecord,
    FlagsRecord,
    GpuRecord,
    LoaderRecord,
    NvmlRecord,
    OptimizerRecord,
    SamplerRecord,
    fitting,
)
from diagnose.text.masking import mask_command, mask_text
from diagnose.text.numbers import duration, percent

# Where a thread is while no step ends: for the progress lines, and for a run that ends without one.

QUIET_S = 20.0  # without a step until a line is shown; each further one after twice the time


_Place: TypeAlias = tuple[str, int, str]  # file, line, function


class StepWait:
    """Shows a line about the thread that created it if no step ends for long."""

    def __init__(self, report: Callable[[str], None], *, is_busy: Callable[[], bool]) -> None:
        """``is_busy`` returns whether nothing is to be shown now, as work of ours goes on."""
        self._report, self._is_busy = report, is_busy
        self._ident, self._owner = threading.get_ident(), os.getpid()
        self._over = threading.Event()
        self._since, self._next_s = time.monotonic(), QUIET_S
        self.since_ns = time.time_ns()

    def start(self) -> None:
        """Begin to watch."""
        threading.Thread(target=self._watch, name="diagnose-waits", daemon=True).start()

    def stepped(self) -> None:
        """Take notice of the end of a step on this thread."""
        self._ident, self._since, self._next_s = threading.get_ident(), time.monotonic(), QUIET_S
        self.since_ns = time.time_ns()

    def stop(self) -> None:
        """End the watch."""
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(1.0) and os.getpid() == self._owner:
            self.look(time.monotonic())

    def look(self, now_s: float) -> None:
        """Show where the thread is, if no step has ended for long enough."""
        waited_s = now_s - self._since
        if waited_s < self._next_s or self._is_busy():
            return
        self._next_s *= 2
        frame = sys._current_frames().get(self._ident)
        path = list(map(place_of, users_frames(frame)))
        if path:
            module = _imported(frame)
            doing = f"importing {module} at" if module else "running"
            self._report(f"no step for {duration(waited_s * 1e9)}: {doing} {_named(path)}")


def _imported(frame: FrameType | None) -> str:
    """Return the module that the innermost line of the user's code is importing, "" if it imports none."""
    line, module = next(users_frames(frame), None), ""
    while frame is not None and frame is not line:
        if frame.f_code.co_name == "_find_and_load" and frame.f_code.co_filename.startswith("<frozen importlib"):
            module = str(frame.f_locals.get("name", ""))
        frame = frame.f_back
    return module


def spent_at(taken: Taken | None, since_ns: int) -> str:
    """Return a sentence about the innermost line that most samples since a time share, "" without one."""
    if taken is None:
        return ""
    paths = list(taken.places)
    since = [row for time_ns, row in zip(taken.time_ns, taken.place, strict=False) if time_ns >= since_ns]
    if len(since) < 5:
        return ""
    total, num, depth = len(since), Counter[_Place](), dict[_Place, int]()
    for row, count in Counter(since).items():
        for callers, at in enumerate(reversed([at for at in paths[row] if is_users_file(at[0])])):
            num[at] += count
            depth[at] = max(depth.get(at, 0), callers)
    shared = [at for at in num if num[at] >= 0.7 * total]  # they are at a line or in what it calls
    if not shared:
        return ""
    at = max(shared, key=lambda at: depth[at])
    path = next(path for path in paths if at in path)
    took = duration(taken.time_ns[-1] - max(since_ns, taken.time_ns[0]))
    return f"{percent(num[at] / total, 0)} of the last {took} were spent at {_named(path[path.index(at) :])}."


def _named(path: Sequence[_Place]) -> str:
    """Return "search.py:5 in search, called at train.py:12 in main": the first line and the outermost function's."""
    (file, line, function), *callers = path
    text = f"{_short(file)}:{line} in {function}"
    outer = next((at for at in reversed(callers) if at[2] != "<module>" and is_users_file(at[0])), None)
    return text if outer is None else f"{text}, called at {_short(outer[0])}:{outer[1]} in {outer[2]}"


def _short(file: str) -> str:
    path = os.path.relpath(file) if file.startswith("/") else file
    return file if path.startswith("..") else path


# Describes a session in a CaptureInfo.


def describe(session: Session, ended: str, exit_code: int | None) -> CaptureInfo:
    """Return the description of the session's capture as it stands."""
    measured = session.measured
    torch = sys.modules.get("torch")
    counted = counted_between(session.allocator_before, allocator_counters())
    config = session.script_config
    settings = {
        "ddp": fitting(DdpRecord, config.ddp),
        "autocast": fitting(AutocastRecord, config.autocast),
        "anomaly": config.anomaly,
    }
    notes = list(session.all_notes)
    devices = config.optimizer.get("devices")
    if isinstance(devices, list) and devices:  # the host alone may not be all there was
        notes.append(unrecorded_note(devices, recorded_kinds()))
    config.count_loading()  # a window has just ended
    return CaptureInfo(
        run_id=session.run_id,
        tool_version=__version__,
        command=mask_command(session.command),
        cwd=session.cwd,
        started_at=session.started_at,
        python=platform.python_version(),
        torch=str(torch.__version__) if torch else "",
        cuda=str(torch.version.cuda or "") if torch else "",
        rank=session.rank,
        world_size=session.num_ranks,
        gpus=tuple(fitting(GpuRecord, gpu) for gpu in session.gpus),
        light_file=measured.files.get("light", ""),
        attribution_file=measured.files.get("attribution", ""),
        samples_file=session.row_files.get("samples", ""),
        lines_file=session.row_files.get("lines", ""),
        steps_file=session.row_files.get("steps", ""),
        dataflow_file=measured.dataflow_file,
        long_step_file=measured.long_step_file,
        long_step_every=measured.long_step_every,
        flags=fitting(FlagsRecord, {**measured.flags, **session.process_flags, **settings}),
        found_steps_by=session.listener.choice.chosen or "",
        events_per_step=session.listener.finder.events_per_step,
        settled_after=measured.converged_after,
        unprofiled_ms=_ms(measured.step_ns("unprofiled")),
        light_ms=_ms(measured.step_ns("light")),
        attribution_ms=_ms(measured.step_ns("attribution")),
        sampler=fitting(SamplerRecord, session.samplers.summary),
        nvml=fitting(NvmlRecord, session.monitor.summary() if session.monitor is not None else {}),
        memory=fitting(AllocatorRecord, counted | allocator_map()),
        loader=fitting(LoaderRecord, session.script_config.loader),
        optimizer=fitting(OptimizerRecord, session.script_config.optimizer),
        loaded=measured.loaded,
        host=measured.host,
        compiled=session.compiled,
        wide=wide_sources(session.lines, measured.loaded, measured.wide_buffers),
        saves=session.listener.saves.records,
        hooks=session.listener.module_hooks.records,
        unread=measured.unread,
        stack_ns=measured.stack_ns,
        notes=tuple(map(mask_text, filter(None, notes))),
        ended=ended,
        exit_code=exit_code,
    )


def _children_s() -> float:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime


def _ms(times: Sequence[int]) -> tuple[float, ...]:
    return tuple(round(t / 1e6, 4) for t in times)


class Session:
    """One capture, from before the script's first line to its folder.

    ``stop`` unwinds the script by raising, and returns if it cannot; None where there is none to unwind. ``spawned`` is
    the rank of a process that the script has started, and how many there are. With a caller's ``listener``, which stays
    installed and at whose boundaries ``mark`` is called, a rank records alone.
    """

    def __init__(  # whom it serves: a script, a rank that a script spawned, a loop, a watch
        self,
        options: CaptureOptions,
        command: tuple[str, ...],
        *,
        report: Callable[[str], None],
        stop: Callable[[], None] | None,
        spawned: tuple[int, int] | None = None,
        listener: Listener | None = None,
    ) -> None:
        self.options, self.command = options, command
        self._shared = listener is not None
        alone = (0, 1) if self._shared else None
        self._rank_and_size: Callable[[], tuple[int, int]] = lambda: spawned or alone or rank_and_size()
        self.rank, self.num_ranks = self._rank_and_size()
        self.folder = CaptureFolder(options.output, rank=self.rank, num_ranks=self.num_ranks, force=options.force)
        self.script_config = listener.script_config if listener is not None else ScriptConfig()
        self.listener = listener or Listener(options.step_on, self.script_config, self._boundary)
        self.other_profilers = OtherProfilers(self._other_profiler_started)
        self.measured = Measurements()
        self.plan: Plan | None = None
        self.notes: list[str] = []
        self.complete = False  # the plan came to its end
        self.gpus: list[dict[str, object]] = []
        self.process_flags: dict[str, object] = {}
        self.allocator_before: dict[str, int] = {}
        self.run_id = ""
        self.compiled, self._compilations = CompiledRecord(), CompilationLog()
        self.row_files: dict[str, str] = {}  # names by kind; one for which there was no room is missing
        self.cwd = str(Path.cwd())
        self.started_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._children_before_s = _children_s()
        self._report, self._stop, self.lines = report, stop, SourceLines(Path(self.cwd))
        self._said: tuple[str, float] = ("", 0.0)
        self._stops, self._cutting, self._at_once = 0, False, False
        self.samplers = Samplers()
        self.samplers.prepare()
        self._wait = StepWait(self.report, is_busy=self._is_busy)
        self._run_log = RunLog()
        self.monitor: GpuMonitor | None = None
        self._interrupt = StepInterrupt(lambda: self.plan.due_in if self.plan is not None else math.inf, self._in_step)

    def install(self) -> None:
        """Put hooks into torch once it is imported; a torch that takes none leaves the script alone."""
        try:
            self.other_profilers.watch()
            if not self._shared:
                self.listener.install()
                self.samplers.sample_run(on=True)
                self._wait.start()
        except (ImportError, AttributeError) as error:
            self.notes.append(f"This torch could not be hooked into fully ({error}).")

    def mark(self) -> None:
        """Take notice of a step boundary that a loop of ours marks."""
        if self.listener.active:
            self._boundary(fresh=self.plan is None)

    def _boundary(self, fresh: bool) -> None:  # a callback
        if self.plan is None or (fresh and not self._at_once):
            self._begin()
        else:
            self.plan.boundary()
        if self.plan is not None and self.plan.done:
            self._leave_script()
        self._compilations.look()
        self._wait.stepped()
        self.listener.phases.begin()

    def _is_busy(self) -> bool:
        """Return whether work of ours goes on, nothing is left to do, or other processes make the steps."""
        return self.complete or self.listener.inside or self._cutting or self.folder.has_others

    def _begin(self) -> None:
        """Start the plan at the first boundary of what is now taken for a step."""
        self.rank, self.num_ranks = self._rank_and_size()
        self.measured = Measurements()
        hooks = PlanHooks(
            folder=self.folder.partial,
            prefix=f"rank{self.rank}",
            num_ranks=self.num_ranks,
            report=self.report,
            other_active=self.other_profilers.active,
            undecided=lambda: self.listener.finder.undecided,
            compiled=compiled_graphs,
            look=self._interrupt.look,
            converged=self._fix_steps,
            sampling=lambda on: self.samplers.sample_window(on=on),
            # In case that the process is killed; what fails here is tried again in the end.
            wrote=lambda: self._write("killed", None),
            stepped=lambda ns, state: self._run_log.add(time.time_ns(), ns, state, self.listener.phases.take()),
            training_loader=self.script_config.training_loader,
            turns=self._turn_count,
            hot_lines=self.samplers.hot_lines,
        )
        self._run_log = RunLog()
        if self.plan is None:
            self._interrupt.start()
            self.samplers.sample_run(on=True)
        now = time.monotonic()
        first_step_s = now - (self.listener.first_event_at or now)
        self._at_once = self.options.quick and self.num_ranks == 1 and first_step_s > LONG_STEP_S
        self.plan = Plan(self.options, hooks, self.measured, at_once=self._at_once)

    def _turn_count(self) -> TurnCount | None:
        """Return what counts how often the results of the user's functions are read, None if all of them are."""
        taken = self.samplers.of_run
        sampled = taken.lines if taken is not None else []
        files = {file for file, _ in sampled if is_users_file(file)}
        texts = {file: "\n".join(line.rstrip("\n") for line in self.lines.text(file) or ()) for file in files}
        # Longer files are generated code.
        parts = {file: parsed(text) for file, text in texts.items() if len(text) <= 300_000}
        trees = {file: tree for file, tree in parts.items() if tree is not None}
        found = tuple(unread_results(trees))
        return TurnCount(found, trees, sampled) if found else None

    def _in_step(self) -> None:
        """Act on a bound that is reached inside a step, unless the thread is inside a boundary or a backward pass."""
        if self._cutting or self.listener.inside or in_backward() or self.plan is None or self.plan.done:
            return
        self._cutting = True  # a profiler takes long to stop, and the next signal must not break that off
        try:
            over = self.plan.cut()
        finally:
            self._cutting = False
        if over and self._stop is not None and not self.options.keep_going:
            self._leave_script()

    def _fix_steps(self) -> None:
        """Fix what a step is, and take down what the script runs with while its objects are alive."""
        if self.listener.finder.anchor is not None:
            self.listener.lock()
        self.script_config.settle()
        self.gpus = describe_gpus()
        self.process_flags = process_flags(ranks_on_this_node(self.num_ranks))
        self.allocator_before = allocator_counters()
        self.run_id = agree_on_run_id()
        if self.monitor is None:
            self.monitor = GpuMonitor([gpu for gpu in self.gpus if gpu["in_use"]])
            self.monitor.start()

    def _leave_script(self) -> None:
        """Stop the script on purpose; where it catches that time and again, let it finish."""
        self.complete = True
        self._end_threads()
        alone = self.plan is not None and self.plan.failed and self.num_ranks > 1  # the other ranks go on
        # A script that swallows BaseException thrice keeps running.
        if self._stop is not None and not (self.options.keep_going or self._stops == 3 or alone):
            self._stops += 1
            self._stop()
        self._remove_hooks()

    def _other_profiler_started(self) -> None:
        if self.listener.active:
            self.notes.append(f"The script runs its own profiler ({self.other_profilers.place}); it was not touched.")
            if self.plan is not None:
                self.plan.disturb()

    def _remove_hooks(self) -> None:
        self._interrupt.stop()
        if not self._shared:
            self.listener.remove()
        self.other_profilers.forget()

    def _end_threads(self) -> None:
        self._wait.stop()
        self.samplers.stop()
        if self.monitor is not None:
            self.monitor.stop()

    def close(self) -> None:
        """End the capture wherever it is; a window that holds a whole step is kept."""
        self._remove_hooks()
        try:
            if self.plan is not None:
                self.plan.close()
            self.measured.clock.finish()
        finally:
            self._end_threads()

    def note_what_is_missing(self) -> None:
        """Note what is missing because the script ended early."""
        timing = self.measured.timing
        if self.complete or self.options.quick:
            return
        if "attribution" not in self.measured.files:
            self.notes.append("The script ended before the attribution window: stacks, shapes and lines are missing.")
        if self.plan is not None and len(timing) < self.plan.wanted_steps:
            self.notes.append(f"The script ended during the timing window: the timing rests on {len(timing)} steps.")

    @property
    def num_steps(self) -> int:
        """Return the number of whole steps seen."""
        return self.plan.num_steps if self.plan is not None else 0

    @property
    def children_s(self) -> float:
        """Return the CPU time of the child processes that have ended since the capture began."""
        return _children_s() - self._children_before_s

    @property
    def spent_at(self) -> str:
        """Return a sentence about where most of the time since the last step went, "" if that is not known."""
        return spent_at(self.samplers.of_run, self._wait.since_ns)

    @property
    def all_notes(self) -> tuple[str, ...]:
        """Return the notes, each once."""
        return tuple(dict.fromkeys([*self.notes, *self.measured.notes]))

    def report(self, text: str) -> None:
        """Pass a line on, but not the same kind of line many times a second."""
        kind, now = text.partition(":")[0], time.monotonic()
        if self.options.quiet or (kind == self._said[0] and now - self._said[1] < 1.0):
            return
        self._said = (kind, now)
        self._report(text)

    def publish(self, ended: str, exit_code: int | None) -> CaptureInfo:
        """Write samples and description, move the folder into place and return the description.

        Raises:
            OutputError: the place cannot be written; the message names where the files are.
        """
        info, failure = self._write(ended, exit_code)
        if failure is not None and not self.folder.is_described:
            raise OutputError(
                f"The capture's description could not be written: {reason(failure)} "
                f"The traces are in {printable(self.folder.partial)}."
            ) from failure
        wanted = self.folder.target
        if self.folder.publish() == wanted:
            return info
        self.notes.append(f"{printable(wanted)} was taken while the script ran, so the capture is in another folder.")
        self.report(f"{printable(wanted)} was taken meanwhile: the capture is in {printable(self.folder.target)}")
        return self._write(ended, exit_code, samples=False)[0]

    def _write(self, ended: str, exit_code: int | None, *, samples: bool = True) -> tuple[CaptureInfo, OSError | None]:
        """Write samples and description; return the description, and why it could not be written where it could not.

        Samples that find no room become a note: the rest is worth keeping without them.
        """
        if samples:
            samplers, rows = self.samplers, self._run_log.rows(self.measured.clock.step_ns)
            self.compiled = compiled_record(self._compilations, self.script_config.compile_calls)
            saves = ((one.file, one.line) for one in self.listener.saves.records)
            hooks = ((one.file, one.line) for one in self.listener.module_hooks.records)
            self.lines.named = (*self.measured.dataflow_lines, *compiled_places(self.compiled), *saves, *hooks)
            written, notes = write_rows(self.folder, self.rank, samplers, self.lines, rows)
            self.row_files |= written  # a file of an earlier writing is there still
            self.notes += notes
        info = describe(self, ended, exit_code)
        try:
            self.folder.write_info(info)
        except OSError as error:
            return info, error
        return info, None
