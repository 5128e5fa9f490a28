"""Two steps that are recorded as a program when memory grows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from diagnose.dataflow.graph import graph_of
from diagnose.dataflow.growth import piled_up
from diagnose.monitor.held_memory import HeldMemory, NamedHolder, held_memory
from diagnose.monitor.run_folder import Recorded

if TYPE_CHECKING:
    from diagnose.capture.dataflow.holders import Holder
    from diagnose.model.dataflow import Dataflow

__all__ = ["MEMORY_WORDS", "MemoryWindow"]

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
        memory: HeldMemory | None = None
        try:
            holders = self._window.holders()
            self._window.stop()
            memory = None if self._note else self._held(self._window.result(), holders)
        except Exception as error:
            self._fail(error)
        return replace(self._asked, note=self._note, memory=memory)

    def abandon(self) -> None:
        """End the recording, wherever the script is."""
        self._window.stop()

    def _held(self, flow: Dataflow, found: Sequence[Holder]) -> HeldMemory | None:
        if flow.num_steps < MEMORY_STEPS:
            self._note = " ".join(("Two whole steps were not recorded.", *flow.left_out))
            return None
        graph = graph_of(flow)
        lines = piled_up(graph)
        stored = {graph.values[value].storage for one in lines for value in one.values}
        holders = [one for one in found if one.keeps_graph or not stored.isdisjoint(one.storages)]
        running = {frame.function for operator in flow.operators for frame in operator.stack}
        return held_memory(lines, [_named(one, running) for one in sorted(holders, key=lambda one: -len(one.storages))])

    def _fail(self, error: Exception) -> None:
        self._note = f"The data flow could not be recorded: {type(error).__name__}: {error}."
        self._window.stop()


def _named(one: Holder, running: Collection[str]) -> NamedHolder:
    from diagnose.capture.dataflow.holders import storing_lines

    return NamedHolder(one.name, one.kind, one.num, one.keeps_graph, one.file, storing_lines(one, running))
