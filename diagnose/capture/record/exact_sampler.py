"""Samples a thread from outside, by the process that reads its frames in memory, into what was taken so far.

The thread is seen at what it executes, also inside a call of C that keeps the interpreter's lock, and is not held up.
"""

from __future__ import annotations

import dis
import threading
from array import array

from diagnose.capture.frames.stretch import Order, Rows
from diagnose.capture.record.other_threads import OWN_THREADS, WAITING
from diagnose.capture.record.sampler import LIBRARIES, MAX_CPU_SHARE, MAX_SAMPLES
from diagnose.capture.record.sampler_process import LostError, SamplerProcess
from diagnose.capture.record.taken import Taken

__all__ = ["ExactSampler"]

METHOD = "memory"
# Of a core, while a window is sampled: it holds nothing up. A sample costs 0.05 ms where it follows the one before at
# once, but 0.1 to 0.3 ms on virtual machines, where the process wakes up with cold caches.
MAX_WINDOW_CPU_SHARE = 0.05
SHIM = "<shim>"  # the file of frames in which C calls into Python
# Instructions at which threads take turns: of loops and at the beginnings of functions.
_TURNS = tuple(
    number
    for number, name in enumerate(getattr(dis, "_all_opname", dis.opname))
    if "JUMP" in name or name.startswith("RESUME")
)


class ExactSampler:
    """Samples into ``taken`` as long as the process does not fail."""

    def __init__(self, process: SamplerProcess, taken: Taken) -> None:
        self._process, self._taken = process, taken
        self._runs = False
        self._places: list[int] = []  # of the stretch: their rows

    def start(self) -> bool:
        """Begin a stretch; return False where the process cannot sample."""
        taken = self._taken
        if self._runs or self._left <= 0:
            return True
        if not self._process.attach((*LIBRARIES, SHIM)):
            taken.fallback = self._process.failure
            return False
        window = taken.depth == 1
        own = (thread.ident or 0 for thread in threading.enumerate() if thread.name.startswith(OWN_THREADS))
        order = Order(
            ident=taken.thread_id,
            native_id=taken.native_id,
            period_ns=int(taken.period_ms * 1e6),
            depth=taken.depth,
            max_share=MAX_WINDOW_CPU_SHARE if window else MAX_CPU_SHARE,
            max_samples=self._left,
            others=window,
            left_out=tuple(own),
            waiting=WAITING,
            turns=_TURNS,
        )
        try:
            answer = self._process.ask("begin", *order)
        except LostError as error:
            answer = ("failed", str(error))
        if answer[0] == "failed":
            taken.fallback = str(answer[1])
            return False
        taken.method, self._runs = METHOD, True
        self._places.clear()
        taken.begin()
        return True

    def stop(self) -> None:
        """End the stretch; does nothing where none is under way."""
        if self._runs:
            self._add("end")
            self._runs = False
            self._taken.end()

    def collect(self) -> None:
        """Fetch what was sampled so far."""
        if self._runs:
            self._add("take")

    @property
    def _left(self) -> int:
        return MAX_SAMPLES - len(self._taken.time_ns)

    def _add(self, question: str) -> None:
        try:
            kind, *rest = self._process.ask(question)
        except LostError as error:
            self._taken.fallback = str(error)
            return
        if kind != "rows":
            return
        rows, taken = Rows(*rest), self._taken
        self._places += [taken.row_of(place) for place in rows.places]
        taken.time_ns += array("q", rows.time_ns)
        taken.place += [self._places[row] for row in array("i", rows.place)]
        taken.running += array("b", rows.running)
        taken.cost_ns += rows.cost_ns
        if taken.others is not None:
            for each in rows.others:
                taken.others.add(*each)
