"""Lists of numbers that a dataset's samples hold: what torch's own collate takes for them, and for arrays instead."""

from __future__ import annotations

import ast
import inspect
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diagnose.model.records import ListedRecord

__all__ = ["listed_numbers"]


def listed_numbers(loader: Any, indices: Sequence[Any]) -> ListedRecord | None:
    """Return what arrays in the place of lists save of loading a batch, None if samples hold no such lists."""
    collate: Any = loader.collate_fn
    is_torchs = getattr(collate, "__module__", "") == "torch.utils.data._utils.collate"
    if not is_torchs or callable(getattr(loader.dataset, "__getitems__", None)):
        return None
    began = time.perf_counter_ns()
    samples = [loader.dataset[index] for index in indices]
    loaded_ns = time.perf_counter_ns() - began
    lists = dict(_lists(samples[0]))
    numbers = sum(map(len, lists.values()))
    if not numbers:
        return None
    times = []
    for batch in (samples, None):
        began = time.perf_counter_ns()
        collate(batch or [_with_arrays(each) for each in samples])
        times.append(time.perf_counter_ns() - began)
    name = max(lists, key=lambda name: len(lists[name]))
    file, line, function = _place(loader.dataset, name)
    share = max(times[0] - times[1], 0) / max(loaded_ns + times[0], 1)
    return ListedRecord(file=file, line=line, function=function, text=name, numbers=numbers, share=round(share, 4))


def _parts(sample: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(sample, dict):
        yield from ((str(name), value) for name, value in sample.items())
    elif type(sample) in (list, tuple):
        yield from ((f"item {place}", value) for place, value in enumerate(sample))


def _lists(sample: Any) -> Iterator[tuple[str, list[Any]]]:
    return ((name, value) for name, value in _parts(sample) if _is_of_numbers(value))


def _is_of_numbers(value: Any) -> bool:
    return type(value) in (list, tuple) and len(value) > 0 and {*map(type, value)} <= {int, float}


def _with_arrays(sample: Any) -> Any:
    if isinstance(sample, dict):
        return {name: np.asarray(value) if _is_of_numbers(value) else value for name, value in sample.items()}
    return tuple(np.asarray(value) if _is_of_numbers(value) else value for value in sample)


def _place(dataset: Any, name: str) -> tuple[str, int, str]:
    """Return the line of a dataset's ``__getitem__`` that hands on a part of the sample, else that which returns it."""
    function: Any = type(dataset).__getitem__
    code = function.__code__
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(inspect.cleandoc("\n" + "".join(lines)))
    except (OSError, SyntaxError, TypeError):
        return code.co_filename, code.co_firstlineno, code.co_name
    keys = [key.lineno for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys
            if isinstance(key, ast.Constant) and str(key.value) == name]  # fmt: skip
    returns = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Return)]
    at = next(iter([*keys, *returns]), 1)
    return code.co_filename.removeprefix(f"{Path.cwd()}{os.sep}"), first + at - 1, code.co_name
