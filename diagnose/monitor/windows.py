"""Windows that a long run records by itself: a capture of a few steps, and its diagnosis in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.capture import CaptureOptions, Tracer
from diagnose.capture.steps.listener import Listener
from diagnose.dataflow.graph import graph_of
from diagnose.dataflow.growth import PiledUp, held_words, piled_up
from diagnose.errors import DiagnoseError
from diagnose.monitor.run_folder import HeldLine, HeldMemory, NamedHolder, Recorded
from diagnose.text.numbers import enumeration

if TYPE_CHECKING:
    from diagnose.model.dataflow import Dataflow
    from diagnose.monitor.holders import Holder


# Two steps that are recorded as a program when memory grows.

MEMORY_STEPS = 2  # the second shows what the first one leaves
MEMORY_WORDS = f"the values of {MEMORY_STEPS} steps"


class MemoryWindow:
    """Records from one step boundary on: ``step`` at every boundary until it returns true, then ``finish``.

    What goes wrong ends the recording, and becomes its note.
    """

    def __init__(self, asked: Recorded) -> None:
        from diagnose.capture.dataflow.window import DataflowWindow  # needs torch, which is the script's to import

        self._asked, self._note = asked, ""
        self._window: DataflowWindow = DataflowWindow()
        try:
            self._window.start()
        except Exception as error:
            self._fail(error)

    def step(self) -> bool:
        """End a step; return whether everything is recorded."""
        self._window.end_step()
        return self._window.num_steps >= MEMORY_STEPS or not self._window.is_recording

    def finish(self) -> Recorded:
        """End the recording at a step boundary, and return what it shows."""
        from diagnose.monitor.holders import holders  # needs torch

        memory: HeldMemory | None = None
        try:
            found = holders(self._window)
            self._window.stop()
            memory = None if self._note else self._held(self._window.result(), found)
        except Exception as error:
            self._fail(error)
        return replace(self._asked, note=self._note, memory=memory)

    def abandon(self) -> None:
        """End the recording, wherever the script is."""
        self._window.stop()

    def _held(self, flow: Dataflow, found: Sequence[Holder]) -> HeldMemory | None:
        from diagnose.monitor.holders import storing_lines

        if flow.num_steps < MEMORY_STEPS:
            self._note = " ".join(("Two whole steps were not recorded.", *flow.left_out))
            return None
        graph = graph_of(flow)
        lines = piled_up(graph)
        stored = {graph.values[value].storage for one in lines for value in one.values}
        holders = [one for one in found if one.keeps_graph or not stored.isdisjoint(one.storages)]
        running = {frame.function for operator in flow.operators for frame in operator.stack}
        named = [
            NamedHolder(one.name, one.kind, one.num, one.keeps_graph, one.file, storing_lines(one, running))
            for one in sorted(holders, key=lambda one: -len(one.storages))
        ]
        return held_memory(lines, named)

    def _fail(self, error: Exception) -> None:
        self._note = f"The data flow could not be recorded: {type(error).__name__}: {error}."
        self._window.stop()


def held_memory(lines: Sequence[PiledUp], holders: Sequence[NamedHolder]) -> HeldMemory:
    """Return the lines that make most of what stays and the variables that hold it, and the sentences on both."""
    named = tuple(holders[:5])
    held = []
    for one in lines[:20]:
        file, line = (one.line.file, one.line.line) if one.line is not None else ("", 0)
        held.append(HeldLine(file, line, one.num_values, one.num_bytes))
    return HeldMemory(_words(lines, named), tuple(held), named)


def _words(lines: Sequence[PiledUp], holders: Sequence[NamedHolder]) -> str:
    if not lines and not holders:
        return "No tensor that one step made is still held after the next one: what grows is not made of tensors."
    texts = [held_words(lines)] if lines else []
    texts += map(_sentence, holders)
    if not holders:
        texts.append("No variable of the script was found that holds them.")
    return " ".join(texts)


def _sentence(one: NamedHolder) -> str:
    kind = f"a {one.kind} of {one.members:,}" if one.kind != "Tensor" else "a tensor"
    text = f"They are held by {one.name}, {kind}" if not one.keeps_graph else f"{one.name}, {kind}, keeps their graph"
    if one.lines:
        lines = "line" if len(one.lines) == 1 else "lines"
        text += f"; {lines} {enumeration([str(line) for line in one.lines])} of {one.file.rpartition('/')[2]} "
        text += "stores into it" if len(one.lines) == 1 else "store into it"
    return f"{text}: store detached values." if one.keeps_graph else f"{text}."


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

    def left(self, folder: Path, num_windows: int) -> tuple[WindowLimits, str]:
        """Return what one more window of a run may take, and why there can be none; "" if there can."""
        used_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if num_windows else 0
        left_mb = self.total_mb - used_bytes / 1e6
        bound = f"{self.count} windows" if num_windows >= self.count else f"{self.total_mb:g} MB"
        why = f"Not recorded: the limit of {bound} is reached." if num_windows >= self.count or left_mb <= 0 else ""
        return replace(self, each_mb=min(self.each_mb, left_mb)), why


class Window:
    """One window: ``step`` at every boundary until it returns true, then ``finish``."""

    def __init__(
        self, asked: Recorded, folder: Path, listener: Listener, command: tuple[str, ...], limits: WindowLimits
    ) -> None:
        self._asked, self._folder = asked, folder
        options = CaptureOptions(
            # Timed without a profiler, then with one; the steps are steady already.
            output=folder, steps=5, skip=0, max_seconds=limits.seconds, max_mb=limits.each_mb,
            dataflow=False, quiet=True,
        )  # fmt: skip
        self._tracer = Tracer(options, listener=listener, command=command)
        self._tracer.__enter__()

    def step(self) -> bool:
        """End a step; return whether everything is recorded."""
        self._tracer.step()
        return self._tracer.done

    def finish(self) -> Recorded:
        """Write the capture; the note is why nothing came of it."""
        try:
            self._tracer.__exit__(None, None, None)
        except DiagnoseError as error:
            return replace(self._asked, note=str(error))
        return replace(self._asked, folder=(self._tracer.folder or self._folder).name)

    def abandon(self) -> None:
        """Leave the recording to its own bounds."""


class Analysis:
    """A diagnosis that is made beside the training."""

    def __init__(self, capture: Path) -> None:
        self.capture = capture
        self.text = capture.with_name(f"{capture.name}.txt")
        page, data = (str(capture.with_name(f"{capture.name}.{suffix}")) for suffix in ("html", "json"))
        arguments = ["analyze", str(capture), "--html", page, "-o", data, "-q"]
        with self.text.open("wb") as output:
            # The environment without what makes a process one of several ranks.
            environment = {
                name: value
                for name, value in os.environ.items()
                if name not in LAUNCHER_NAMES and not name.startswith(LAUNCHER_PREFIXES)
            }
            self._process = subprocess.Popen(
                # The training has precedence.
                [sys.executable, "-c", ANALYSIS.format(nice=10), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=capture.parent,
                env=environment,
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
            # So long the end of a run waits.
            self._process.wait(600.0)
        except subprocess.TimeoutExpired:
            report(f"the diagnosis goes on: {self.text}")
