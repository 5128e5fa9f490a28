"""Prints which limits never decide anything: no comparison with them comes out otherwise without them.

    scripts/python evaluation/binding.py [--room tables …] [--every N] [RECORDING …]

One pass for all limits, where `rent.py` needs one for each: a limit named MIN… or MAX… is replaced by a number that
carries along what it would be without it, nothing or more than anything, through sums, products and arrays. Each
comparison is made with both. A limit that never decides is printed with the number of its comparisons; one whose value
goes where it cannot be followed, as into a slice, is not. What never decides wins nothing on these recordings.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import math
import operator
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from house import ROOMS, _files, constants
from rent import DECIDING, _recordings

COMPARED = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
COMPUTED = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide, "floordiv": np.floor_divide}


class Log:
    """What was compared with each limit."""

    def __init__(self) -> None:
        self.compared: Counter[str] = Counter()
        self.decided: Counter[str] = Counter()
        self.lost: set[str] = set()  # whose value went where it cannot be followed

    def add(self, limit: str, outcome: Any, without: Any) -> None:
        """Take a comparison, with the limit and without it."""
        self.compared[limit] += int(np.size(outcome))
        self.decided[limit] += int(np.sum(np.asarray(outcome) != np.asarray(without)))


class Watched(float):
    """A number that follows from a limit, with what it would be without it."""

    limit: str
    without: Any
    log: Log

    def __new__(cls, value: float, without: float, limit: str, log: Log) -> Watched:
        """Return such a number."""
        made = super().__new__(cls, value)
        made.limit, made.without, made.log = limit, without, log
        return made

    def __index__(self) -> int:
        self.log.lost.add(self.limit)
        return int(float.__float__(self))

    __int__ = __index__
    __hash__ = float.__hash__

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *given: Any, **options: Any) -> Any:
        plain = [float.__float__(each) if isinstance(each, Watched) else each for each in given]
        other = [each.without if isinstance(each, Watched) else each for each in given]
        found = getattr(ufunc, method)(*plain, **options)
        with np.errstate(all="ignore"):
            without = getattr(ufunc, method)(*other, **{name: each for name, each in options.items() if name != "out"})
        if np.asarray(found).dtype == bool:
            self.log.add(self.limit, found, without)
            return found
        if np.ndim(found) == 0:
            return Watched(float(found), float(without), self.limit, self.log)
        if not np.array_equal(found, without):
            self.log.lost.add(self.limit)
        return found


def _with_arithmetic() -> None:
    def method(name: str, ufunc: np.ufunc, *, is_reflected: bool) -> None:
        def applied(self: Watched, other: Any) -> Any:
            if not isinstance(other, int | float | np.ndarray | np.generic):
                return NotImplemented
            return self.__array_ufunc__(ufunc, "__call__", *((other, self) if is_reflected else (self, other)))

        setattr(Watched, name, applied)

    for name, ufunc in (*COMPARED.items(), *COMPUTED.items()):
        method(f"__{name}__", ufunc, is_reflected=False)
    for name, ufunc in COMPUTED.items():
        method(f"__r{name}__", ufunc, is_reflected=True)


_with_arithmetic()


def watch(rooms: list[str] | tuple[str, ...], log: Log) -> list[str]:
    """Replace the limits of some rooms in every module that has them, and return their names."""
    files = dict(file for room in rooms for file in _files(*ROOMS[room]))
    modules = {file: file.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for file in files}
    modules = {file: name if name.startswith("diagnose") else f"diagnose.{name}" for file, name in modules.items()}
    for name in modules.values():
        importlib.import_module(name)
    holders = [module for name, module in list(sys.modules.items()) if name.startswith("diagnose")]
    watched = []
    for name, places in constants({file: ast.parse(text) for file, text in files.items()}).items():
        for file, _ in places if "MIN" in name or "MAX" in name else ():
            value = getattr(sys.modules[modules[file]], name)
            if type(value) not in (int, float):
                continue
            limit = f"{modules[file].removeprefix('diagnose.')}.{name}"
            number = Watched(value, 0.0 if "MIN" in name else math.inf, limit, log)
            for module in holders:
                if operator.eq(getattr(module, name, None), value):
                    setattr(module, name, number)
            watched.append(limit)
    return watched


def main() -> int:
    """Print the limits that never decide."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recordings", nargs="*", type=Path, help="traces and captures; without any, those of rent.py")
    parser.add_argument("--room", action="append", choices=list(ROOMS), help=f"of {', '.join(DECIDING)}")
    parser.add_argument("--every", type=int, default=1, help="take each Nth recording only")
    options = parser.parse_args()
    os.environ["DIAGNOSE_NO_CACHE"] = "1"
    from diagnose.answer.screen import answer
    from diagnose.api import analyze_trace
    from diagnose.errors import InputError

    log = Log()
    watched = watch(options.room or DECIDING, log)
    recordings = (options.recordings or _recordings())[:: options.every]
    for path in recordings:
        try:
            answer(analyze_trace(path))
        except InputError:
            continue
    print(f"{len(recordings)} recordings, {len(watched)} limits\n\n| limit | comparisons |\n|---|---|")
    for limit in sorted(watched):
        if log.compared[limit] and not log.decided[limit] and limit not in log.lost:
            print(f"| {limit} | {log.compared[limit]} |")
    print(f"\nNever compared: {', '.join(sorted(set(watched) - set(log.compared) - log.lost))}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
