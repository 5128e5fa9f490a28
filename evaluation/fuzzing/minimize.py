"""Makes a failing mutant small: parts of its JSON are left out for as long as the same problem remains."""

from __future__ import annotations

import contextlib
import gzip
import json
import time
from collections.abc import Callable
from typing import Any

from fuzzing.cases import Case
from fuzzing.checks import Problem, problems
from fuzzing.damage import packed
from fuzzing.running import run_case, watch_rules

__all__ = ["minimized"]

BUDGET_S = 20.0


def minimized(case: Case, problem: Problem, *, budget_s: float = BUDGET_S) -> Case:
    """Return a smaller case with the same problem; the case itself where nothing can be left out."""
    watch_rules()
    until = time.monotonic() + budget_s

    def holds(candidate: Case) -> bool:
        return time.monotonic() < until and problem in problems(candidate, run_case(candidate))

    for name in list(case.files):
        smaller = Case(case.argv, {key: data for key, data in case.files.items() if key != name}, case.what)
        if len(case.files) > 1 and holds(smaller):
            case = smaller
    for name in list(case.files):
        case = _smaller_file(case, name, holds)
    return case


def _smaller_file(case: Case, name: str, holds: Callable[[Case], bool]) -> Case:
    data = case.files[name]
    with contextlib.suppress(OSError, ValueError, EOFError, RecursionError):
        text = gzip.decompress(data) if name.endswith(".gz") else data
        document = json.loads(text)
        write = packed if name.endswith(".gz") else bytes

        def with_document(changed: Any) -> Case:  # any JSON
            return Case(case.argv, {**case.files, name: write(json.dumps(changed).encode())}, case.what)

        if isinstance(document, (dict, list)) and holds(with_document(document)):
            _shrink(document, lambda: holds(with_document(document)))
            return with_document(document)
    return case


def _shrink(part: Any, holds: Callable[[], bool]) -> None:  # any JSON
    """Leave out, in place, whatever the problem does not need: large pieces of lists first, then keys, then deeper."""
    if isinstance(part, list):
        _shrink_list(part, holds)
    else:
        for key in list(part):
            kept = dict(part)
            del part[key]
            if not holds():
                part.clear()
                part.update(kept)
    for found in list(part.values()) if isinstance(part, dict) else list(part):
        if isinstance(found, (dict, list)):
            _shrink(found, holds)


def _shrink_list(part: list[Any], holds: Callable[[], bool]) -> None:
    size = len(part)
    while size:
        at = 0
        while at < len(part):
            kept = part[:]
            del part[at : at + size]
            if not holds():
                part[:] = kept
                at += size
        size //= 2
