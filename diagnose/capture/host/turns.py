"""How often statements ran, and in how many of their turns others that read what they make."""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

from diagnose.capture.host.flat import Place
from diagnose.capture.host.unread import Unread
from diagnose.model.limits import FEWEST
from diagnose.model.records import UnreadRecord


class TurnCount:
    """Counts from ``start`` to ``stop``, of the stepping thread; leaves it alone if somebody traces it already.

    ``sampled`` are lines that take time: counting goes on until their statements have had some turns.
    """

    def __init__(self, found: Sequence[Unread], trees: Mapping[str, ast.Module], sampled: Iterable[Place] = ()) -> None:
        self._found = found
        self._statements = dict(_lines(trees, {each for one in found for each in (*one.first, *one.readers)}))
        take_time = {self._statements.get(place) for place in sampled}
        self._awaited = [i for i, one in enumerate(found) if one.first[-1] in take_time]
        self._files = {file for file, _ in self._statements}
        self._made = [0] * len(found)
        self._in_steps = [set[int]() for _ in found]
        self._read = [set[int]() for _ in found]
        self._steps = 0
        self._codes: dict[CodeType, bool] = {}
        self._latest: dict[int, Place | None] = {}  # by frame: the statement that runs
        self._outer: list[FrameType] = []
        self._is_on = False
        self._ends_ns = 0

    def start(self) -> None:
        """Begin, at a step boundary."""
        if not self._found or sys.gettrace() is not None:
            return
        # Until a statement that takes time now and then has had so many.
        self._is_on, self._ends_ns = True, time.perf_counter_ns() + 15_000_000_000
        sys.settrace(self._entered)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_trace is None and self._is_watched(frame.f_code):
                frame.f_trace = self._event
                self._outer.append(frame)
            frame = frame.f_back

    def end_step(self, least: int) -> bool:
        """Take notice that a step is over; return whether enough is known, after ``least`` steps at least."""
        self._steps += 1
        late = time.perf_counter_ns() > self._ends_ns
        return not self._is_on or late or (self._steps >= least and all(self._made[i] >= FEWEST for i in self._awaited))

    def stop(self) -> tuple[UnreadRecord, ...]:
        """End, and return what ran in these steps."""
        if not self._is_on:
            return ()
        self._is_on = False
        if sys.gettrace() == self._entered:
            sys.settrace(None)
        for frame in self._outer:
            if frame.f_trace == self._event:
                frame.f_trace = None
        self._outer.clear()
        every = zip(self._found, self._made, self._read, self._in_steps, strict=True)
        return tuple(
            UnreadRecord(
                chains=one.chains, first=one.first, names=one.names, readers=one.readers,
                after=one.after, early=one.early,
                made=made, read=len(read), in_steps=len(steps), steps=self._steps,
            )
            for one, made, read, steps in every if made
        )  # fmt: skip

    def _is_watched(self, code: CodeType) -> bool:
        known = self._codes.get(code)
        if known is None:
            lines = (line for *_, line in code.co_lines() if line is not None)
            known = code.co_filename in self._files and any(
                (code.co_filename, line) in self._statements for line in lines
            )
            self._codes[code] = known
        return known

    def _entered(self, frame: FrameType, _event: str, _given: Any) -> Any:
        if not self._is_on or not self._is_watched(frame.f_code):
            return None
        self._latest[id(frame)] = None
        return self._event

    def _event(self, frame: FrameType, event: str, _given: Any) -> Any:
        if event == "line" and self._is_on:
            at = self._statements.get((frame.f_code.co_filename, frame.f_lineno))
            if at is not None and at != self._latest.get(id(frame)):
                self._ran(at)
            self._latest[id(frame)] = at
        elif event == "return":
            self._latest.pop(id(frame), None)
        return self._event

    def _ran(self, at: Place) -> None:
        for i, one in enumerate(self._found):
            if at == one.first[-1]:
                self._made[i] += 1
                self._in_steps[i].add(self._steps)
            if at in one.readers:
                self._read[i].add(self._made[i])


def _lines(trees: Mapping[str, ast.Module], wanted: set[Place]) -> list[tuple[Place, Place]]:
    """Return the lines of some statements, of those with a body the lines of the head, with their first one."""
    found = list[tuple[Place, Place]]()
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.stmt) and (file, node.lineno) in wanted:
                body = getattr(node, "body", None)
                last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
                found += [((file, line), (file, node.lineno)) for line in range(node.lineno, last + 1)]
    return found
