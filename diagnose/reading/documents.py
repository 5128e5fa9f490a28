"""The small files of a capture folder: its description and the sampler's rows."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from diagnose.captures import CaptureInfo, Samples
from diagnose.errors import InputError
from diagnose.reading.source import open_source

__all__ = ["read_info", "read_samples"]

_CHUNK = 1 << 18


class _SampleRows(msgspec.Struct, gc=False):
    places: list[tuple[str, int, str]]
    time_ns: list[int]
    place: list[int]
    running: list[int]
    gc: list[tuple[int, int]] = []  # absent where collections were not noted


def read_info(path: Path) -> CaptureInfo:
    """Read a capture.json.

    Raises:
        InputError: it cannot be read or is not a capture description.
    """
    try:
        data = msgspec.json.decode(_read(path))
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InputError(f"{path} is not valid JSON. Trace the script again.") from None
    if not isinstance(data, dict):
        raise InputError(f"{path} is not a capture description. Trace the script again.")
    return CaptureInfo.from_json(data, source=str(path))


def read_samples(path: Path) -> Samples:
    """Read the sampler's file.

    Raises:
        InputError: it cannot be read, or its columns do not fit together.
    """
    try:
        rows = msgspec.json.decode(_read(path), type=_SampleRows)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InputError(f"{path} holds no samples that can be read. Trace the script again.") from None
    place = np.array(rows.place, np.int32)
    if not len(rows.time_ns) == len(place) == len(rows.running) or (place >= len(rows.places)).any():
        raise InputError(f"The columns of {path} do not fit together. Trace the script again.")
    return Samples(
        time_ns=np.array(rows.time_ns, np.int64),
        place=place,
        running=np.array(rows.running, np.int8),
        places=tuple(rows.places),
        gc_runs=tuple(rows.gc),
    )


def _read(path: Path) -> bytes:
    text, chunk = bytearray(), bytearray(_CHUNK)
    with open_source(path) as source:
        while count := source.readinto(memoryview(chunk)):
            text += chunk[:count]
    return bytes(text)
