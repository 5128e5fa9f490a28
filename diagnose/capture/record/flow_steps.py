"""Two steps that are recorded as a program, after the windows: what goes wrong here ends them, never the script."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import TYPE_CHECKING

from diagnose.capture.record.measurements import Measurements, PlanHooks
from diagnose.capture.record.window import packed
from diagnose.model.files import reason, replace_private

if TYPE_CHECKING:
    from diagnose.capture.dataflow.window import DataflowWindow

__all__ = ["FLOW_STEPS", "FlowSteps"]

FLOW_STEPS = 2  # the second shows what is the same in every step


class FlowSteps:
    """Holds the window while it is open."""

    def __init__(self, hooks: PlanHooks, measured: Measurements) -> None:
        self._hooks, self._measured = hooks, measured
        self._window: DataflowWindow | None = None

    @property
    def is_open(self) -> bool:
        """Return whether a step is being recorded, or was until it was cut."""
        return self._window is not None

    def cut(self) -> None:
        """Record no more, inside a step."""
        if self._window is not None:
            self._window.pause()

    def record(self) -> Generator[None, int, None]:
        """Record the steps and write them; every rank lets as many pass, whatever goes wrong on it."""
        self._hooks.report(f"recording {FLOW_STEPS} steps as a program")
        window = self._window = None if self._hooks.other_active() else self._started()
        try:
            for _ in range(FLOW_STEPS):
                yield
                if window is not None:
                    window.end_step()
        finally:
            self._window = None
            if window is not None:
                self._finish(window)
        self._load_samples()

    def _load_samples(self) -> None:
        """Load some samples of the training loader's again, in another process."""
        loader = self._hooks.training_loader()
        if loader is None or self._hooks.other_active():
            return
        from diagnose.capture.samples.replay import load_again

        self._hooks.report("loading some samples again")
        try:
            self._measured.loaded = load_again(loader)
        except Exception as error:
            self._measured.notes.append(f"Samples could not be loaded again: {type(error).__name__}.")
        if self._measured.loaded.left_out:
            self._measured.notes.append(self._measured.loaded.left_out)

    def _started(self) -> DataflowWindow | None:
        window = None
        try:
            from diagnose.capture.dataflow.window import DataflowWindow  # needs torch, which is the script's to import

            window = DataflowWindow()
            window.start()
        except Exception as error:
            self._note(error)
            if window is not None:
                window.stop()
            return None
        return window

    def _finish(self, window: DataflowWindow) -> None:
        from diagnose.model.dataflow_file import dataflow_rows

        name = f"{self._hooks.prefix}.dataflow.json.gz"
        try:
            window.stop()
            flow = window.result(rank=int(self._hooks.prefix.removeprefix("rank")))
            if not flow.num_steps:
                self._measured.notes += [f"No data flow was recorded. {sentence}" for sentence in flow.left_out]
                return
            self._hooks.report(f"writing {name}")
            replace_private(self._hooks.folder / name, packed(json.dumps(dataflow_rows(flow)).encode()))
        except Exception as error:
            self._note(error)
            return
        self._measured.dataflow_file = name
        self._hooks.wrote()

    def _note(self, error: Exception) -> None:
        why = reason(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}."
        self._measured.notes.append(f"The data flow could not be recorded: {why}")
