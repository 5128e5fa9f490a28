"""What a tool is to the yardstick, and what several adapters share."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from yardstick.answer import Answer, NoAnswerError, Part
from yardstick.case import Recording, Script
from yardstick.led import NO_CASES, Led

__all__ = ["Tool", "plain_script", "timed_trace", "trace_with_shapes", "unpacked"]

Kind = Literal["script", "recording"]


@dataclass(frozen=True)
class Tool:
    """A tool, its pinned packages, and the form of its use that its documentation recommends."""

    name: str
    form: str
    kinds: tuple[Kind, ...]
    answers: tuple[Part, ...]  # which parts its answer has at all
    ask: Callable[[Path, Script | Recording, Path], str]  # with its Python, in an empty folder; returns what it printed
    read: Callable[[str], Answer]
    requirements: tuple[str, ...] = ()
    without_dependencies: str = ""  # a package that is installed without those it lists
    led: Led = NO_CASES  # which cases led to its rules, if it was developed with these cases in view
    needs_torch: bool = False  # it finds the torch of the Python that runs the yardstick


def plain_script(subject: Script | Recording, folder: Path) -> Path:
    """Copy a script that starts as "python FILE" and return the folder that it runs in.

    Raises:
        NoAnswerError: it starts in another way.
    """
    assert isinstance(subject, Script), "the tool takes scripts"
    if subject.ranks > 1 or subject.module:
        raise NoAnswerError("the script starts by torchrun or -m")
    return subject.copied(folder)


def timed_trace(subject: Script | Recording, folder: Path) -> Path:
    """Return the trace of the first rank; of a capture, the one without stacks, whose times are not inflated."""
    return _trace(subject, folder, "light")


def trace_with_shapes(subject: Script | Recording, folder: Path) -> Path:
    """Return the trace of the first rank; of a capture, the one with shapes and stacks."""
    return _trace(subject, folder, "attribution")


def _trace(subject: Script | Recording, folder: Path, window: str) -> Path:
    assert isinstance(subject, Recording), "the tool takes recordings"
    found = subject.found(folder)
    if found.is_file():
        return found
    for pattern in (f"*{window}*trace.json.gz", "*.json.gz", "*.json"):
        if traces := sorted(found.glob(pattern)):
            return traces[0]
    raise NoAnswerError("the recording has no trace of torch.profiler")


def unpacked(trace: Path, folder: Path) -> Path:
    """Return a trace as plain JSON, for tools that read no gzip."""
    if trace.suffix != ".gz":
        return trace
    plain = folder / "unpacked.json"
    with gzip.open(trace) as packed, plain.open("wb") as file:
        shutil.copyfileobj(packed, file)
    return plain
