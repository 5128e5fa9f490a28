"""Hooks of modules that the script registers, and which of them it never removes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, NamedTuple

from diagnose.capture.record.sampler import place_of, users_frames
from diagnose.capture.steps.hooks import Undo, replace_function, undo_all
from diagnose.model.records import HookRecord

_REGISTERING = (
    "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
    "register_full_backward_pre_hook",
)  # fmt: skip


class _Line(NamedTuple):
    """What a line has registered: of each module the numbers that are still there, and the steps."""

    modules: dict[int, list[int]]
    steps: set[int]


class ModuleHooks:
    """Takes notice of every registration; ``step`` returns the number of the step that is under way."""

    def __init__(self, step: Callable[[], int]) -> None:
        self._step = step
        self._num = 0
        self._lines: dict[tuple[tuple[str, int, str], CodeType], _Line] = {}

    def watch(self) -> Undo:
        """Begin; return what ends it."""
        from torch.nn import Module

        return undo_all([replace_function(Module, name, self._noting) for name in _REGISTERING])

    @property
    def records(self) -> tuple[HookRecord, ...]:
        """Return the lines that have registered a hook of a module which had it from an earlier step."""
        return tuple(self._records())

    def _records(self) -> Iterator[HookRecord]:
        for (place, code), line in self._lines.items():
            num = sum(map(len, line.modules.values()))
            if num > len(line.modules) and len(line.steps) > 1:
                lines = [number for _, _, number in code.co_lines() if number is not None]
                yield HookRecord(
                    file=place[0],
                    line=place[1],
                    function=place[2],
                    num=num,
                    modules=len(line.modules),
                    steps=len(line.steps),
                    hook_file=code.co_filename,
                    hook_name=code.co_name,
                    hook_lines=(code.co_firstlineno, max(lines, default=code.co_firstlineno)),
                )

    def _noting(self, register: Any) -> Callable[..., Any]:
        def noted_register(module: Any, hook: Any, *args: Any, **kwargs: Any) -> Any:
            handle = register(module, hook, *args, **kwargs)
            with contextlib.suppress(Exception):  # a class of the script's own
                self._note(hook, handle)
            return handle

        return noted_register

    def _note(self, hook: Any, handle: Any) -> None:
        code, frame = _code(hook), next(users_frames(sys._getframe(2)), None)
        hooks = handle.hooks_dict_ref()
        if code is None or frame is None or hooks is None or self._num >= 100_000:  # that are remembered
            return
        self._num += 1
        line = self._lines.setdefault((place_of(frame), code), _Line({}, set()))
        line.modules[id(hooks)] = [one for one in line.modules.get(id(hooks), ()) if one in hooks] + [handle.id]
        line.steps.add(self._step())


def _code(hook: Any) -> CodeType | None:
    """Return the code that a hook runs, None where it is not Python's."""
    hook = getattr(hook, "func", hook)  # of functools.partial
    hook = getattr(hook, "__func__", hook)
    code = getattr(hook, "__code__", None) or getattr(getattr(hook.__call__, "__func__", None), "__code__", None)
    return code if isinstance(code, CodeType) else None
