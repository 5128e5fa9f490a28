"""Ties one capture together: hears the script's events, turns them into step boundaries, and runs the plan on them."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.capture.choose import SourceChoice
from diagnose.capture.facts import ScriptFacts, describe_gpus, precision_flags
from diagnose.capture.folder import CaptureFolder
from diagnose.capture.foreign import ForeignProfilers
from diagnose.capture.nvml import GpuMonitor
from diagnose.capture.options import CaptureOptions
from diagnose.capture.period import StepFinder
from diagnose.capture.plan import Measured, Plan, Surroundings
from diagnose.capture.ranks import agree_on_run_id, rank_and_size
from diagnose.capture.sampler import Sampler
from diagnose.capture.sources import (
    Undo,
    watch_autocast,
    watch_ddp,
    watch_forward,
    watch_loaders,
    watch_marks,
    watch_optimizers,
)

if TYPE_CHECKING:
    from diagnose.captures import CaptureInfo

__all__ = ["Session"]

MOST_STOPS = 3  # a script that swallows BaseException thrice means it
SAY_EVERY = 1.0  # seconds between two lines about the same wait


class Session:
    """One capture in one process, from before the script's first line to its folder."""

    def __init__(
        self,
        options: CaptureOptions,
        command: tuple[str, ...],
        *,
        say: Callable[[str], None],
        stop: Callable[[], None] | None,
    ) -> None:
        self.options = options
        self.command = command
        self.measured = Measured()
        self.notes: list[str] = []
        self.facts = ScriptFacts()
        self.torch_seen = False
        self.finder = StepFinder()
        self.choice = SourceChoice(options.step_on)
        self.plan: Plan | None = None
        self.foreign = ForeignProfilers(self._foreign_started)
        self.rank, self.num_ranks = rank_and_size()
        self.folder = CaptureFolder(options.output, rank=self.rank, num_ranks=self.num_ranks, force=options.force)
        self._say, self._stop = say, stop
        self._said: tuple[str, float] = ("", 0.0)
        self._owner = os.getpid()
        self._listening = True
        self._inside = False
        self._finished = False
        self._stops = 0
        self._undo: list[Undo] = []
        self._forward: Undo | None = None
        self._sampler: Sampler | None = None
        self._monitor: GpuMonitor | None = None
        self.gpus: list[dict[str, object]] = []
        self.precision: dict[str, object] = {}
        self.run_id = ""
        self.num_events = 0
        self.cwd = str(Path.cwd())
        self.started_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.listen_to_marks()

    def listen_to_marks(self) -> None:
        """Hear ``diagnose.step()``; needs no torch."""
        if self.options.step_on in ("auto", "marker"):
            self._undo.append(watch_marks(lambda origin: self._hear("marker", origin)))

    def arm(self) -> None:
        """Put hooks into torch once it is imported; a torch that takes none leaves the script alone."""
        self.torch_seen = True
        try:
            self._arm(self.options.step_on)
        except (ImportError, AttributeError) as error:
            self.notes.append(f"This torch could not be hooked into fully ({error}).")

    def _arm(self, wanted: str) -> None:
        self.foreign.watch()
        self._undo.append(self.foreign.forget)
        self._undo.append(watch_optimizers(self._optimizer_stepped, self._optimizer_made))
        self._undo.append(watch_loaders(self._batch_delivered, self._loader_opened))
        self._undo.append(watch_ddp(self.facts.watch_ddp))
        self._undo.append(watch_autocast(self.facts.autocast_entered))
        if wanted in ("auto", "forward"):
            # The hook exists between outermost calls only, so what it warns of cannot happen.
            warnings.filterwarnings("ignore", message=r"Using `torch.compile\(module\)` when there are global hooks")
            self._forward = watch_forward(lambda module: self._hear("forward", module))
            self._undo.append(self._forward)

    def _optimizer_made(self) -> None:
        self.choice.optimizer_exists = True
        self._leave_forward()

    def _optimizer_stepped(self, optimizer: object) -> None:
        if self._is_mine():
            self.facts.optimizer_stepped(optimizer)
            self._hear("optimizer", optimizer)

    def _loader_opened(self, loader: object, dataset: object) -> None:
        if self._is_mine():
            self.facts.loader_opened(loader, dataset)

    def _batch_delivered(self, dataset: object) -> None:
        if self._is_mine():
            self.facts.batch_delivered(dataset)
            self._hear("dataloader", dataset)

    def _leave_forward(self) -> None:
        """Stop hearing forward calls where a better source is in sight and nobody asked for them."""
        if self._forward is not None and self.options.step_on == "auto" and self.choice.chosen != "forward":
            self._forward()
            self._forward = None

    def _is_mine(self) -> bool:
        return self._listening and os.getpid() == self._owner  # a forked child must not capture

    def _hear(self, source: str, origin: object) -> None:
        """Take one event; on a step boundary run the plan, and stop the script when the plan is done."""
        if not self._is_mine() or self._inside:
            return
        self.num_events += 1
        self._inside = True
        try:
            done = self._hear_event(source, origin)
        finally:
            self._inside = False
        if done:
            self._leave_script()

    def _leave_script(self) -> None:
        """Stop the script on purpose; where it catches that time and again, let it finish."""
        if self._stop is None or self.options.keep_going or self._stops == MOST_STOPS:
            self._quieten()
            return
        self._stops += 1
        self._stop()

    def mark(self) -> None:
        """Take notice of a step boundary that a loop of ours marks."""
        if self._is_mine():
            self.boundary()

    def _hear_event(self, source: str, origin: object) -> bool:
        if not self.finder.locked and self.choice.hear(source, gradients=_gradients()):
            self.finder = StepFinder()
            self.plan = None
        if source != self.choice.chosen:
            return False
        ends_step, changed = self.finder.hear(id(origin))
        if changed:
            self.plan = None
        if ends_step:
            self.boundary()
        return self.plan is not None and self.plan.done

    def boundary(self) -> None:
        """Take notice of a step boundary."""
        if self.plan is None:
            self._begin()
        else:
            self.plan.boundary()
            if not self.plan.waiting and not self.finder.locked:
                self._lock()
            if self.plan.done:
                self._finished = True
                self._end_threads()
                if self._stop is None:
                    self._quieten()

    def _begin(self) -> None:
        """Start the plan at the first boundary of what is now taken for a step."""
        self.rank, self.num_ranks = rank_and_size()
        around = Surroundings(
            folder=lambda: self.folder.partial,
            prefix=f"rank{self.rank}",
            num_ranks=self.num_ranks,
            say=self.say,
            foreign_active=self.foreign.active,
            undecided=lambda: self.finder.undecided,
            compiled=_compiled_graphs,
            grown_mb=_resident_mb,
            sampling=self._sample,
            wrote=self._save,
        )
        self.measured = Measured()
        self.plan = Plan(self.options, around, self.measured)

    def _lock(self) -> None:
        """Fix what a step is, and take down what the script runs with while its objects are alive."""
        self.finder.locked = True
        self._leave_forward()
        self.facts.settle()
        self.gpus, self.precision = describe_gpus(), precision_flags()
        self.run_id = agree_on_run_id()
        if self.options.nvml and self._monitor is None:
            self._monitor = GpuMonitor([gpu for gpu in self.gpus if gpu["current"]], self.options.nvml_ms)
            self._monitor.start()

    def _sample(self, on: bool) -> None:  # a callback
        if not self.options.sampler:
            return
        if self._sampler is None:
            thread = threading.current_thread()
            self._sampler = Sampler(thread.ident or 0, thread.native_id or 0, self.options.sampler_ms)
        if on:
            self._sampler.start()
        else:
            self._sampler.stop()

    def _foreign_started(self) -> None:
        if self._is_mine():
            self.notes.append(f"The script runs a profiler of its own ({self.foreign.place}); it was left alone.")
            if self.plan is not None:
                self.plan.disturb()

    def _quieten(self) -> None:
        """Undo every hook and stop every thread: the script goes on as if nothing had been there."""
        self._listening = False
        while self._undo:
            self._undo.pop()()
        self._end_threads()

    def _end_threads(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()
        if self._monitor is not None:
            self._monitor.stop()

    def close(self) -> None:
        """End the capture wherever it is; a window that holds a whole step is kept."""
        self._inside = True
        try:
            if self.plan is not None:
                self.plan.close()
        finally:
            self._quieten()

    @property
    def complete(self) -> bool:
        """Return whether the plan came to its end."""
        return self.plan is not None and self._finished

    def say(self, text: str) -> None:
        """Pass a line on, but not the same kind of line many times a second."""
        kind, now = text.partition(":")[0], time.monotonic()
        if kind == self._said[0] and now - self._said[1] < SAY_EVERY:
            return
        self._said = (kind, now)
        if not self.options.quiet:
            self._say(text)

    def info(self, ended: str, exit_code: int | None) -> CaptureInfo:
        """Describe the capture as it stands."""
        from diagnose.capture.describe import describe

        return describe(self, ended, exit_code)

    def _save(self) -> None:
        """Write what there is, in case the process is killed before the end."""
        self._write("killed", None)

    def _write(self, ended: str, exit_code: int | None) -> None:
        if self._sampler is not None:
            self.folder.write_samples(self.samples_file, self._sampler.rows())
        self.folder.write_info(self.info(ended, exit_code))

    def publish(self, ended: str, exit_code: int | None) -> Path:
        """Write samples and description and move the folder into place."""
        self._write(ended, exit_code)
        return self.folder.publish()

    @property
    def all_notes(self) -> tuple[str, ...]:
        """Return the notes, each once."""
        return tuple(dict.fromkeys([*self.notes, *self.measured.notes]))

    @property
    def sampler_summary(self) -> Mapping[str, object]:
        """Return what CaptureInfo.sampler holds."""
        return self._sampler.summary() if self._sampler is not None else {}

    @property
    def nvml_summary(self) -> Mapping[str, object]:
        """Return what CaptureInfo.nvml holds."""
        return self._monitor.summary() if self._monitor is not None else {}

    @property
    def samples_file(self) -> str:
        """Return the name of the sampler's file, "" where it took no sample."""
        return f"rank{self.rank}.samples.json.gz" if self._sampler is not None else ""


def _gradients() -> bool:
    torch = sys.modules.get("torch")
    return torch is None or bool(torch.is_grad_enabled())


def _compiled_graphs() -> int:
    """Return how many graphs torch.compile has made so far."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["stats"].get("unique_graphs", 0))


def _resident_mb() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError):  # not Linux
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
