"""Windows that a long run records by itself: a capture of a few steps, and its diagnosis in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from diagnose.capture import CaptureOptions, Tracer
from diagnose.capture.steps.listener import Listener
from diagnose.errors import DiagnoseError

__all__ = ["Analysis", "Window", "WindowLimits", "folder_mb"]

WINDOW_STEPS = 5  # timed without a profiler, then with one; the steps are steady already
NICENESS = 10  # of the analysis: the training has precedence
MAX_ANALYSIS_S = 600.0  # that the end of a run waits for an analysis
ANALYSIS = "import os, sys; os.nice({nice}); from diagnose.cli.main import main; main()"
LAUNCHER_PREFIXES = ("TORCHELASTIC_", "OMPI_", "PMI_", "PMIX_", "SLURM_", "MV2_")
LAUNCHER_NAMES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """What the windows of one run may take."""

    count: int = 5
    total_mb: float = 500.0  # on disk, all of them together
    each_mb: float = 100.0  # of trace, before compression
    seconds: float = 120.0  # of one window


class Window:
    """One window: ``step`` at every boundary until it returns true, then ``finish``."""

    def __init__(
        self, folder: Path, why: str, listener: Listener, command: tuple[str, ...], limits: WindowLimits
    ) -> None:
        self.folder, self.why = folder, why
        self.step_number = 0  # at which it was begun
        options = CaptureOptions(
            output=folder, steps=WINDOW_STEPS, skip=0, max_seconds=limits.seconds, max_mb=limits.each_mb,
            dataflow=False, quiet=True,
        )  # fmt: skip
        self._tracer = Tracer(options, listener=listener, command=command)
        self._tracer.__enter__()

    def step(self) -> bool:
        """End a step; return whether everything is recorded."""
        self._tracer.step()
        return self._tracer.done

    def finish(self) -> str:
        """Write the capture; return why nothing came of it, or "" where something did."""
        try:
            self._tracer.__exit__(None, None, None)
        except DiagnoseError as error:
            return str(error)
        self.folder = self._tracer.folder or self.folder
        return ""


class Analysis:
    """A diagnosis that is made beside the training."""

    def __init__(self, capture: Path) -> None:
        self.capture = capture
        self.text = capture.with_name(f"{capture.name}.txt")
        page, data = (str(capture.with_name(f"{capture.name}.{suffix}")) for suffix in ("html", "json"))
        arguments = ["analyze", str(capture), "--html", page, "-o", data, "-q"]
        with self.text.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", ANALYSIS.format(nice=NICENESS), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=capture.parent,
                env=_environment(),
                start_new_session=True,  # Ctrl-C is for the training; the diagnosis is nearly there
            )

    @property
    def over(self) -> bool:
        """Return whether the process has ended."""
        return self._process.poll() is not None

    def outcome(self) -> str:
        """Return the headline of the diagnosis and where it is, or that there is none."""
        try:
            headline = json.loads(self.capture.with_name(f"{self.capture.name}.json").read_text())["headline"]
        except (OSError, ValueError, KeyError):
            return f"the window could not be diagnosed: {self.text}"
        return f"{self.capture.name}: {headline} ({self.text.with_suffix('.html')})"

    def wait(self, report: Callable[[str], None]) -> None:
        """Wait for the end, within bounds; one that takes longer goes on alone."""
        if not self.over:
            report("waiting for the diagnosis of the last window")
        try:
            self._process.wait(MAX_ANALYSIS_S)
        except subprocess.TimeoutExpired:
            report(f"the diagnosis goes on: {self.text}")


def folder_mb(folder: Path) -> float:
    """Return what the files of a folder take, MB."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def _environment() -> dict[str, str]:
    """Return the environment without what makes a process one of several ranks."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in LAUNCHER_NAMES and not name.startswith(LAUNCHER_PREFIXES)
    }
