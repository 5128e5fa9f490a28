"""Finds the call in the script that made an object, so that a change of its arguments can be printed as a diff.

What is taken down is the call's own lines with a few around them, the names of its class's parameters, and the keys
(never the values) of a mapping that it passes by ``**``. A call with a credential in its lines is left out.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from diagnose.capture.record.sampler import users_frames
from diagnose.capture.record.source_lines import SourceLines, excerpt_of, parsed


class Constructions:
    """Reads each source file once; ``cwd`` is what relative names start from."""

    def __init__(self, cwd: Path) -> None:
        self._cwd = cwd
        self._lines = SourceLines(cwd)
        self._calls: dict[str, list[ast.Call]] = {}

    def of(self, made: object, *, name: str) -> Mapping[str, object] | None:
        """Return the user's call that is making this object, None where none shows; ``name`` is what it is known as.

        It is called from within the object's ``__init__``.
        """
        frame = next((each for each in users_frames(sys._getframe(1)) if not _constructs(each, made)), None)
        if frame is None:
            return None
        call = self._call(frame.f_code.co_filename, frame, type(made))
        return None if call is None else self._record(call, frame, type(made), name)

    def only_one(self, made: object, given: Mapping[str, object], *, name: str) -> Mapping[str, object] | None:
        """Return the call that made an object which exists already; None where no call can have, or several.

        It is looked for in the files of the user's functions that are being executed. ``given`` are the object's own
        arguments: a call that passes another constant made another object.
        """
        frames = {frame.f_code.co_filename: frame for frame in reversed(list(users_frames(sys._getframe(1))))}
        found = [
            (call, frame)
            for file, frame in frames.items()
            for call in self._calls_of(file)
            if _is_class(call.func, frame, type(made)) and _passes(call, given)
        ]
        return self._record(*found[0], type(made), name) if len(found) == 1 else None

    def _record(self, call: ast.Call, frame: FrameType, made: type, name: str) -> Mapping[str, object] | None:
        """Return what is taken down of a call, None for one with a credential in its lines."""
        file = frame.f_code.co_filename
        shown = excerpt_of(call, self._lines.text(file) or ())
        if shown is None:
            return None
        path = os.path.relpath(file, self._cwd) if Path(file).is_absolute() else file
        return {
            "name": name,
            "file": file if path.startswith("..") else path,
            **shown._asdict(),
            **_parameters(made),
            "spread": _spread(call, frame),
        }

    def _call(self, file: str, frame: FrameType, made: type) -> ast.Call | None:
        """Return the call of the class that is executed; before Python 3.11 the last one on the line."""
        at = frame.f_lineno or 0
        here = [call for call in self._calls_of(file) if call.lineno <= at <= (call.end_lineno or 0)]
        mine = [call for call in here if _is_class(call.func, frame, made)]
        place = _place(frame)
        exact = [c for c in mine if (c.lineno, c.end_lineno, c.col_offset, c.end_col_offset) == place]
        return exact[0] if exact else max(mine, key=lambda call: (call.lineno, call.col_offset), default=None)

    def _calls_of(self, file: str) -> list[ast.Call]:
        if file not in self._calls:
            tree = parsed("\n".join(self._lines.text(file) or ())) or ast.Module([], [])
            self._calls[file] = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        return self._calls[file]


def _place(frame: FrameType) -> tuple[int | None, ...] | None:
    """Return first and last line, first and last byte of what the frame executes, None before Python 3.11."""
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is None:
        return None
    return next(itertools.islice(positions(), frame.f_lasti // 2, None), None)


def _passes(call: ast.Call, given: Mapping[str, object]) -> bool:
    """Return whether a call passes no constant by name that is another than the given one."""
    constants = ((k.arg, k.value.value) for k in call.keywords if k.arg and isinstance(k.value, ast.Constant))
    return all(name in given and given[name] == value for name, value in constants)


def _constructs(frame: FrameType, made: object) -> bool:
    code = frame.f_code
    own = code.co_varnames[0] if code.co_argcount else ""
    return code.co_name == "__init__" and frame.f_locals.get(own) is made


def _is_class(node: ast.expr, frame: FrameType, made: type) -> bool:
    """Return whether an expression names the class; no attribute but a module's is read, since that could run code."""
    found = _value(node, frame)
    if found is not None:
        return found is made
    return isinstance(node, ast.Attribute) and node.attr == made.__name__


def _value(node: ast.expr, frame: FrameType) -> Any:  # whatever the script has under that name
    if isinstance(node, ast.Name):
        for names in (frame.f_locals, frame.f_globals):
            if node.id in names:
                return names[node.id]
        return None
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, frame)
        return vars(owner).get(node.attr) if isinstance(owner, ModuleType) else None
    return None


def _parameters(made: type) -> Mapping[str, object]:
    """Return the names of the constructor's parameters in their order, and whether it takes any other."""
    parameters = list(inspect.signature(made.__init__).parameters.values())[1:]  # type: ignore[misc]  # of a class
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return {"parameters": tuple(named[:60]), "takes_any": any(p.kind is p.VAR_KEYWORD for p in parameters)}


def _spread(call: ast.Call, frame: FrameType) -> Sequence[str] | None:
    """Return the keys of the mappings that a call passes by ``**``; None where one of them is not known."""
    keys: list[str] = []
    for keyword in call.keywords:
        if keyword.arg is not None:
            continue
        value = _value(keyword.value, frame)
        if type(value) is not dict:
            return None
        keys += [key for key in value if isinstance(key, str)]
    return tuple(keys)
