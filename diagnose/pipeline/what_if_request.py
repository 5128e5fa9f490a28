"""What a user asks: changes of one rank, and of all ranks of a job."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from diagnose.errors import UsageError
from diagnose.model.records import MAX_INT
from diagnose.model.rules import LATE_RANKS

__all__ = ["AskedOfJob", "WhatIfRequest", "parse_place", "parse_scale", "parse_size"]

MAX_FACTOR = 1000.0  # no other device is slower by more
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt]?)(i?)b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class AskedOfJob:
    """What is asked about all ranks, in the order in which it is made."""

    without_late: bool = False
    bucket_mb: float | None = None
    overlap: tuple[str, ...] = ()  # names of collectives, of OVERLAPPED

    def __bool__(self) -> bool:
        """Return whether anything is asked."""
        return self != AskedOfJob()


@dataclass(frozen=True, slots=True)
class WhatIfRequest:
    """The changes, in the order in which they are made."""

    apply: tuple[str, ...] = ()  # ids of prescriptions
    without: tuple[str, ...] = ()  # rules whose cause is taken away whole
    no_sync: tuple[tuple[str, int], ...] = ()  # lines that wait for the device
    workers: int | None = None  # of the DataLoader
    bucket_mb: float | None = None  # of DistributedDataParallel
    overlap: tuple[str, ...] = ()  # collectives of all ranks, as `all_gather`
    scale: tuple[tuple[str, float], ...] = ()  # kernels, by a pattern of their names, and the share of their time
    memory: int | None = None  # bytes that the step may hold at its peak

    def of_job(self, num_ranks: int) -> tuple[AskedOfJob, WhatIfRequest]:
        """Return what is asked about all ranks, which is made after what changes one of them, and the rest.

        Raises:
            UsageError: it needs several ranks, and there is one.
        """
        if num_ranks == 1:
            if self.overlap:
                raise UsageError(
                    "Overlapped exchanges are replayed on all ranks at once, and this is the recording of one: give "
                    "the folder of all ranks."
                )
            return AskedOfJob(), self
        others = tuple(rule for rule in self.without if rule != LATE_RANKS)
        asked = AskedOfJob(others != self.without, self.bucket_mb, self.overlap)
        return asked, replace(self, without=others, bucket_mb=None, overlap=())


def parse_scale(text: str) -> tuple[str, float]:
    """Read PATTERN=FACTOR, or kernel~PATTERN=FACTOR.

    Raises:
        UsageError: it is not of that form, or the factor is negative or beyond any machine.
    """
    pattern, _, factor = text.removeprefix("kernel~").rpartition("=")
    try:
        value = float(factor)
        re.compile(pattern)
    except (ValueError, re.error):
        raise UsageError(f"{text} is not of the form PATTERN=FACTOR, such as 'gemm=0.5'.") from None
    if not pattern or not 0 <= value <= MAX_FACTOR:
        raise UsageError(
            f"{text} is not of the form PATTERN=FACTOR with a factor from 0 to {MAX_FACTOR:g}, such as 'gemm=0.5'."
        )
    return pattern, value


def parse_place(text: str) -> tuple[str, int]:
    """Read FILE:LINE.

    Raises:
        UsageError: it is not of that form.
    """
    file, _, line = text.rpartition(":")
    if not file or not line.isdecimal() or int(line) < 1:
        raise UsageError(f"{text} is not of the form FILE:LINE, such as train.py:42.")
    return file, int(line)


def parse_size(text: str) -> int:
    """Read a number of bytes with its unit, such as 20GB (10^9 bytes) or 20GiB (2^30).

    Raises:
        UsageError: it is not of that form.
    """
    found = _SIZE.fullmatch(text.strip())
    unit = (1024 if found[3] else 1000) ** " kmgt".index(found[2].lower() or " ") if found is not None else 0
    size = float(found[1]) * unit if found is not None else 0.0
    if not 1 <= size <= MAX_INT:
        raise UsageError(f"{text} is not a number with a unit of memory, such as 500MB, 20GB or 20GiB.")
    return int(size)
