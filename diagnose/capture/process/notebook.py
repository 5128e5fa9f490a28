"""Captures a loop or a step function from Python, without a script of its own."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import TracebackType

from diagnose.capture.options import MAX_MB, CaptureOptions
from diagnose.capture.process.failure_messages import progress_made
from diagnose.capture.process.run import Progress, silence_kineto
from diagnose.capture.record.folder import name_cells
from diagnose.capture.record.session import Session
from diagnose.capture.steps.listener import Listener
from diagnose.errors import CaptureError

__all__ = ["Tracer", "capture_steps"]


class Tracer:
    """Captures the loop inside its ``with`` block; ``step()`` ends each step.

    ``done`` turns true once everything is captured: the loop may go on, or break. After the block ``folder`` is
    the capture. If the block raises, what was captured is still written and the exception goes on. With a ``listener``
    that hooks into torch already, that one is used, and left installed.

    Raises (at the end of the block):
        CaptureError: too few steps.
        OutputError: the folder cannot be written.
    """

    def __init__(
        self,
        options: CaptureOptions | None = None,
        *,
        progress: Progress | None = None,
        command: tuple[str, ...] = (),
        listener: Listener | None = None,
    ) -> None:
        self._temporary: Path | None = None
        if options is None:
            options = CaptureOptions(output=_temporary_folder())
            self._temporary = options.output.parent
        self.options = replace(options, step_on="marker")
        self._command, self._listener = command, listener
        self.folder: Path | None = None
        self._report: Callable[[str], None] = progress.report if progress is not None else lambda _text: None
        self._session: Session | None = None

    def __enter__(self) -> Tracer:
        silence_kineto()
        import_module("torch")  # the session hooks into it
        self._session = Session(self.options, self._command, report=self._report, stop=None, listener=self._listener)
        self._session.install()
        if self._listener is None:
            self._session.listener.choice.chosen = "marker"
        self._session.mark()
        return self

    @property
    def done(self) -> bool:
        """Return whether everything is captured."""
        return self._session is not None and self._session.complete

    def step(self) -> None:
        """End a step."""
        if self._session is not None and not self._session.complete:
            self._session.mark()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session = self._session
        if session is None:
            return
        session.close()
        if session.measured.files:
            ended = "finished" if error is None else "raised"
            session.note_what_is_missing()
            session.publish(ended, None)
            self.folder = session.folder.target
            name_cells(self.folder)
            return
        session.folder.discard()
        if self._temporary is not None:
            with contextlib.suppress(OSError):
                self._temporary.rmdir()
        if error is None and session.measured.notes and session.complete:
            raise CaptureError(f"No step was captured: {' '.join(session.all_notes)}")
        if error is None:
            raise CaptureError(
                f"No step was captured: the loop ended {progress_made(session)}. "
                "Call step() once per step, run more steps, or wait less with skip=2, steps=2."
            )


def capture_steps(
    step_fn: Callable[[], object],
    *,
    steps: int | None = None,
    skip: int | None = None,
    output: Path | None = None,
    max_seconds: float = 300.0,
    max_mb: float = MAX_MB,
    quick: bool = False,
    dataflow: bool = True,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Call ``step_fn`` until enough steps of it are captured; return the capture folder.

    Raises:
        UsageError: a bound that makes no sense.
        OutputError: the folder cannot be written.
    """
    options = CaptureOptions(
        output=output or _temporary_folder(), steps=steps, skip=skip, step_on="marker",
        max_seconds=max_seconds, max_mb=max_mb, quick=quick, dataflow=dataflow, force=force,
    )  # fmt: skip
    tracer = Tracer(options, progress=progress)
    with tracer:
        while not tracer.done:
            step_fn()
            tracer.step()
    if tracer.folder is None:  # __exit__ has raised
        raise CaptureError("No step was captured.")
    return tracer.folder


def _temporary_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="diagnose-")) / "capture"
