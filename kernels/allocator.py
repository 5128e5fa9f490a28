"""Sets and checks options of the device's memory allocator.

What it cures
    `memory-fragmentation`: memory that is reserved and cannot be used. `allocator-stall` and `memory-pressure` where
    fragments are what fills the device.

When it does not help
    Where what is allocated fills the device: then a step must need less (`checkpointing`, `offload`, a smaller batch).
    After the first use of the device the settings are fixed.

Cost
    Expandable segments: on some platforms memory cannot be shared with other processes by handle. A collection
    threshold and a split limit ask the driver more often, milliseconds each.

Numerics
    None: memory has other addresses, numbers are the same.

Example::

    from diagnose.kernels.allocator import advise, apply_settings

    apply_settings("expandable_segments:True")  # before anything is put on the device
    # before: PYTORCH_CUDA_ALLOC_CONF=expandable_segment:true python train.py, misspelt and silently without effect
    stats = torch.cuda.memory_stats() if torch.cuda.is_available() else {"reserved_bytes.all.peak": 0}
    for x, y in loader:
        train_step(x, y)
    log(advise(stats))  # what was reserved, what of it was used, what to change
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Advice", "Usage", "advise", "apply_settings", "parse_settings", "settings_text", "usage"]

VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
"""The one that every release reads, and that wins where others are set too."""

VARIABLES = (VARIABLE, "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""All that torch reads; the first that is set wins."""

MIN_SPLIT_MB = 20
"""Size of the segments that large blocks are cut from; the allocator refuses limits below it."""

MIN_WASTED_SHARE = 0.2
"""Share of reserved memory that is never allocated; below it the cache is at work, above it fragments are likely."""

MIN_PRESSED_SHARE = 0.95
"""Share of the device at which the next larger allocation has to free something first."""

Check = Callable[[str], str | None]
"""Takes a value, returns what is expected instead, or None where it is right."""


def _flag(value: str) -> str | None:
    return None if value in ("True", "False") else "True or False"


def _megabytes(least: int) -> Check:
    def check(value: str) -> str | None:
        return None if value.isdecimal() and int(value) >= least else f"a whole number of MB, at least {least}"

    return check


def _share(*, whole: bool) -> Check:
    def check(value: str) -> str | None:
        number = _number(value)
        fits = 0 < number < 1 or (whole and number == 1)
        return None if fits else f"a number above 0 and {'up to' if whole else 'below'} 1"

    return check


def _power(value: str) -> str | None:
    return None if _is_power(value) else "a power of two"


def _divisions(value: str) -> str | None:
    expected = "a power of two, or a list such as [256:1,512:2,>:4] of sizes in MB and powers of two"
    if not (value.startswith("[") and value.endswith("]")):
        return None if _is_power(value) else expected
    pairs = [pair.partition(":") for pair in value[1:-1].split(",")]
    last = len(pairs) - 1
    fits = all(
        (_is_power(size) or (size == ">" and place == last)) and (count == "0" or _is_power(count))
        for place, (size, _, count) in enumerate(pairs)
    )
    return None if fits else expected


def _one_of(*names: str) -> Check:
    return lambda value: None if value in names else " or ".join(names)


def _is_power(value: str) -> bool:
    return value.isdecimal() and int(value) > 0 and not int(value) & (int(value) - 1)


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan


CHECKS: dict[str, Check] = {
    "expandable_segments": _flag,
    "max_split_size_mb": _megabytes(MIN_SPLIT_MB),
    "max_non_split_rounding_mb": _megabytes(MIN_SPLIT_MB),
    "garbage_collection_threshold": _share(whole=False),
    "roundup_power2_divisions": _divisions,
    "backend": _one_of("native", "cudaMallocAsync"),
    "release_lock_on_cudamalloc": _flag,
    "pinned_use_cuda_host_register": _flag,
    "pinned_num_register_threads": _power,
    "pinned_use_background_threads": _flag,
    "pinned_reserve_segment_size_mb": _megabytes(0),
    "per_process_memory_fraction": _share(whole=True),
    "large_segment_size_mb": _megabytes(MIN_SPLIT_MB),
    "graph_capture_record_stream_reuse": _flag,
    "throw_on_cudamalloc_oom": _flag,
}
"""What each setting takes. Older releases lack the later ones and raise when the device is first used."""


def parse_settings(text: str) -> dict[str, str]:
    """Return the settings of ``key:value,key:value`` by name, each checked.

    Raises:
        ValueError: a name is unknown or given twice, or a value is not what the allocator takes.
    """
    found: dict[str, str] = {}
    for part in _parts(text):
        key, separator, value = (piece.strip() for piece in part.partition(":"))
        if key not in CHECKS:
            close = difflib.get_close_matches(key, CHECKS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(CHECKS)}."
            raise ValueError(f"The allocator has no setting {key!r}; {hint}")
        if key in found:
            raise ValueError(f"{key} is given twice, as {found[key]} and {value}; keep one.")
        expected = CHECKS[key](value) if separator else "a value after a colon"
        if expected:
            raise ValueError(f"{key} takes {expected}, not {value!r}.")
        found[key] = value
    return found


def settings_text(settings: Mapping[str, object]) -> str:
    """Return the text that the environment variable takes, checked.

    Raises:
        ValueError: as ``parse_settings``.
    """
    text = ",".join(f"{key}:{value}" for key, value in settings.items())
    parse_settings(text)
    return text


def apply_settings(text: str) -> dict[str, str]:
    """Make these the settings of this process and of those that it starts, beside those that are set; return them all.

    Raises:
        ValueError: a setting is wrong, or one in the environment already is.
        RuntimeError: the device is in use already.
    """
    settings = parse_settings(_from_environment())
    settings |= parse_settings(text)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise RuntimeError(
            "The device is in use, and its allocator keeps its settings; call apply_settings first, or set "
            f"{VARIABLE}={text} before starting the script."
        )
    whole = settings_text(settings)
    os.environ[VARIABLE] = whole
    apply = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if apply is not None and whole:  # it has read the environment when torch was imported
        apply(whole)
    return settings


@dataclass(frozen=True, slots=True)
class Usage:
    """What the allocator counted, in bytes; peaks since the start or the last reset.

    ``inactive_split``: free parts of blocks whose other parts are in use, which cannot be given back.
    ``largest_free``: the largest free block now, None where it was not looked up. ``capacity``: of the device.
    """

    allocated_peak: int
    reserved_peak: int
    inactive_split: int
    retries: int
    out_of_memory: int
    largest_free: int | None = None
    capacity: int | None = None

    @property
    def wasted(self) -> float:
        """The share of reserved memory that was not even allocated at its peak."""
        return 1 - self.allocated_peak / self.reserved_peak if self.reserved_peak else 0.0


@dataclass(frozen=True, slots=True)
class Advice:
    """What to change: ``settings`` for the allocator, None where they are not the remedy, and the reason."""

    usage: Usage
    settings: str | None
    reason: str

    def __str__(self) -> str:
        """Return one sentence for a log."""
        change = f"set {VARIABLE}={self.settings}" if self.settings else "leave the allocator as it is"
        return f"{self.reason}: {change}."


def usage(device: torch.device | str | int | None = None) -> Usage:
    """Return what the allocator of a CUDA device counted; waits for nothing.

    Raises:
        RuntimeError: there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("There is no CUDA device to read an allocator from; use memory_snapshot on the CPU.")
    index = torch.cuda._get_device_index(device, optional=True)  # type: ignore[attr-defined]  # as torch's own functions
    free = [
        block["size"]
        for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        if segment["device"] == index
        for block in segment["blocks"]
        if block["state"] == "inactive"
    ]
    capacity = torch.cuda.get_device_properties(index).total_memory
    return _usage(torch.cuda.memory_stats(index), max(free, default=0), capacity)


def advise(stats: Mapping[str, Any] | Usage, *, current: str | None = None) -> Advice:
    """Return what to change, from ``usage()`` or ``torch.cuda.memory_stats()`` at the end of some steps.

    ``current``: the settings of the run; without it those of the environment. Expandable segments come first; where
    they are on, a collection threshold, then a limit for splitting.

    Raises:
        ValueError: a current setting is wrong.
    """
    seen = stats if isinstance(stats, Usage) else _usage(stats, None, None)
    settings = parse_settings(_from_environment() if current is None else current)
    pressed = (
        seen.retries
        or seen.out_of_memory
        or (seen.capacity and seen.reserved_peak >= MIN_PRESSED_SHARE * seen.capacity)
    )
    figures = (
        f"{seen.reserved_peak / 1e9:.2f} GB reserved, {seen.allocated_peak / 1e9:.2f} GB allocated at the peak, "
        f"{seen.retries} retries"
    )
    if seen.wasted < MIN_WASTED_SHARE and pressed:
        return Advice(seen, None, f"{figures}; memory is full of tensors, so a step must need less")
    if seen.wasted < MIN_WASTED_SHARE or not pressed:
        return Advice(seen, None, f"{figures}; nothing is short")
    if settings.get("expandable_segments") != "True" and settings.get("backend") != "cudaMallocAsync":
        added = {"expandable_segments": "True"}
    elif "garbage_collection_threshold" not in settings:
        added = {"garbage_collection_threshold": "0.8"}
    elif "max_split_size_mb" not in settings and settings.get("expandable_segments") != "True":
        added = {"max_split_size_mb": "512"}
    else:
        return Advice(seen, None, f"{figures}; these settings do not help, so use fewer sizes of tensors")
    return Advice(seen, settings_text({**settings, **added}), f"{figures}; {seen.wasted:.0%} is held in fragments")


def _from_environment() -> str:
    return next(filter(None, map(os.environ.get, VARIABLES)), "")


def _usage(stats: Mapping[str, Any], largest_free: int | None, capacity: int | None) -> Usage:
    def figure(name: str) -> int:
        return int(stats.get(name, 0))

    return Usage(
        allocated_peak=figure("allocated_bytes.all.peak"),
        reserved_peak=figure("reserved_bytes.all.peak"),
        inactive_split=figure("inactive_split_bytes.all.current"),
        retries=figure("num_alloc_retries"),
        out_of_memory=figure("num_ooms"),
        largest_free=largest_free,
        capacity=capacity,
    )


def _parts(text: str) -> Iterable[str]:
    """Return the pieces between commas, those within brackets left alone."""
    depth, part = 0, ""
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            yield part
            part = ""
        else:
            part += letter
    if part.strip():
        yield part
