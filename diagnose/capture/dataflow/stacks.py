"""Reads the user's Python frames above an operator, and what kind of work the frames between belong to.

A walk of forty frames is the largest part of what an operator costs, so each code object is judged once, by its
address; lines are looked up after the steps.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple, TypeAlias

import torch

from diagnose.capture.record.sampler import is_users
from diagnose.capture.record.source_lines import long_statements, tree_of
from diagnose.model.dataflow import Frame


@lru_cache(maxsize=256)
def first_lines(file: str) -> dict[int, int]:
    """Return the first line of the innermost statement at each line of one on several lines."""
    first: dict[int, int] = {}
    for begin, last in long_statements(tree_of(file) or ast.Module([], [])):
        for line in range(begin, last + 1):
            first[line] = max(first.get(line, 0), begin)
    return first


NO_BACKWARD = -1  # autograd's number of the backward pass outside of any

StackKey: TypeAlias = tuple[int, ...]  # addresses of code objects, each followed by the offset of its instruction

# What a frame says about the operator below it; of frames that say nothing the kind is 0.
USER, BOTTOM, ENGINE, FUNCTION, OPTIMIZER, LOADING, RECOMPUTING, STARTING, COMPILED = (1 << i for i in range(9))
_TORCH = f"{Path(torch.__file__).parent}/"
_KINDS = (
    ("optim/", OPTIMIZER),
    ("nn/utils/clip_grad.py", OPTIMIZER),
    ("amp/grad_scaler.py", OPTIMIZER),
    ("utils/data/", LOADING),
    ("autograd/function.py", FUNCTION),
    ("autograd/__init__.py", STARTING),  # a backward pass
    ("utils/checkpoint.py", RECOMPUTING),
)
_FUNCTIONS = {"_engine_run_backward": ENGINE, "compile_wrapper": COMPILED}  # the latter calls what was compiled
_row = tuple.__new__  # what the class of a named tuple calls
_INLINED = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>"})  # from Python 3.12 on they have no frames


class Walk(NamedTuple):
    """What the frames above one operator show."""

    key: StackKey  # of the user's frames, innermost first; in a backward pass of those that it called
    caller: StackKey  # of those that called the backward pass, () outside of one
    kinds: int  # of the other frames, as bits; in a backward pass of those that it called


class Stacks:
    """Walks stacks, and turns what it has found into frames."""

    def __init__(self) -> None:
        self._kinds: dict[int, int] = {}
        self._codes: dict[int, CodeType] = {}  # keeps each alive, so that no other gets its address
        self._frames: dict[tuple[int, int], Frame] = {}
        self._stacks: dict[StackKey, tuple[Frame, ...]] = {}
        self._backward: tuple[int, Walk] = (NO_BACKWARD, Walk((), (), 0))

    def walk(self, frame: FrameType | None, backward: int = NO_BACKWARD) -> Walk:
        """Return what ``frame`` and those that called it show.

        ``backward`` is autograd's number of the backward pass that is being executed. As long as it is, and calls
        nothing of the user's, these frames are the same.
        """
        if backward == NO_BACKWARD or frame is None or self._kinds.get(id(frame.f_code)) != ENGINE:
            return self._walk(frame)
        if backward != self._backward[0]:
            self._backward = backward, self._walk(frame)
        return self._backward[1]

    def _walk(self, frame: FrameType | None) -> Walk:
        known = self._kinds
        found: list[int] = []
        called: list[int] | None = None
        kinds = 0
        while frame is not None:
            code = frame.f_code
            kind = known.get(id(code))
            if kind is None:
                kind = self._judge(code)
            if kind:
                if kind & USER:
                    found.append(id(code))
                    found.append(frame.f_lasti)
                    if kind & FUNCTION and called is None:
                        kinds |= FUNCTION
                    if kind & BOTTOM:
                        break
                elif kind == ENGINE and called is None:
                    called, found = found, []
                elif called is None:
                    kinds |= kind
            frame = frame.f_back
        if called is None:
            return _row(Walk, (tuple(found), (), kinds))
        return _row(Walk, (tuple(called), tuple(found), kinds))

    def frames(self, key: StackKey) -> tuple[Frame, ...]:
        """Return the frames of a stack."""
        known = self._stacks.get(key)
        if known is None:
            pairs = zip(key[::2], key[1::2], strict=True)
            known = self._stacks[key] = tuple([self._frame(code, at) for code, at in pairs])
        return known

    def _frame(self, address: int, at: int) -> Frame:
        known = self._frames.get((address, at))
        if known is None:
            code = self._codes[address]
            line = (
                next((line for begin, end, line in code.co_lines() if begin <= at < end), None) or code.co_firstlineno
            )
            line = first_lines(code.co_filename).get(line, line)
            known = self._frames[address, at] = Frame(code.co_filename, line, code.co_name)
        return known

    def _judge(self, code: CodeType) -> int:
        self._codes[id(code)] = code
        kind = self._kinds[id(code)] = _kind(code)
        return kind


def _kind(code: CodeType) -> int:
    # From torch 2.15 on, no Python frame of `Function.apply` is between the script and the `forward` that it calls.
    function = FUNCTION if code.co_name == "forward" and _is_of_autograd_function(code) else 0
    if is_users(code):
        if code.co_name in _INLINED:
            return 0
        return USER | (BOTTOM if code.co_name == "<module>" else 0) | function
    if not code.co_filename.startswith(_TORCH):
        return function
    if code.co_name in _FUNCTIONS:
        return _FUNCTIONS[code.co_name]
    if code.co_name == "_fn" and "callback" in code.co_freevars:  # the name of compile_wrapper in older releases
        return COMPILED
    file = code.co_filename[len(_TORCH) :]
    return next((kind for start, kind in _KINDS if file.startswith(start)), 0) | function


def _is_of_autograd_function(forward: CodeType) -> bool:
    classes: list[type] = [torch.autograd.Function]
    for each in classes:
        classes += each.__subclasses__()
    return any(getattr(getattr(each, "forward", None), "__code__", None) is forward for each in classes)
