"""What the expressions of a sample compute: how long each takes, and whether its results are the same."""

from __future__ import annotations

import builtins
import hashlib
import operator
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from diagnose.capture.samples.cuts import Cuts, Made
from diagnose.capture.samples.instrument import BEGIN, CALL, GET, OPERATION, SLICE
from diagnose.capture.samples.paddings import Paddings

__all__ = ["Recorder", "Seen", "fingerprint", "wide_types"]

MAX_LOOKS = 64  # at the results of one expression within a sample
MAX_BYTES = 4 << 20  # of a result whose content is looked at: 2 ms
MAX_PARTS, MAX_DEPTH = 4096, 4  # of lists, tuples and mappings
MIN_WIDE_ELEMENTS = 64  # of an array: fewer are constants and parameters of a sample
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add, "Sub": operator.sub, "Mult": operator.mul, "Div": operator.truediv,
    "FloorDiv": operator.floordiv, "Mod": operator.mod, "Pow": operator.pow, "MatMult": operator.matmul,
    "LShift": operator.lshift, "RShift": operator.rshift, "BitOr": operator.or_, "BitXor": operator.xor,
    "BitAnd": operator.and_,
}  # fmt: skip
_SALT = os.urandom(16)


class Seen(NamedTuple):
    """One execution of an expression."""

    number: int  # of the expression
    parent: int  # expression that this is a part of, -1 for none
    load: int  # 0, or 1 where the same samples are loaded again
    sample: int
    ns: int
    own_ns: int  # without the expressions inside
    result: str  # fingerprint, "" where the content was not looked at
    what: str  # "float64 (112, 112, 3)", "" for what is no array
    num_bytes: int
    is_wide: bool


class Begun:
    """An expression that began: its operands and arguments are computed first, which is a part of its time."""

    __slots__ = ("inside_ns", "number", "start_ns")

    def __init__(self, number: int, start_ns: int) -> None:
        self.number, self.start_ns, self.inside_ns = number, start_ns, 0


class Recorder:
    """Called by instrumented code; its own time is taken out."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.cuts, self.paddings = Cuts(()), Paddings()
        self.load = self.sample = 0
        self._cost_ns = 0
        self._open: list[Begun] = []
        self.written: set[int] = set()  # expressions whose result was changed afterwards
        self._held: list[tuple[int, str, Any]] = []  # arrays of this batch: expression, fingerprint
        self._looks: dict[tuple[int, int, int], int] = {}

    def install(self) -> None:
        """Offer itself to instrumented code."""
        offered = ((BEGIN, self.begin), (CALL, self.call), (OPERATION, self.operate), (GET, self.get), (SLICE, slice))
        for name, function in offered:
            setattr(builtins, name, function)

    @property
    def now_ns(self) -> int:
        """Return a clock that stands still while the recorder works."""
        return time.perf_counter_ns() - self._cost_ns

    def begin(self, number: int) -> Begun:
        """Begin an expression, before its operands are computed."""
        begun = Begun(number, self.now_ns)
        self._open.append(begun)
        return begun

    def call(self, begun: Begun, function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        """Call what an expression calls."""
        self.cuts.call(function, args, named)
        result = self._run(begun, lambda: function(*args, **named))
        return self._noted(Made(begun.number, result, function, args, named))

    def operate(self, begun: Begun, name: str, left: Any, right: Any) -> Any:
        """Do a binary operation."""
        result = self._run(begun, lambda: _OPERATIONS[name](left, right))
        return self._noted(Made(begun.number, result, _OPERATIONS[name], (left, right), {}))

    def get(self, begun: Begun, held: Any, at: Any) -> Any:
        """Take an item."""
        result = self._run(begun, lambda: held[at])
        began = time.perf_counter_ns()
        self.cuts.cut(held, at, result)
        self._cost_ns += time.perf_counter_ns() - began
        return result

    def end_batch(self) -> None:
        """Look at the arrays of a batch again, for those that were written to since they were made."""
        began = time.perf_counter_ns()
        self.written |= {number for number, before, array in self._held if fingerprint(array) != before}
        self._held.clear()
        self._open.clear()
        self.cuts.end_sample()
        self.paddings.end_batch()
        self._cost_ns += time.perf_counter_ns() - began

    def _noted(self, made: Made) -> Any:
        """Return a result, after what it was made of is noted."""
        began = time.perf_counter_ns()
        self.cuts.add(made)
        self.paddings.add_numbers(made, of_batch=self.sample < 0)
        self._cost_ns += time.perf_counter_ns() - began
        return made.result

    def _run(self, begun: Begun, compute: Callable[[], Any]) -> Any:
        while self._open and self._open[-1] is not begun:  # operands that raised, or a generator that others resume
            self._open.pop()
        parent = self._open[-2].number if len(self._open) > 1 else -1
        try:
            result = compute()
        finally:
            ns = self.now_ns - begun.start_ns
            while self._open and self._open.pop() is not begun:
                pass
            if self._open:
                self._open[-1].inside_ns += ns
        number, inside = begun.number, begun.inside_ns
        began_look = time.perf_counter_ns()
        key = (number, self.load, self.sample)
        self._looks[key] = looks = self._looks.get(key, 0) + 1
        content = fingerprint(result) if looks <= MAX_LOOKS else ""
        what, size, is_wide = _array(result)
        if what and content:
            self._held.append((number, content, result))
        if content:
            self.paddings.add_integers(number, result)
        self.seen.append(Seen(number, parent, self.load, self.sample, ns, ns - inside, content, what, size, is_wide))
        self._cost_ns += time.perf_counter_ns() - began_look
        return result


def fingerprint(value: Any) -> str:
    """Return a text that is equal for equal contents within this process, "" where the content cannot be read."""
    digest = hashlib.blake2b(digest_size=12, key=_SALT)
    left = [MAX_PARTS, MAX_BYTES]
    return digest.hexdigest() if value is not None and _add(digest, value, left, 0) else ""


def _add(digest: Any, value: Any, left: list[int], depth: int) -> bool:
    left[0] -= 1
    if left[0] < 0 or depth > MAX_DEPTH:
        return False
    digest.update(f"{type(value).__module__}.{type(value).__qualname__};".encode())
    if value is None or type(value) in (bool, int, float, complex, slice, range):
        digest.update(repr(value).encode())
        return True
    if type(value) in (str, bytes, bytearray):
        return _add_bytes(digest, value.encode("utf-8", "surrogatepass") if type(value) is str else value, left)
    if type(value) in (list, tuple, dict):
        parts = [part for item in value.items() for part in item] if type(value) is dict else value
        digest.update(f"{len(value)};".encode())
        return len(parts) <= left[0] and all(_add(digest, part, left, depth + 1) for part in parts)
    return _add_array(digest, value, left)


def _add_array(digest: Any, value: Any, left: list[int]) -> bool:
    """Add an array, a tensor of the host's, a scalar of NumPy, a table of pandas or an image."""
    try:
        module = type(value).__module__.partition(".")[0]
        if module == "torch":
            import torch

            value = value.detach()
            value = (value.view(torch.int16) if value.dtype is torch.bfloat16 else value).numpy()
        elif module == "pandas":
            value = value.to_numpy()
        elif module == "PIL":
            digest.update(f"{value.mode} {value.size}".encode())
            return _add_bytes(digest, value.tobytes(), left)
        if getattr(value, "nbytes", MAX_BYTES + 1) > left[1]:
            return False
        if value.dtype.hasobject:
            return _add(digest, value.tolist(), left, MAX_DEPTH - 1)
        digest.update(f"{value.dtype} {value.shape}".encode())
        return _add_bytes(digest, value.tobytes(), left)
    except Exception:  # an object of the script's may answer in any way
        return False


def _add_bytes(digest: Any, held: Any, left: list[int]) -> bool:
    left[1] -= len(held)
    if left[1] < 0:
        return False
    digest.update(held)
    return True


def _array(value: Any) -> tuple[str, int, bool]:
    """Return type and shape of an array or tensor, its bytes, and whether it has many elements of 64-bit floats."""
    try:
        if type(value).__module__.partition(".")[0] not in ("numpy", "torch"):
            return "", 0, False
        dtype, shape = str(value.dtype).removeprefix("torch."), tuple(value.shape)
        size = value.nbytes
    except Exception:
        return "", 0, False
    return f"{dtype} {shape}" if shape else dtype, size, dtype == "float64" and size >= 8 * MIN_WIDE_ELEMENTS


def wide_types(value: Any, depth: int = 0) -> bool:
    """Return whether what is handed on holds an array of 64-bit floats."""
    if depth > MAX_DEPTH:
        return True
    if isinstance(value, dict):
        return any(wide_types(each, depth + 1) for each in value.values())
    if isinstance(value, list | tuple):
        return any(wide_types(each, depth + 1) for each in value)
    if _array(value)[0]:
        return _array(value)[2]
    return not isinstance(value, str | bytes | int | float | bool | None) and not hasattr(value, "shape")
