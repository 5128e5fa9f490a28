"""What a trial's process is given, and what it returns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from diagnose.text.plain_text import clean

__all__ = ["MIN_MEDIAN_STEPS", "TrialRequest", "TrialResult"]

MIN_MEDIAN_STEPS = 5  # steps of a run that ends early: fewer make no median
MAX_TEXT = 2_000  # characters of a sentence: it quotes the script's own exception
MAX_WHOLE = 1 << 62  # bytes, steps, exit codes


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
    capture_steps: int | None = None
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
        unknown = sorted(set(values) - set(_READERS))
        if unknown:
            raise ValueError(f"it has the field {unknown[0]!r}")
        return cls(**{name: _READERS[name](name, value) for name, value in values.items()})


def _wrong(name: str) -> ValueError:
    return ValueError(f"its {name} is not what a run measures")


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(name)
    try:
        return float(value)
    except OverflowError:  # an integer of a thousand digits
        raise _wrong(name) from None


def _numbers(name: str, value: object) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise _wrong(name)
    return tuple(_number(name, one) for one in value)


def _durations(name: str, value: object) -> tuple[float, ...]:
    found = _numbers(name, value)
    if not all(0 < one < inf for one in found):
        raise _wrong(name)
    return found


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_WHOLE:
        raise _wrong(name)
    return value


def _optional(name: str, value: object) -> int | None:
    return None if value is None else _whole(name, value)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name)
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(name)
    return clean(value)[:MAX_TEXT]


def _texts(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _wrong(name)
    return tuple(_text(name, one) for one in value)


_READERS: dict[str, Callable[[str, object], Any]] = {
    "ids": _texts,
    "step_ns": _durations,
    "losses": _numbers,
    "grad_norms": _numbers,
    "skipped_steps": _optional,
    "peak_bytes": _optional,
    "clock": _text,
    "warm_up": _whole,
    "converged": _flag,
    "samples_draw": _flag,
    "first_epoch": _optional,
    "applied": _texts,
    "refused": _texts,
    "ended": _text,
    "exit_code": _whole,
    "failure": _text,
    "wall_s": _number,
}
