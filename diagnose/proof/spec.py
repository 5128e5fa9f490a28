"""What a trial's process is told, and what it tells back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["LEAST_TIMED", "Order", "Run"]

LEAST_TIMED = 5  # steps of a run that ends early: fewer make no median


@dataclass(frozen=True)
class Order:
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

    def write(self, path: Path) -> None:
        """Write the order where the process reads it."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Order:
        """Read what ``write`` wrote."""
        values = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**values, "ids": tuple(values["ids"])})


@dataclass(frozen=True)
class Run:
    """What one process measured; ``failure`` says in a sentence why there is nothing, "" where there is."""

    ids: tuple[str, ...] = ()
    step_ns: tuple[float, ...] = ()  # of the timed steps
    losses: tuple[float, ...] = ()  # of every backward pass from the first, scalars only
    grad_norms: tuple[float, ...] = ()  # of the first optimizer steps
    skipped_steps: int | None = None  # that a GradScaler left out; None where there is none
    peak_bytes: int | None = None
    clock: str = "host"  # or "device events"
    warm_up: int = 0  # steps before the timed ones
    steady: bool = True
    applied: tuple[str, ...] = ()  # what the patches changed
    refused: tuple[str, ...] = ()  # and what they left alone
    ended: str = ""
    exit_code: int = 0
    failure: str = ""
    wall_s: float = 0.0

    def to_json(self) -> str:
        """Return the run as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Run:
        """Read what ``to_json`` wrote.

        Raises:
            ValueError, TypeError: it is something else.
        """
        values = json.loads(text)
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**{**values, **lists})
