"""What the expressions of a sample compute: how long each takes, and whether its results are the same."""

from __future__ import annotations

import ast
import builtins
import contextlib
import hashlib
import operator
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.capture.dataflow.structure import runs_at_start
from diagnose.capture.host.calls import HostCalls, Place
from diagnose.capture.host.expressions import given_to
from diagnose.capture.samples.instrument import BEGIN, CALL, COMPARE, GET, OPERATION, RETURN, SLICE, WHOLE

# Which share of a result a sample uses: the rest of a large one need not be computed.
#
# A sample that cuts a result uses that part. It could compute the part alone if the same operation, on the same part
# of what it reads, gives the same: that is tried, and what the operation reads is followed as long as it holds. What is
# cut of a view, such as a rotated or mirrored one, is cut of the array that it is a view of. A result has the uses that
# ran, in whichever of the script's functions: code tells of each place that the recorder does
# not see a value go to.

_LIBRARIES = frozenset({"numpy", "scipy", "torch"})  # whose Python functions may be called once more
_BLIND = (len, type, id, isinstance, hasattr)  # read no content


class Made:
    """One result and how it was made."""

    __slots__ = ("args", "function", "named", "number", "result")

    def __init__(
        self, number: int, result: Any, function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]
    ) -> None:
        self.number, self.result = number, result  # of the expression
        self.function, self.args, self.named = function, args, named

    @property
    def read(self) -> list[Any]:
        """Return the arrays that the operation reads, which it does not name."""
        return [each for each in (getattr(self.function, "__self__", None), *self.args) if _size(each)]


class Cuts:
    """Follows the results of one sample."""

    def __init__(self) -> None:
        # By the address of an array, which lives as long.
        self._made: dict[int, Made] = {}
        self._readers: dict[int, list[Made]] = defaultdict(list)
        self._cuts: dict[int, list[tuple[Any, int]]] = defaultdict(list)  # what is taken, and the expression that does
        self._whole: set[int] = set()
        self._views: dict[int, tuple[Any, Any]] = {}  # what has all elements of another array, and that array
        self._cut_by: dict[int, int] = {}  # expressions that cut, by the expression whose results they are cut of
        self._sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])  # elements used and all, by expression

    def add(self, made: Made) -> None:
        """Take notice of a call or an operation; functions of the script's own hand on what they were given."""
        if any(made.function is each for each in _BLIND) or _is_of_script(made.function):
            return
        self.use(*_parts(tuple(made.named.values())))  # such as what it writes into
        if viewed := [each for each in made.read if _is_view(made.result, each)]:
            self._view(made.result, viewed[0])
            return
        is_followed = _size(made.result) >= 1024 and all(each is not made.result for each in made.read)
        for each in made.read:
            if is_followed and _size(each) == _size(made.result) and id(each) not in self._views:
                self._readers[id(each)].append(made)
            else:  # reduced, repeated, or written to
                self.use(each)
        if is_followed:  # less is computed in no time
            self._made[id(made.result)] = made

    def use(self, *held: Any) -> None:
        """Take notice that all of something is used, or may be."""
        viewed = (self._views.get(id(each), (each, each))[1] for each in held)
        self._whole.update(id(each) for each in viewed if id(each) in self._made)

    def _view(self, view: Any, held: Any) -> None:
        self._views[id(view)] = view, self._views.get(id(held), (held, held))[1]

    def cut(self, number: int, held: Any, at: Any, part: Any) -> None:
        """Take notice that an expression takes a part of something."""
        self.use(*_parts(at))
        if _is_view(part, held):
            self._view(part, held)
            return
        if id(held) in self._views:
            held = self._views[id(held)][1]
            at = _box(part, held)
        if at is not None and id(held) in self._made and 0 < _size(part) < _size(held):
            self._cuts[id(held)].append((at, number))
        elif _size(part):
            self.use(held)

    def end_sample(self) -> None:
        """Sum up, and let the results go."""
        cuts: dict[int, list[tuple[Any, int]]] = {}  # that are all uses of a result; none if it is used as a whole
        for address, made in reversed(self._made.items()):
            found = self._cuts_of(address, cuts)
            if not all(_is_by_part(made, at) for at, _ in found):
                found = []
            cuts[address] = found
            sums, size = self._sums[made.number], _size(made.result)
            sums[0] += min(sum(_size(made.result[at]) for at, _ in found), size) if found else size
            if found:
                self._cut_by[made.number] = found[0][1]
            sums[1] += size
        for each in (self._made, self._readers, self._cuts, self._whole, self._views):
            each.clear()

    def used(self, number: int) -> float:
        """Return which share of an expression's results the samples use; 1 if it is not known."""
        used, total = self._sums.get(number, (1.0, 1.0))
        return used / total

    def cut_by(self, number: int) -> int | None:
        """Return an expression that cuts the results of another one, None if none does."""
        return self._cut_by.get(number)

    def _cuts_of(self, address: int, known: Mapping[int, list[tuple[Any, int]]]) -> list[tuple[Any, int]]:
        """Return the cuts that are all uses of a result, its own and those of what is made of it; else none."""
        found = list(self._cuts[address])
        for reader in self._readers[address]:
            of_reader = known.get(id(reader.result), [])
            if not of_reader:
                return []
            found += of_reader
        return found if address not in self._whole and len(found) <= 16 else []  # each is tried


def _is_of_script(function: Callable[..., Any]) -> bool:
    """Return whether a function, or an object that is called, is neither a library's nor written in C."""
    if not isinstance(function, FunctionType | MethodType):
        function = getattr(type(function), "__call__", function)  # noqa: B004
    is_python = isinstance(function, FunctionType | MethodType)
    return is_python and function.__module__.partition(".")[0] not in _LIBRARIES


def _is_by_part(made: Made, at: Any) -> bool:
    """Return whether an operation on a part of what it reads gives that part of its result."""
    if any(_size(each) for each in made.named.values()):  # such as what it writes into
        return False
    # Operands of fewer elements are repeated, as a mean is, or belong to each part, as the factor of a product does.
    return any(_gives_part(made, at, min_size) for min_size in (1, _size(made.result)))


def _gives_part(made: Made, at: Any, min_size: int) -> bool:
    """Return whether an operation on a part of its operands of at least so many elements gives that of its result."""
    function, shape = made.function, made.result.shape
    try:
        owner = getattr(function, "__self__", None)
        if _size(owner):
            function = getattr(_part(owner, shape, at), function.__name__)
        args = [_part(each, shape, at) if _size(each) >= min_size else each for each in made.args]
        if not any(_size(each) == _size(made.result) for each in (owner, *made.args)):
            return False
        part, expected = function(*args, **made.named), made.result[at]
        is_like = part.shape == expected.shape and part.dtype == expected.dtype
        # Vector instructions round otherwise than single ones.
        return is_like and bool(np.allclose(part, expected, 1e-5, 1e-5, equal_nan=True))
    except Exception:  # an operation that needs all of it may answer in any way
        return False


def _part(held: Any, shape: Sequence[int], at: Any) -> Any:
    """Return a copy of the part of an operand that belongs to a part of the result: the operation may write to it."""
    if isinstance(held, np.ndarray):
        return np.array(np.broadcast_to(held, tuple(shape))[at])
    return held.expand(*shape)[at].clone()


def _is_view(held: Any, of: Any) -> bool:
    """Return whether an array has the elements of another one, in another order."""
    are_arrays = isinstance(held, np.ndarray) and isinstance(of, np.ndarray) and held is not of
    return are_arrays and 0 < _size(held) == _size(of) and np.may_share_memory(held, of)


def _box(part: npt.NDArray[Any], of: npt.NDArray[Any]) -> tuple[slice, ...] | None:
    """Return where a part of an array's memory is in the array, None if it is no box of it."""
    if not np.may_share_memory(part, of) or min(of.strides) <= 0:
        return None
    length = {abs(step): num for step, num in zip(part.strides, part.shape, strict=True) if num > 1}
    first = part.ctypes.data + sum(
        step * (num - 1) for step, num in zip(part.strides, part.shape, strict=True) if step < 0
    )
    left, found = first - of.ctypes.data, dict[int, slice]()
    for axis in sorted(range(of.ndim), key=lambda axis: -of.strides[axis]):
        start, left = divmod(left, of.strides[axis])
        found[axis] = slice(start, start + length.pop(of.strides[axis], 1))
    box = tuple(found[axis] for axis in range(of.ndim))
    return box if not length and of[box].size == part.size else None


def _size(held: Any) -> int:
    """Return the number of elements of an array or tensor of numbers, 0 of anything else and of a single number."""
    if isinstance(held, np.ndarray):
        return held.size if held.ndim and not held.dtype.hasobject else 0
    if type(held).__module__ == "torch" and hasattr(held, "numel"):
        return int(held.numel()) if held.ndim else 0
    return 0


# Which expressions of samples make rows of one length by filling them up with a number at either end.


class _Numbers(NamedTuple):
    """An array of floating-point numbers that may be padded along one dimension."""

    array: npt.NDArray[Any]
    axis: int


class Paddings:
    """Looks at what expressions have made at the end of each batch, when it has been filled."""

    def __init__(self) -> None:
        self._made: list[tuple[int, Any]] = []  # of this batch, by expression
        self._ends: dict[tuple[int, int], list[tuple[int, int]]] = {}  # by expression and length: runs at both ends
        self._looks: dict[int, int] = defaultdict(int)

    def add_integers(self, number: int, made: Any) -> None:
        """Take notice of what an expression has made: lists and arrays of integers may be padded."""
        self._made.append((number, made))

    def add_numbers(self, made: Made, *, of_batch: bool) -> None:
        """Take notice of an array of floating-point numbers: it is padded only if something shorter is put into it.

        Of integers any number at an end is a padding; measured data may be the same at its ends.
        """
        array = _floats(made.result)
        if array is None or not array.size or array.nbytes > MAX_LOOKED_BYTES or self._looks[made.number] >= 4096:
            return
        axis = _longer_axis(array, _parts((made.args, made.named)))
        if axis < 0 and (array == array.flat[0]).all():  # to be filled
            axis = {1: 0, 2: int(of_batch), 3: 1 if of_batch else -1}.get(array.ndim, -1)
        if axis >= 0:
            self._looks[made.number] += 1
            self._made.append((made.number, _Numbers(array, axis)))

    def end_batch(self) -> None:
        """Look at the rows of a batch."""
        rows: dict[tuple[int, int], list[npt.NDArray[Any]]] = defaultdict(list)
        for number, made in self._made:
            if isinstance(made, _Numbers):
                # How many places at the start and at the end of each row hold one number throughout.
                whole = np.moveaxis(made.array, made.axis, -1)
                samples = whole.reshape(len(made.array) if made.axis else 1, -1, whole.shape[-1])
                runs = []
                for each in (samples, samples[:, :, ::-1]):
                    differs = (each != each[0, 0, 0]).any(1)
                    runs.append(np.where(differs.any(1), differs.argmax(1), differs.shape[1]))
                ends = runs[0], runs[1]
                self._add((number, made.array.shape[made.axis]), *ends)
            elif (found := _rows(made)) is not None:
                self._ends.setdefault((number, found.shape[1]), [])  # in the order in which they were made
                rows[number, found.shape[1]].append(found)
        self._made.clear()
        for key, parts in rows.items():
            both = np.concatenate(parts)
            self._add(key, runs_at_start(both), runs_at_start(both[:, ::-1]))

    def _add(self, key: tuple[int, int], start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]) -> None:
        self._ends.setdefault(key, []).extend(zip(start.tolist(), end.tolist(), strict=True))

    def found(self) -> dict[int, int]:
        """Return the expressions that first made padded rows, and how long these are.

        Rows of which one number fills an end of each, of different length: those of one length may be padded or not.
        """
        first: dict[int, int] = {}
        for (number, length), runs in self._ends.items():
            is_padded = any(
                min(ends) >= 0.1 * length and len(set(ends)) > 1 and min(ends) < length
                for ends in zip(*runs, strict=True)
            )
            if is_padded:
                first.setdefault(length, number)
        return {number: length for length, number in first.items()}


def _rows(made: Any) -> npt.NDArray[Any] | None:
    """Return rows of integers, a single one of a list or of what has one dimension; None for anything else."""
    if type(made) is list:
        made = np.array(made) if made and all(type(each) is int for each in made) else None
    elif type(made).__module__ == "torch":
        made = made.numpy()
    if not isinstance(made, np.ndarray) or made.dtype.kind not in "iu" or made.ndim not in (1, 2) or not made.size:
        return None
    return made.reshape(-1, made.shape[-1])


def _floats(made: Any) -> npt.NDArray[Any] | None:
    """Return an array of floating-point numbers that shares the memory of an array or tensor; None for others."""
    try:
        if type(made).__module__ == "torch":
            made = made.detach().numpy()
    except Exception:  # of a type or device that NumPy does not have, or no tensor
        return None
    return made if isinstance(made, np.ndarray) and made.dtype.kind == "f" and made.ndim else None


def _parts(held: Any) -> Iterator[Any]:
    """Yield what arguments hold, with the members of lists, tuples and mappings."""
    if isinstance(held, dict):
        held = tuple(held.values())
    if isinstance(held, list | tuple):
        for each in held:
            yield from _parts(each)
    elif isinstance(getattr(held, "shape", None), tuple):
        yield held


def _longer_axis(array: npt.NDArray[Any], parts: Iterator[Any]) -> int:
    """Return the one dimension along which an array is longer than what it was made of, -1 if there is none.

    Of a batch these are its samples, which lack the first dimension.
    """
    for part in parts:
        shape = tuple(part.shape)
        if 0 < len(shape) == array.ndim - 1:
            shape = (len(array), *shape)
        longer = [i for i, (mine, its) in enumerate(zip(array.shape, shape, strict=False)) if mine != its]
        if len(shape) == array.ndim and len(longer) == 1 and 0 < shape[longer[0]] < array.shape[longer[0]]:
            return longer[0]
    return -1


MAX_LOOKED_BYTES = 4 << 20  # of a result whose content is looked at: 2 ms
MAX_PART_DEPTH = 4  # of lists, tuples and mappings
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add, "Sub": operator.sub, "Mult": operator.mul, "Div": operator.truediv,
    "FloorDiv": operator.floordiv, "Mod": operator.mod, "Pow": operator.pow, "MatMult": operator.matmul,
    "LShift": operator.lshift, "RShift": operator.rshift, "BitOr": operator.or_, "BitXor": operator.xor,
    "BitAnd": operator.and_,
}  # fmt: skip
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "Eq": operator.eq, "NotEq": operator.ne, "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt,
    "GtE": operator.ge, "In": lambda item, held: item in held, "NotIn": lambda item, held: item not in held,
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
    is_tensor: bool


class Begun:
    """An expression that began: its operands and arguments are computed first, which is a part of its time."""

    __slots__ = ("inside_ns", "number", "start_ns")

    def __init__(self, number: int, start_ns: int) -> None:
        self.number, self.start_ns, self.inside_ns = number, start_ns, 0


class Recorder:
    """Called by instrumented code; its own time is taken out."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.cuts, self.paddings = Cuts(), Paddings()
        self.host, self.places = HostCalls(), list[Place]()  # of the expressions, by number
        self._nodes: dict[int, ast.expr] = {}
        self.load = self.sample = 0
        self._cost_ns = 0
        self._open: list[Begun] = []
        self.written: set[int] = set()  # expressions whose result was changed afterwards
        self._held: list[tuple[int, str, Any]] = []  # arrays of this batch: expression, fingerprint
        self._looks: Counter[tuple[int, int, int]] = Counter()

    def install(self) -> None:
        """Offer itself to instrumented code."""
        offered = {
            BEGIN: self.begin,
            CALL: self.call,
            OPERATION: self.operate,
            GET: self.get,
            SLICE: slice,
            COMPARE: self.compare,
        }
        offered |= {WHOLE: self.whole, RETURN: self.returned}
        for name, function in offered.items():
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
        self._look(begun.number, function, args, named)
        result = self._run(begun, partial(_called, function, args, named))
        return self._noted(Made(begun.number, result, function, args, named))

    def operate(self, begun: Begun, name: str, left: Any, right: Any) -> Any:
        """Do a binary operation."""
        result = self._run(begun, lambda: _OPERATIONS[name](left, right))
        return self._noted(Made(begun.number, result, _OPERATIONS[name], (left, right), {}))

    def get(self, begun: Begun, held: Any, at: Any) -> Any:
        """Take an item."""
        self._look(begun.number, held, (at,), {})
        result = self._run(begun, lambda: held[at])
        began = time.perf_counter_ns()
        self.cuts.cut(begun.number, held, at, result)
        self._cost_ns += time.perf_counter_ns() - began
        return result

    def _look(self, number: int, function: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Look at what a call is given, in a few samples."""
        began, place = time.perf_counter_ns(), self.places[number] if self.places else None
        self.host.step = self.sample
        if place is not None and not self.load and self.host.wants(place):
            node = self._nodes.get(number) or ast.parse(place[-1], mode="eval").body
            self._nodes[number] = node
            with contextlib.suppress(Exception):  # objects of the script's may answer in any way
                self.host.look(place, *given_to(node, function, args, named))
        self._cost_ns += time.perf_counter_ns() - began

    def compare(self, begun: Begun, name: str, left: Any, right: Any) -> Any:
        """Compare two values, or look for one in the other; all of both may be read."""
        self._look(begun.number, None, (left, right), {})
        result = self._run(begun, lambda: _COMPARISONS[name](left, right))
        self.cuts.use(left, right)
        return result

    def whole(self, value: Any, *others: Any) -> Any:
        """Hand a value on to where the recorder does not see it go."""
        self.cuts.use(value, *others)
        return value

    def returned(self, value: Any) -> Any:
        """Hand a function's result to what has called it: to an expression, or to code of others."""
        caller = sys._getframe(1).f_back
        if caller is None or caller.f_code is not _CALLED:
            self.cuts.use(*_parts(value))
        return value

    def end_sample(self) -> None:
        """Go on with the next sample."""
        began = time.perf_counter_ns()
        self.cuts.end_sample()
        self._cost_ns += time.perf_counter_ns() - began
        self.sample += 1

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
        self._looks[key] += 1
        # Of one sample; that a question has the same answer in all of them may be chance.
        content = fingerprint(result) if self._looks[key] <= 64 and type(result) is not bool else ""
        what, size, is_wide = _array(result)
        is_tensor = bool(what) and type(result).__module__.startswith("torch")
        if what and content:
            self._held.append((number, content, result))
        if content:
            self.paddings.add_integers(number, result)
        if not self.load and number in self._nodes:
            self.host.took(self.places[number], ns - inside)
        self.seen.append(
            Seen(number, parent, self.load, self.sample, ns, ns - inside, content, what, size, is_wide, is_tensor)
        )
        self._cost_ns += time.perf_counter_ns() - began_look
        return result


def _called(function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    return function(*args, **named)


_CALLED = _called.__code__


def fingerprint(value: Any) -> str:
    """Return a text that is equal for equal contents within this process, "" where the content cannot be read."""
    digest = hashlib.blake2b(digest_size=12, key=_SALT)
    left = [4096, MAX_LOOKED_BYTES]  # parts and bytes
    return digest.hexdigest() if value is not None and _add(digest, value, left, 0) else ""


def _add(digest: Any, value: Any, left: list[int], depth: int) -> bool:
    left[0] -= 1
    if left[0] < 0 or depth > MAX_PART_DEPTH:
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
        if getattr(value, "nbytes", MAX_LOOKED_BYTES + 1) > left[1]:
            return False
        if value.dtype.hasobject:
            return _add(digest, value.tolist(), left, MAX_PART_DEPTH - 1)
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
    # Arrays of fewer than 64 numbers are constants and parameters of a sample.
    return f"{dtype} {shape}" if shape else dtype, size, dtype == "float64" and size >= 8 * 64


def wide_types(value: Any, depth: int = 0) -> bool:
    """Return whether what is handed on holds an array of 64-bit floats."""
    if depth > MAX_PART_DEPTH:
        return True
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return any(wide_types(each, depth + 1) for each in value)
    what, _, is_wide = _array(value)
    if what:
        return is_wide
    return not isinstance(value, str | bytes | int | float | bool | None) and not hasattr(value, "shape")
