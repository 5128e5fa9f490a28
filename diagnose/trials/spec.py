"""What a trial's process is given, and what it returns."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from math import inf
from pathlib import Path
from typing import Any

from diagnose.text.plain_text import clean

__all__ = ["MIN_MEDIAN_STEPS", "TrialRequest", "TrialResult", "error_text"]

MIN_MEDIAN_STEPS = 5  # steps of a run that ends early: fewer make no median


@dataclass(frozen=True)
class TrialRequest:
    """What one process is to do with the script."""

    result: str  # file to write
    ids: tuple[str, ...] = ()  # patches
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of patches, by id
    warm_up: int = 10  # steps before timing, at least
    timed: int = 30  # steps to time
    seed: int = 0  # of every generator, before the script's first line; what it seeds itself comes later
    step_on: str = "auto"
    capture: str = ""  # a folder: trace the script into it instead of timing it
    capture_s: float | None = None  # most seconds of recording, from the first step on

    def write(self, path: Path) -> None:
        """Write the order where the process reads it."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> TrialRequest:
        """Read what ``write`` wrote."""
        values = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**values, "ids": tuple(values["ids"])})


@dataclass(frozen=True)
class TrialResult:
    """What one process measured; ``failure`` states why there is nothing, "" where there is."""

    ids: tuple[str, ...] = ()
    step_ns: tuple[float, ...] = ()  # of the timed steps
    losses: tuple[float, ...] = ()  # of every backward pass from the first, scalars only
    grad_norms: tuple[float, ...] = ()  # of the first optimizer steps
    skipped_steps: int | None = None  # that a GradScaler left out; None where there is none
    peak_bytes: int | None = None
    clock: str = "host"  # or "device events"
    warm_up: int = 0  # steps before the timed ones
    converged: bool = True
    applied: tuple[str, ...] = ()  # what the patches changed
    refused: tuple[str, ...] = ()  # and what they left alone
    ended: str = ""
    exit_code: int = 0
    failure: str = ""
    wall_s: float = 0.0
    samples_draw: bool = False  # samples that its own process loaded drew random numbers
    first_epoch: int | None = None  # losses before a loader began its second epoch, None where none did

    def to_json(self) -> str:
        """Return the run as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TrialResult:
        """Read what ``to_json`` wrote; a trial's process belongs to the script, so nothing in it is taken on trust.

        Raises:
            ValueError: it is something else.
        """
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError("it is no JSON object")
        types = {each.name: str(each.type) for each in fields(cls)}
        for name, value in values.items():
            if name not in types:
                raise ValueError(f"it has the field {name!r}")
            is_valid, read = _READERS[types[name]]
            if not is_valid(value) or (name == "step_ns" and not all(0 < ns < inf for ns in value)):
                raise ValueError(f"its {name} is not what a run measures")
            values[name] = read(value)
        return cls(**values)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


def _is_number(value: object) -> bool:
    return isinstance(value, float) or _is_whole(value)


def _text(value: str) -> str:
    return clean(value)[:2_000]  # it quotes the script's own exception


_READERS: Mapping[str, tuple[Callable[[Any], bool], Callable[[Any], Any]]] = {  # by the type of the field
    "bool": (lambda value: isinstance(value, bool), bool),
    "int": (_is_whole, int),
    "int | None": (lambda value: value is None or _is_whole(value), lambda value: value),
    "float": (_is_number, float),
    "str": (lambda value: isinstance(value, str), _text),
    "tuple[float, ...]": (
        lambda value: isinstance(value, list) and all(map(_is_number, value)),
        lambda value: tuple(map(float, value)),
    ),
    "tuple[str, ...]": (
        lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
        lambda value: tuple(map(_text, value)),
    ),
}


def error_text(error: BaseException) -> str:
    """Return the exception's name and the first line of its message, without a full stop."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    where = _saved_file(error) if "open file failed" in str(error) else ""
    return f"{type(error).__name__}: {lines[0].rstrip('.')}{where}"


def _saved_file(error: BaseException) -> str:
    """Return the name of the file that torch.save could not open, which its error lacks."""
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code.co_name == "save"]
    return next((f": {str(found['f'])!r}" for found in reversed(frames) if isinstance(found.get("f"), str | Path)), "")
