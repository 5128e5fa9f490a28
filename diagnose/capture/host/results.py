"""Whether functions with hot lines give the same content in each call, whatever their lines go through."""

from __future__ import annotations

import time
from types import CodeType
from typing import Any

from diagnose.capture.host.calls import MAX_LOOK_NS, MAX_LOOKS, Content, changed_share, content_of, size_of
from diagnose.model.records import HostResultRecord
from diagnose.text.code_places import from_here


class _Seen:
    """What a function gave: its first content, and in which steps it was looked at."""

    __slots__ = ("content", "is_same", "looks", "size")

    def __init__(self, content: Content | None, size: int) -> None:
        self.content, self.size = content, size
        self.is_same = content is not None and size > 1
        self.looks: dict[int, int] = {}  # by step


class HostResults:
    """Notes what functions give."""

    def __init__(self) -> None:
        self._seen: dict[CodeType, _Seen] = {}
        self._spent_ns = 0  # of a core

    def look(self, code: CodeType, step: int, value: Any) -> None:
        """Compare what a function gives with what it gave first."""
        seen = self._seen.get(code)
        is_known = seen is not None and (not seen.is_same or seen.looks.get(step, 0) >= MAX_LOOKS)
        if is_known or code.co_name.startswith("<") or self._spent_ns >= MAX_LOOK_NS:
            return
        began = time.thread_time_ns()
        content = content_of(value)
        if seen is None:
            seen = self._seen[code] = _Seen(content, size_of(value))
        seen.is_same &= changed_share(seen.content, content) == 0
        seen.looks[step] = seen.looks.get(step, 0) + 1
        self._spent_ns += time.thread_time_ns() - began

    def records(self) -> tuple[HostResultRecord, ...]:
        """Return the functions that gave the same in more than one step."""
        return tuple(
            HostResultRecord(
                file=from_here(code.co_filename),
                line=code.co_firstlineno,
                last_line=max((line for *_, line in code.co_lines() if line is not None), default=0),
                function=code.co_name,
                looks=sum(seen.looks.values()),
                size=seen.size,
            )
            for code, seen in self._seen.items()
            if seen.is_same and len(seen.looks) > 1
        )
