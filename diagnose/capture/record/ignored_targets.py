"""Counts the targets that cross entropies ignore: their rows of logits are computed for nothing.

Targets in the host's memory are counted in place, without an operator that the profiler would record. Those on a device
are kept while the attribution window is open and counted behind it: reading one would wait for the device.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.capture.record.sampler import is_users
from diagnose.capture.steps.replacing import Undo, replace_function
from diagnose.model.records import TargetRecord

__all__ = ["IgnoredTargets"]

MAX_CALLS = 500  # in a window: more are not looked at
MAX_NUMBERS = 1 << 22  # targets of all calls together: 32 MB
MAX_FRAMES = 60  # between a call and the user's line
IGNORE_INDEX_AT = 4  # among the arguments of both functions

_Place = tuple[str, int]
_Count = Callable[[], int]


class _Call(NamedTuple):
    place: _Place
    classes: int
    began_ns: int  # wall clock, unix
    ended_ns: int
    targets: int
    ignored: _Count


class IgnoredTargets:
    """Watches the cross entropies of the thread that starts it, by the functions of torch that all of them call."""

    def __init__(self) -> None:
        self._undo: list[Undo] = []
        self._thread = self._numbers = 0
        self._calls: list[_Call] = []

    def start(self) -> None:
        """Begin to watch; what was seen before is forgotten."""
        import torch

        self.stop()
        self._thread, self._numbers, self._calls = threading.get_ident(), 0, []
        for name in ("cross_entropy_loss", "nll_loss_nd"):
            self._undo.append(_replace(torch._C._nn, name, self._watched))

    def stop(self) -> None:
        """End watching."""
        for undo in self._undo:
            undo()
        self._undo = []

    def records(self) -> tuple[TargetRecord, ...]:
        """Return the calls by line and number of classes, with their targets; what was kept is let go."""
        calls, self._calls = self._calls, []
        found: dict[tuple[_Place, int], list[tuple[int, int, int, int]]] = {}
        for call in calls:
            try:
                ignored = call.ignored()
            except Exception:  # its memory was given back, or a mode of the script's refuses
                continue
            if ignored >= 0:
                row = (call.began_ns, call.ended_ns, call.targets, ignored)
                found.setdefault((call.place, call.classes), []).append(row)
        records = []
        for ((file, line), classes), rows in found.items():
            began_ns, ended_ns, targets, ignored_of = zip(*rows, strict=True)
            if any(ignored_of):
                records.append(
                    TargetRecord(
                        file=file,
                        line=line,
                        classes=classes,
                        began_ns=began_ns,
                        ended_ns=ended_ns,
                        targets=targets,
                        ignored=ignored_of,
                    )
                )
        return tuple(records)

    def _watched(self, call: Any) -> Callable[..., Any]:
        import torch

        def watched_call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or threading.get_ident() != self._thread:
                return call(*args, **kwargs)
            began = time.time_ns()
            result = call(*args, **kwargs)
            self._note(args, began, time.time_ns())
            return result

        return watched_call

    def _note(self, args: tuple[Any, ...], began_ns: int, ended_ns: int) -> None:
        try:
            if len(self._calls) >= MAX_CALLS or not _is_plain(args):
                return
            logits, target, ignore = args[0], args[1], args[IGNORE_INDEX_AT]
            num = int(target.numel())
            if self._numbers + num > MAX_NUMBERS or num < 1:
                return
            ignored = _counted(target, ignore)
            if ignored is not None:
                self._numbers += num
                call = _Call(_place(), int(logits.shape[1]), began_ns, ended_ns, num, ignored)
                self._calls.append(call)
        except Exception:  # tensors that hold no numbers, as those of a transform: nothing is known of them
            return


def _replace(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> Undo:
    """Replace an operator's function, for which a function that is scripted meanwhile still takes the operator."""
    from torch.jit import _builtins

    original, table = getattr(owner, name), _builtins._get_builtin_table()  # type: ignore[no-untyped-call]
    undo = replace_function(owner, name, make)
    replaced = id(getattr(owner, name))
    if id(original) in table:
        table[replaced] = table[id(original)]

    def undo_both() -> None:
        undo()
        table.pop(replaced, None)

    return undo_both


def _is_plain(args: tuple[Any, ...]) -> bool:
    """Return whether a call has logits of rows and classes, and one class for each row."""
    import torch

    if len(args) <= IGNORE_INDEX_AT or type(args[IGNORE_INDEX_AT]) is not int:
        return False
    if torch._C._get_tracing_state() is not None:
        return False
    logits, target = args[:2]
    if type(logits) is not torch.Tensor or type(target) is not torch.Tensor or logits.dim() < 2:
        return False
    return target.layout is torch.strided and not (target.is_floating_point() or target.is_complex())


def _counted(target: Any, ignore: int) -> _Count | None:
    """Return a function that counts the targets to be ignored, at once where that takes no operator."""
    import torch

    if target.device.type == "cpu":
        num = int(np.count_nonzero(_in_place(target) == ignore))
        return lambda: num
    if target.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return None  # it holds nothing yet
    version, shape = target._version, target.shape

    def count() -> int:
        if target._version != version or target.shape != shape:  # the script wrote other targets into it
            return -1
        return int((target.detach() == ignore).sum())

    return count


def _in_place(target: Any) -> npt.NDArray[np.integer]:
    """Return the numbers of a tensor in the host's memory: `numpy()` would call an operator that is recorded."""
    size, strides = target.element_size(), target.stride()
    span = 1 + sum((length - 1) * stride for length, stride in zip(target.shape, strides, strict=True))
    memory = (ctypes.c_char * (span * size)).from_address(target.data_ptr())
    dtype = np.dtype(str(target.dtype).removeprefix("torch."))
    found: npt.NDArray[np.integer] = np.ndarray(
        tuple(target.shape), dtype, memory, strides=tuple(stride * size for stride in strides)
    )
    return found


def _place() -> _Place:
    """Return the innermost line of the user's, else the innermost one that is not of torch."""
    frame: FrameType | None = sys._getframe(1)
    library: _Place | None = None
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        name = frame.f_globals.get("__name__", "")
        if is_users(frame.f_code):
            return frame.f_code.co_filename, frame.f_lineno or 0
        if library is None and not str(name).startswith(("torch", "diagnose")):
            library = frame.f_code.co_filename, frame.f_lineno or 0
        frame = frame.f_back
    return library or ("", 0)
