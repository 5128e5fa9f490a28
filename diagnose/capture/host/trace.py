"""Watches single instructions of the stepping thread: how long the expressions of hot lines take, and on what."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from inspect import CO_OPTIMIZED
from types import CodeType, FrameType
from typing import Any

from diagnose.capture.host.calls import HostCalls, Place
from diagnose.capture.host.expressions import Points, points_of, seen_at
from diagnose.capture.host.results import HostResults
from diagnose.model.records import HostRecord

MAX_EVENTS = 200_000  # lines and instructions, each of which takes one or two microseconds
ENOUGH = 512  # of these, after which a function whose expressions take next to nothing is left alone


class HostTrace:
    """Watches from ``start`` to ``stop``; leaves a thread alone that somebody traces already.

    A frame of the script is given a trace function, as a debugger gives it; nothing of it is changed.
    """

    def __init__(self, lines: Iterable[tuple[str, int]]) -> None:
        self._lines: dict[str, set[int]] = {}
        for file, line in lines:
            self._lines.setdefault(file, set()).add(line)
        self._points: dict[CodeType, Points] = {}
        self._calls, self._results = HostCalls(), HostResults()
        self._events: Counter[CodeType] = Counter()
        self._open: dict[int, tuple[Place, int, int]] = {}  # by frame: expression, and both clocks at its start
        self._left = MAX_EVENTS
        self._outer: list[FrameType] = []
        self._is_on = False

    def start(self) -> None:
        """Begin, at a step boundary."""
        # Before 3.11 an instruction's expression is not known.
        if not self._lines or sys.gettrace() is not None or sys.version_info < (3, 11):
            return
        self._is_on = True
        sys._getframe().f_trace_opcodes = True  # Python 3.12 must know before it traces that a frame asks for it
        sys.settrace(self._entered)
        for frame in _frames_of(sys._getframe(1)):  # functions that run already
            if frame.f_trace is None and self._points_in(frame.f_code).by_offset:
                self._watch(frame)
                self._outer.append(frame)

    def end_step(self) -> None:
        """Take notice that a step is over."""
        self._calls.step += 1

    def stop(self) -> HostRecord:
        """End, and return what was seen in whole steps."""
        if not self._is_on:
            return HostRecord()
        self._is_on, self._left = False, 0
        if sys.gettrace() == self._entered:
            sys.settrace(None)
        for frame in self._outer:
            if frame.f_trace == self._event:
                frame.f_trace = None
                frame.f_trace_opcodes = False
            # Until 3.12 a function's frame keeps what its variables were when they were read.
            if sys.version_info < (3, 13) and frame.f_code.co_flags & CO_OPTIMIZED:
                frame.f_locals.clear()
        self._outer.clear()
        self._open.clear()
        steps = self._calls.step
        if not steps:
            return HostRecord()
        return HostRecord(steps=steps, calls=self._calls.records(), same_results=self._results.records())

    def _points_in(self, code: CodeType) -> Points:
        known = self._points.get(code)
        if known is None:
            known = points_of(code, self._lines.get(code.co_filename, ()))
            self._points[code] = known
        return known

    def _watch(self, frame: FrameType) -> None:
        frame.f_trace = self._event
        frame.f_trace_opcodes, frame.f_trace_lines = False, True

    def _entered(self, frame: FrameType, _event: str, _given: Any) -> Any:
        is_watched = self._left > 0 and frame.f_code.co_filename in self._lines
        if not is_watched or not self._points_in(frame.f_code).by_offset:
            return None
        self._watch(frame)
        return self._event

    def _event(self, frame: FrameType, event: str, given: Any) -> Any:
        """Watch the instructions of lines that have points."""
        try:
            self._note(frame, event)
            if event == "return":
                self._results.look(frame.f_code, self._calls.step, given)
        except Exception:  # objects of the script's may answer in any way
            self._left = 0
        self._left -= 1
        if self._is_idle(frame.f_code):
            frame.f_trace, frame.f_trace_opcodes = None, False
            return None
        is_watched = self._left > 0 and (event != "line" or frame.f_lineno in self._points[frame.f_code].lines)
        if event == "line" and frame.f_trace_opcodes != is_watched:
            frame.f_trace_opcodes = is_watched
        return self._event if self._left > 0 else None

    def _is_idle(self, code: CodeType) -> bool:
        """Return whether no expression of a function is worth watching: those of a comprehension run for each item."""
        points = self._points[code].by_offset
        self._events[code] += 1
        if self._events[code] % ENOUGH == 0 and not any(self._calls.is_costly(p.place) for p in points.values()):
            points.clear()
        return not points

    def _note(self, frame: FrameType, event: str) -> None:
        """End the expression that ran last in a frame, and begin the one that runs next."""
        now, calls, opened = time.perf_counter_ns(), self._calls, self._open.pop(id(frame), None)
        if opened is not None and event != "exception":
            place, began, cost = opened
            calls.took(place, now - began - (calls.cost_ns - cost))
        point = self._points[frame.f_code].by_offset.get(frame.f_lasti) if event == "opcode" else None
        if point is not None:
            if calls.wants(point.place):
                calls.look(point.place, *seen_at(point, frame))
            self._open[id(frame)] = point.place, time.perf_counter_ns(), calls.cost_ns


def _frames_of(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
