"""The small files of a capture folder: its description, the sampler's rows, the source lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from diagnose.captures import CaptureInfo, Samples
from diagnose.errors import InputError
from diagnose.masking import mask_command, mask_text
from diagnose.reading.source import open_source

__all__ = ["read_info", "read_lines", "read_samples"]

_CHUNK = 1 << 18


class _SampleRows(msgspec.Struct, gc=False):
    places: list[tuple[str, int, str]]
    time_ns: list[int]
    place: list[int]
    running: list[int]
    gc: list[tuple[int, int]] = []  # absent where collections were not noted


class _SourceFile(msgspec.Struct, gc=False):
    lines: dict[int, str]


class _SourceFiles(msgspec.Struct, gc=False):
    files: dict[str, _SourceFile]


def read_info(path: Path) -> CaptureInfo:
    """Read a capture.json; what an earlier version wrote is masked here.

    Raises:
        InputError: it cannot be read or is not a capture description.
    """
    try:
        data = msgspec.json.decode(_read(path))
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InputError(f"{path} is not valid JSON. Trace the script again.") from None
    if not isinstance(data, dict):
        raise InputError(f"{path} is not a capture description. Trace the script again.")
    info = CaptureInfo.from_json(data, source=str(path))
    return replace(info, command=mask_command(info.command), notes=tuple(map(mask_text, info.notes)))


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


def read_lines(path: Path) -> dict[tuple[str, int], str]:
    """Read the stored source lines: the text of each by file and line.

    Raises:
        InputError: it cannot be read.
    """
    try:
        stored = msgspec.json.decode(_read(path), type=_SourceFiles)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InputError(f"{path} holds no source lines that can be read. Trace the script again.") from None
    return {(name, line): text for name, file in stored.files.items() for line, text in file.lines.items()}


def _read(path: Path) -> bytes:
    text, chunk = bytearray(), bytearray(_CHUNK)
    with open_source(path) as source:
        while count := source.readinto(memoryview(chunk)):
            text += chunk[:count]
    return bytes(text)
