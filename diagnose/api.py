"""The Python face: diagnose a step function, a loop of one's own, or a trace that exists already."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from diagnose.capture.options import MAX_MB, CaptureOptions
from diagnose.errors import DiagnoseError
from diagnose.model.diagnosis import (
    Diagnosis,
    Finding,
    Partition,
    Prescription,
    Queue,
    RankSummary,
    Renderers,
    Trial,
    Where,
    bind_renderers,
)
from diagnose.model.events import Note
from diagnose.text.code_places import line_of, place_of
from diagnose.text.progress import Progress
from diagnose.trials.in_process import prove

__all__ = [
    "Diagnosis",
    "Finding",
    "Note",
    "Partition",
    "Prescription",
    "Queue",
    "RankSummary",
    "Tracing",
    "Trial",
    "Where",
    "analyze",
    "analyze_trace",
    "prove",
    "trace",
    "watch",
]

if TYPE_CHECKING:
    from diagnose.monitor.long_run import Watch

AnyPath: TypeAlias = "str | PathLike[str]"

STEPS = 10  # as the command has it
MAX_SECONDS = 300.0


def analyze(
    step_fn: Callable[[], object],
    *,
    steps: int = STEPS,
    skip: int | None = None,
    max_seconds: float = MAX_SECONDS,
    max_mb: float = MAX_MB,
    quick: bool = False,
    dataflow: bool = True,
    capture: AnyPath | None = None,
    force: bool = False,
    quiet: bool = True,
) -> Diagnosis:
    """Call ``step_fn`` until enough steady steps of it are recorded, and diagnose them.

    Args:
        step_fn: Runs one step; everything it needs is bound to it.
        steps: Steps to record, after the step times have settled.
        skip: Most steps to wait for that; None leaves the choice to diagnose.
        max_seconds: Bound of the whole recording.
        max_mb: Bound of the recorded traces, MB of JSON.
        quick: Record one short window of at most 4 seconds, without stacks.
        dataflow: Also record which values two steps compute and use.
        capture: Folder to keep the recording in; None keeps nothing.
        force: Replace an earlier capture in that folder.
        quiet: Show no progress on standard error.

    Raises:
        UsageError: a bound makes no sense.
        OutputError: the folder cannot be written.
        CaptureError: nothing was recorded.
    """
    from diagnose.capture import capture_steps

    with _folder(capture) as folder:
        written = capture_steps(
            step_fn,
            steps=steps,
            skip=skip,
            output=folder,
            max_seconds=max_seconds,
            max_mb=max_mb,
            quick=quick,
            dataflow=dataflow,
            force=force,
            progress=Progress(quiet=quiet),
        )
        diagnosis = analyze_trace(written)
    return diagnosis if capture is not None else _recorded_from(diagnosis, place_of(step_fn))


def analyze_trace(*paths: AnyPath) -> Diagnosis:
    """Diagnose traces of torch.profiler or capture folders; several are the ranks of one run.

    Raises:
        InputError: a path cannot be read or holds no trace.
    """
    from diagnose.pipeline.run import analyze_paths

    return analyze_paths(paths)


class Tracing:
    """What ``diagnose.trace()`` returns: a block whose loop calls ``step()`` at the end of each step.

    ``done`` turns true when enough is recorded; the loop may go on or stop. The diagnosis is there after the block.
    """

    def __init__(
        self, options: Callable[[Path], CaptureOptions], capture: AnyPath | None, *, quiet: bool, place: str = ""
    ) -> None:
        self._options, self._place = options, place
        self._capture = capture
        self._progress = Progress(quiet=quiet)
        self._diagnosis: Diagnosis | None = None

    def __enter__(self) -> Tracing:
        from diagnose.capture import Tracer

        self._holder = _folder(self._capture)
        folder = self._holder.__enter__()
        try:
            self._tracer = Tracer(self._options(folder), progress=self._progress)
            self._tracer.__enter__()
        except BaseException:
            self._holder.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._tracer.__exit__(kind, error, traceback)
            if self._tracer.folder is not None:
                self._diagnosis = self._analyzed(self._tracer.folder, failing=error is not None)
        finally:
            self._holder.__exit__(None, None, None)

    def step(self) -> None:
        """End a step."""
        self._tracer.step()

    @property
    def done(self) -> bool:
        """Return whether everything is recorded."""
        return self._tracer.done

    @property
    def diagnosis(self) -> Diagnosis:
        """Return the diagnosis.

        Raises:
            DiagnoseError: the block is not over, or ended before a step was recorded.
        """
        if self._diagnosis is None:
            raise DiagnoseError(
                "There is no diagnosis yet: it is made at the end of the with block, from recorded steps."
            )
        return self._diagnosis

    def _analyzed(self, folder: Path, *, failing: bool) -> Diagnosis | None:
        """Diagnose; while the user's own exception is on its way, a failure here must not take its place."""
        try:
            diagnosis = analyze_trace(folder)
        except DiagnoseError:
            if failing:
                return None
            raise
        return diagnosis if self._capture is not None or not self._place else _recorded_from(diagnosis, self._place)


def trace(
    *,
    steps: int = STEPS,
    skip: int | None = None,
    max_seconds: float = MAX_SECONDS,
    max_mb: float = MAX_MB,
    quick: bool = False,
    dataflow: bool = True,
    capture: AnyPath | None = None,
    force: bool = False,
    quiet: bool = True,
) -> Tracing:
    """Record the loop inside a ``with`` block; see `analyze` for the arguments.

    Example::

        with diagnose.trace() as t:
            for batch in loader:
                train_step(batch)
                t.step()
        t.diagnosis.print()

    Raises:
        UsageError: a bound makes no sense.
        OutputError, CaptureError: at the end of the block, as `analyze`.
    """

    def options(folder: Path) -> CaptureOptions:
        return CaptureOptions(
            output=folder, steps=steps, skip=skip, step_on="marker", max_seconds=max_seconds, max_mb=max_mb,
            quick=quick, dataflow=dataflow, force=force, quiet=quiet,
        )  # fmt: skip

    options(Path())  # refuses at the call what makes no sense
    return Tracing(options, capture, quiet=quiet, place=line_of(sys._getframe(1)))


def watch(
    name: str = "run",
    *,
    every: int = 50,
    slow: float = 0.2,
    folder: AnyPath = "diagnose-runs",
    windows: int = 5,
    max_mb: float = 500.0,
    dataflow: bool = True,
    prometheus: str | int = "",
    quiet: bool = False,
) -> Watch:
    """Watch a long run: a row of times and memory per ``every`` steps, a diagnosed window where it becomes slower.

    Example::

        with diagnose.watch("resnet") as w:
            for batch in loader:
                train_step(batch)
                w.step()

    Args:
        name: Of the run: what ``diagnose watch --list`` compares.
        every: Steps of a row.
        slow: Share by which steps become slower than the run's own first ones before a window is recorded.
        folder: Where runs are kept.
        windows: Most windows to record.
        max_mb: Bound of what the windows take on disk, MB.
        dataflow: Record the values of two steps when memory grows, and name what holds them.
        prometheus: Port, or "ADDRESS:PORT", at which metrics are served for Prometheus; a port alone is the loopback's.
        quiet: Show no progress on standard error.

    Raises:
        UsageError: a bound makes no sense.
        InputError: metrics are asked for and their client library is not installed.
        OutputError: the folder of the run cannot be made, or the port cannot be served at.
    """
    from diagnose.monitor.long_run import Watch
    from diagnose.monitor.watch_options import WatchOptions
    from diagnose.monitor.windows import WindowLimits

    options = WatchOptions(
        name=name,
        every=every,
        slow=slow,
        folder=Path(folder),
        step_on="marker",
        dataflow=dataflow,
        limits=WindowLimits(count=windows, total_mb=max_mb),
        prometheus=str(prometheus),
    )
    return Watch(options, command=tuple(sys.argv), report=Progress(quiet=quiet).report)


def _recorded_from(diagnosis: Diagnosis, place: str) -> Diagnosis:
    """Return the diagnosis with the recorded code as its source: the recording itself is gone."""
    return replace(diagnosis, source=replace(diagnosis.source, path=place))


@contextmanager
def _folder(keep: AnyPath | None) -> Iterator[Path]:
    """Give the folder to record into: the user's, which stays, or one that is gone afterwards."""
    if keep is not None:
        yield Path(keep)
        return
    with tempfile.TemporaryDirectory(prefix="diagnose-") as temporary:
        yield Path(temporary) / "capture"


def _html(diagnosis: Diagnosis) -> str:
    from diagnose.reports import html

    return html.render(diagnosis)


def _notebook(diagnosis: Diagnosis) -> str:
    from diagnose.reports import notebook

    return notebook.render(diagnosis, diagnosis.pages)


def _json(diagnosis: Diagnosis) -> str:
    from diagnose.reports import json

    return json.render(diagnosis)


def _text(diagnosis: Diagnosis) -> str:
    from diagnose.reports.text import terminal_text

    return terminal_text(diagnosis)


def _figure(diagnosis: Diagnosis, name: str) -> Any:
    from diagnose.reports.figures import figure

    return figure(diagnosis, name)


def _figures(diagnosis: Diagnosis) -> dict[str, Any]:
    from diagnose.reports.figures import figures

    return figures(diagnosis)


bind_renderers(Renderers(_html, _notebook, _json, _text, _figure, _figures))
