"""The small files of a capture folder: its description, the sampler's rows, the source lines."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta

from diagnose.errors import InputError
from diagnose.model.assignments import Binding, StoredSource
from diagnose.model.capture import (
    MAX_INFO_BYTES,
    REMEDY,
    CaptureInfo,
    Loops,
    RunSteps,
    Samples,
)
from diagnose.model.dataflow import Dataflow
from diagnose.model.dataflow_file import dataflow_from_json
from diagnose.model.records import Count, DequeRecord, Time, decode
from diagnose.text.masking import mask_command, mask_text
from diagnose.trace_reader.source import open_source
from diagnose.trace_reader.stored import Stored

MAX_BYTES = 256 << 20  # of a file, decompressed: a data flow has at most 200,000 operators of a kilobyte each
MAX_STORED_PLACES = 1 << 20


_Place: TypeAlias = tuple[str, Annotated[int, Meta(ge=-1, le=2**31 - 1)], str]


class _SampleRows(msgspec.Struct, gc=False):
    places: Annotated[list[_Place], Meta(max_length=MAX_STORED_PLACES)]
    time_ns: list[Time]
    place: list[Annotated[int, Meta(ge=-1, lt=MAX_STORED_PLACES)]]
    running: list[Annotated[int, Meta(ge=-1, le=1)]]
    gc: list[tuple[Time, Time]] = []  # absent where collections were not noted


class _StepRows(msgspec.Struct, gc=False):
    began_ns: list[Time]
    took_ns: list[Count]
    state: list[Annotated[int, Meta(ge=0, le=3)]]
    device_ns: list[Count] = []  # absent without a GPU
    phases: dict[str, list[Count]] = {}
    paths: Annotated[list[Annotated[list[_Place], Meta(min_length=1)]], Meta(max_length=MAX_STORED_PLACES)] = []
    sampled_ns: list[Time] = []
    path: list[Annotated[int, Meta(ge=0, lt=MAX_STORED_PLACES)]] = []


class _SourceFile(msgspec.Struct, gc=False):
    lines: dict[int, str]
    loops: dict[int, int] = {}
    functions: dict[int, int] = {}
    bound: dict[int, tuple[str, ...]] = {}
    draws: list[int] = []
    seeded: list[int] = []
    deques: list[DequeRecord] = []
    statements: dict[int, int] = {}
    texts: dict[int, str] = {}
    bindings: list[Binding] = []


class _SourceFiles(msgspec.Struct, gc=False):
    files: dict[str, _SourceFile]


def read_info(path: Path | Stored) -> CaptureInfo:
    """Read a capture.json; what an earlier version wrote is masked here.

    Raises:
        InputError: it cannot be read or is not a capture description.
    """
    info = CaptureInfo.from_json(_read(path, MAX_INFO_BYTES), source=str(path))
    return msgspec.structs.replace(info, command=mask_command(info.command), notes=tuple(map(mask_text, info.notes)))


def read_samples(path: Path | Stored) -> Samples:
    """Read the sampler's file.

    Raises:
        InputError: it cannot be read, or its columns do not fit together.
    """
    rows = decode(_read(path, MAX_BYTES), _SampleRows, source=str(path), remedy=REMEDY)
    place = np.array(rows.place, np.int32)
    if not len(rows.time_ns) == len(place) == len(rows.running) or (place >= len(rows.places)).any():
        raise InputError(f"The columns of {path} do not fit together. {REMEDY}")
    if any(end < begin for begin, end in rows.gc):
        raise InputError(f"{path} cannot be used: a collection in its field gc ends before it begins. {REMEDY}")
    return Samples(
        time_ns=np.array(rows.time_ns, np.int64),
        place=place,
        running=np.array(rows.running, np.int8),
        places=tuple(rows.places),
        gc_runs=tuple(rows.gc),
    )


def read_steps(path: Path | Stored) -> RunSteps:
    """Read the times of all steps.

    Raises:
        InputError: it cannot be read, or its columns do not fit together.
    """
    rows = decode(_read(path, MAX_BYTES), _StepRows, source=str(path), remedy=REMEDY)
    num, row = len(rows.took_ns), np.array(rows.path, np.int32)
    columns = (rows.began_ns, rows.state, rows.device_ns or rows.state, *rows.phases.values())
    fits = all(len(column) == num for column in columns) and len(row) == len(rows.sampled_ns)
    if not fits or (row >= len(rows.paths)).any():
        raise InputError(f"The columns of {path} do not fit together. {REMEDY}")
    return RunSteps(
        began_ns=np.array(rows.began_ns, np.int64),
        took_ns=np.array(rows.took_ns, np.int64),
        state=np.array(rows.state, np.int8),
        phases={name: np.array(column, np.int64) for name, column in rows.phases.items()},
        paths=tuple(tuple(path) for path in rows.paths),
        sampled_ns=np.array(rows.sampled_ns, np.int64),
        path=row,
        device_ns=np.array(rows.device_ns, np.int64),
    )


def read_dataflow(path: Path | Stored) -> Dataflow:
    """Read the data flow of two steps.

    Raises:
        InputError: it cannot be read, or its columns do not fit together.
    """
    return dataflow_from_json(_read(path, MAX_BYTES), source=str(path), remedy=REMEDY)


class SourceText(NamedTuple):
    """What a capture holds of the script's source files."""

    lines: dict[tuple[str, int], str]  # text by file and line
    loops: dict[str, Loops]
    draws: dict[str, tuple[int, ...]]  # of a file: lines at which samples draw random numbers
    seeded: dict[str, tuple[int, ...]]  # of a file: lines whose draws depend on nothing but a seed
    deques: dict[str, tuple[DequeRecord, ...]]  # of a file: where they are indexed
    statements: dict[str, dict[int, int]]  # of a file: the first line of a statement by each of its others
    functions: dict[str, Loops]
    bound: dict[tuple[str, int], tuple[str, ...]]  # names that a loop or function binds, by file and first line
    sources: dict[str, StoredSource]

    def first_line(self, file: str, line: int) -> int:
        """Return the first line of the statement that a line is of, as far as the capture has it."""
        return self.statements.get(file, {}).get(line, line)


def read_lines(path: Path | Stored) -> SourceText:
    """Read the stored source lines, and the loops around them.

    Raises:
        InputError: it cannot be read.
    """
    stored = decode(_read(path, MAX_BYTES), _SourceFiles, source=str(path), remedy=REMEDY).files
    statements: dict[str, dict[int, int]] = defaultdict(dict)  # by each line but the first the innermost one's first
    for name, file in stored.items():
        for first, last in sorted(file.statements.items()):
            # A table of a file's whole length.
            lines = range(first + 1, min(last, first + 10_000) + 1)
            statements[name].update(dict.fromkeys(lines, first))
    return SourceText(
        {(name, line): text for name, file in stored.items() for line, text in file.lines.items()},
        {name: tuple(file.loops.items()) for name, file in stored.items() if file.loops},
        {name: tuple(file.draws) for name, file in stored.items() if file.draws},
        {name: tuple(file.seeded) for name, file in stored.items() if file.seeded},
        {name: tuple(file.deques) for name, file in stored.items() if file.deques},
        statements,
        {name: tuple(file.functions.items()) for name, file in stored.items() if file.functions},
        {(name, line): names for name, file in stored.items() for line, names in file.bound.items()},
        {
            name: StoredSource(tuple(file.texts.items()), tuple(file.bindings))
            for name, file in stored.items()
            if file.texts
        },
    )


def _read(path: Path | Stored, limit: int) -> bytes:
    """Return the bytes of a small file, decompressed.

    Raises:
        InputError: it cannot be read, or is larger than any file of its kind.
    """
    text, chunk = bytearray(), bytearray(1 << 18)
    with open_source(path) as source:
        while count := source.readinto(memoryview(chunk)):
            text += chunk[:count]
            if len(text) > limit:
                raise InputError(f"{path} holds more than {limit >> 20} MiB, as no capture does. {REMEDY}")
    return bytes(text)
