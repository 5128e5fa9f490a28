"""Finds calls of modules that compute again what an earlier call of the recorded steps has computed.

A trace has the shapes of what a module is given, and not whether it is the same: a second batch looks like the first
one a second time. So each call's module, its weights and its inputs are compared while the attribution window is open.
What draws random numbers is left out, and so is what cannot be compared.

Python functions and calls of built-in ones are recorded in that window: the code here makes few of them.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Hashable
from types import FrameType
from typing import Any, NamedTuple, TypeAlias

from diagnose.capture.record.padded_inputs import PaddedInputs
from diagnose.capture.record.random_state import random_state
from diagnose.capture.record.sampler import is_users
from diagnose.capture.steps.replacing import Undo, replace_function
from diagnose.model.records import RepeatRecord

__all__ = ["RepeatedCalls"]

MAX_DEPTH = 2  # of modules: those that the script calls itself, and those that these are made of
MAX_CALLS = 4_000  # in a window: more are not looked at
MAX_GROUPS = 200  # that are noted, those that take longest
WHOLE_BYTES = 1 << 20  # of a tensor in the host's memory, up to which all of it is compared: 0.3 ms
PIECES, PIECE_BYTES = 16, 4096  # of a larger one, beside its identity
MAX_FRAMES = 60  # between a call and the user's line
STACKS = 3  # that are timed: the first one reads source lines
_NOWHERE = ("", 0, "")
_SCALARS = frozenset({bool, int, float, str, type(None)})

_Place: TypeAlias = tuple[str, int, str]  # file, line, function


class _NotComparableError(Exception):
    """An argument of which it cannot be known whether it is the same as another."""


class _Call(NamedTuple):
    began_ns: int  # wall clock, unix
    ended_ns: int
    place: _Place


class _State(NamedTuple):
    """What a module computes with, beside its inputs; kept for the window, so that no other has its place in memory."""

    module: Any
    tensors: list[Any]  # parameters, and buffers that a call in training does not update by itself
    attributes: list[dict[str, Any]]  # of it and its submodules


class RepeatedCalls:
    """Watches the calls of modules on the thread that starts it."""

    def __init__(self) -> None:
        self._undo: Undo | None = None
        self._thread = 0
        self._depth = 0
        self._num = 0
        self._into_input = False  # a gradient is taken of an input of the outermost call
        self._states: dict[int, _State] = {}
        self._calls: dict[Hashable, list[_Call]] = {}
        self._names: dict[Hashable, str] = {}
        self._outermost: dict[int, Any] = {}
        self.padded = PaddedInputs()
        self.stack_ns = 0  # what anomaly detection takes to record one stack, 0 where it is off
        self._kept: list[Any] = []  # weak references to storages: their addresses are not given again

    def start(self) -> None:
        """Begin to watch; what was seen before is forgotten."""
        from torch.nn import Module

        self.stop()
        self._thread, self._depth, self._num = threading.get_ident(), 0, 0
        self._calls, self._names, self.padded = {}, {}, PaddedInputs()
        self._undo = replace_function(Module, "_call_impl", self._watched)

    def stop(self) -> list[Any]:
        """End watching, and return the outermost modules that were called."""
        if self._undo is not None:
            self._undo()
            self._undo = None
        modules, self._outermost = list(self._outermost.values()), {}
        self._states, self._kept = {}, []
        return modules

    def repeats(self) -> tuple[RepeatRecord, ...]:
        """Return the calls that compute the same, those that take longest first."""
        found = [
            RepeatRecord(
                module=self._names[key],
                began_ns=tuple(call.began_ns for call in calls),
                ended_ns=tuple(call.ended_ns for call in calls),
                places=tuple(call.place for call in calls),
            )
            for key, calls in self._calls.items()
            if len(calls) > 1
        ]
        found.sort(key=lambda each: sum(each.began_ns) - sum(each.ended_ns))
        return tuple(found[:MAX_GROUPS])

    def _watched(self, call: Any) -> Callable[..., Any]:
        def watched_call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._depth >= MAX_DEPTH or self._num >= MAX_CALLS or threading.get_ident() != self._thread:
                return call(module, *args, **kwargs)
            outermost, began = not self._depth, time.time_ns()
            if outermost:
                self._outermost[id(module)] = module
                self.stack_ns = self.stack_ns or _stack_ns()
            self._num += 1
            self._depth += 1
            try:
                return self._compared(call, module, args, kwargs)
            finally:
                self._depth -= 1
                if outermost:
                    self.padded.note(module, (*args, kwargs), began, time.time_ns())

        return watched_call

    def _compared(self, call: Any, module: Any, args: Any, kwargs: Any) -> Any:
        key = self._key(module, args, kwargs)
        if key is None:
            return call(module, *args, **kwargs)
        drawn = random_state()
        began = time.time_ns()
        result = call(module, *args, **kwargs)
        ended = time.time_ns()
        if drawn and random_state() == drawn:
            calls = self._calls.setdefault(key, [])
            calls.append(_Call(began, ended, _place() if calls else _NOWHERE))
            self._names[key] = type(module).__name__
        return result

    def _key(self, module: Any, args: Any, kwargs: Any) -> Hashable | None:
        """Return what decides a call's result; None in a backward pass, which computes a part again on purpose."""
        import torch

        if torch._C._current_graph_task_id() != -1:
            return None
        if self._depth == 1:
            self._into_input = False
        try:
            given: Hashable = (self._of(args), self._of(kwargs))
            if not _has_tensor(given):
                return None
            autocast = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")
            return id(module), self._state(module), autocast, self._into_input, given
        except Exception:  # classes of the script's own, tensors of other kinds: not comparable
            return None

    def _state(self, module: Any) -> Hashable:
        known = self._states.get(id(module))
        if known is None:
            known = self._states[id(module)] = _state_of(module)
        versions = [tensor._version for tensor in known.tensors]
        ends = [_bytes_of(tensor) for tensor in (known.tensors[0], known.tensors[-1])] if known.tensors else []
        values = [d[name] for d in known.attributes for name in d if type(d[name]) in _SCALARS]
        hooks = [(*d["_forward_hooks"], *d["_forward_pre_hooks"]) for d in known.attributes]
        return tuple(versions), tuple(ends), tuple(values), tuple(hooks)

    def _of(self, value: Any) -> Hashable:
        import torch

        kind = type(value)
        if kind in (torch.Tensor, torch.nn.Parameter):
            return self._of_tensor(value)
        if kind in _SCALARS:
            return kind, value
        if kind in (tuple, list):
            return kind, tuple([self._of(each) for each in value])
        if kind is dict:
            return kind, tuple([(name, self._of(value[name])) for name in value])
        raise _NotComparableError

    def _of_tensor(self, tensor: Any) -> Hashable:
        """Return the tensor's values, or where they are too many or on a device which tensor it is, and its version.

        With them goes whether a gradient is taken of it: a result without one cannot stand for one with it.
        """
        import torch

        if tensor.layout is not torch.strided:
            raise _NotComparableError
        what = torch.Tensor, tuple(tensor.shape), tensor.dtype, tensor.device
        size = tensor.numel() * tensor.element_size()
        on_host = tensor.device.type == "cpu"
        has_gradient = tensor.requires_grad and torch.is_grad_enabled()  # what x.detach() gives is another input
        self._into_input |= has_gradient and self._depth == 1
        if on_host and tensor.is_contiguous() and size <= WHOLE_BYTES:
            return *what, has_gradient, _checksum(tensor.data_ptr(), 0, size)
        from torch.multiprocessing.reductions import StorageWeakRef

        storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # torch leaves it so
        self._kept.append(storage)
        which = storage.cdata, tensor.storage_offset(), tensor.stride(), tensor._version
        if not on_host or not tensor.is_contiguous():
            return *what, has_gradient, which
        step = max((size - PIECE_BYTES) // (PIECES - 1), 1)
        at = tensor.data_ptr()
        return *what, has_gradient, which, tuple([_checksum(at, i * step, PIECE_BYTES) for i in range(PIECES)])


def _place() -> _Place:
    """Return the innermost line of the user's that is running."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        if is_users(frame.f_code):
            return frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name
        frame = frame.f_back
    return _NOWHERE


def _checksum(address: int, begin: int, size: int) -> int:
    return zlib.crc32((ctypes.c_char * size).from_address(address + begin)) if size else 0


def _bytes_of(tensor: Any) -> bytes:
    """Return the first bytes of a tensor in the host's memory: who writes to `.data` leaves the version as it was."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        return b""
    return ctypes.string_at(tensor.data_ptr(), min(tensor.numel() * tensor.element_size(), 64))


def _state_of(module: Any) -> _State:
    from torch.nn.modules.batchnorm import _NormBase

    tensors = list(module.parameters())
    for each in module.modules():
        if not (each.training and isinstance(each, _NormBase)):  # its running mean is not read in training
            tensors += each._buffers.values()
    return _State(module, [t for t in tensors if t is not None], [each.__dict__ for each in module.modules()])


def _stack_ns() -> int:
    """Return how long anomaly detection takes here to record the stack of an operator, 0 where it is off."""
    import torch

    if not torch.is_anomaly_enabled():
        return 0
    took = []
    for _ in range(STACKS):
        began = time.perf_counter_ns()
        traceback.format_stack()
        took.append(time.perf_counter_ns() - began)
    return min(took)


def _has_tensor(given: Hashable) -> bool:
    import torch

    if not isinstance(given, tuple):
        return False
    return given[:1] == (torch.Tensor,) or any(map(_has_tensor, given))
