"""Takes down what a script gives to torch.compile, and where: of a module its class's own functions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from msgspec import structs

from diagnose.capture.record.constructions import Constructions
from diagnose.capture.record.sampler import users_frames
from diagnose.model.locations import is_user_file
from diagnose.model.records import CompileCallRecord

MAX_CALLS = 100  # of torch.compile: of a list of layers each may have one

_Function = tuple[str, str, int, int]  # name, file, first and last line


def compile_call(target: Any, backend: object, constructions: Constructions) -> CompileCallRecord | None:
    """Return the user's call of torch.compile that is being executed, None for a target that is not the user's."""
    frame = next(users_frames(sys._getframe(1)), None)
    if getattr(target, "__name__", "") == "_call_impl":  # what Module.compile passes on
        target = target.__self__
    codes = list(_codes(target))
    if frame is None or not codes:
        return None
    made = constructions.call(frame, name="torch.compile")
    return CompileCallRecord(
        file=frame.f_code.co_filename,
        line=made.begin[0] if made is not None else frame.f_lineno or 0,
        name=getattr(target, "__name__", type(target).__name__),
        functions=tuple(codes),
        backend=backend if isinstance(backend, str) else getattr(backend, "__name__", ""),
        made=made and structs.replace(made, takes_any=True),
    )


def _codes(target: Any) -> Iterator[_Function]:
    """Yield the function, or the forward of a module and then what else its classes define; nothing of a library's."""
    forward: Callable[..., Any] | None = getattr(type(target), "forward", None)
    first = getattr(target if forward is None else forward, "__code__", None)
    if first is None or not is_user_file(first.co_filename):
        return
    own = [each for cls in type(target).__mro__ for each in vars(cls).values()] if forward is not None else []
    codes = (getattr(each, "__code__", None) for each in own)
    for code in dict.fromkeys([first, *codes]):
        if code is not None and is_user_file(code.co_filename) and code.co_name != "__init__":
            yield code.co_name, code.co_filename, code.co_firstlineno, _last_line(code)


def _last_line(code: CodeType) -> int:
    inner = [_last_line(each) for each in code.co_consts if isinstance(each, CodeType)]
    return max([code.co_firstlineno, *inner, *(line for _, _, line in code.co_lines() if line is not None)])
