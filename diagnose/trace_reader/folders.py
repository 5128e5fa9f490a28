"""Captures from whatever a user names: trace files, folders of traces, folders that ``diagnose trace`` wrote."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias, TypeVar

from diagnose.errors import InputError, NotATraceError
from diagnose.model.capture import Capture, CaptureInfo, Samples
from diagnose.model.events import Note, Trace
from diagnose.trace_reader.documents import read_info, read_lines, read_samples, read_steps
from diagnose.trace_reader.file import read_trace

__all__ = ["open_captures"]

_Read = TypeVar("_Read")
_Place: TypeAlias = tuple[str, int, str]  # file, line, function

_DESCRIPTIONS = ("capture.json", "capture.rank*.json")
_TRACES = (("*.pt.trace.json", "*.pt.trace.json.gz"), ("*.json", "*.json.gz"))


def open_captures(paths: Sequence[str | os.PathLike[str]]) -> list[Capture]:
    """Read everything named into one Capture a rank, sorted by rank.

    A path is a trace file, a capture folder, or a folder with one trace a rank (``*.pt.trace.json[.gz]``, where
    there is none ``*.json[.gz]``).

    Raises:
        InputError: something cannot be read, or what was named does not belong to one run.
    """
    captures = [capture for path in paths for capture in _open(path)]
    _check_one_run([capture.info for capture in captures if capture.info])
    _check_ranks(captures)
    return sorted(captures, key=lambda capture: capture.trace.rank)


def _open(named: str | os.PathLike[str]) -> Iterator[Capture]:
    if not os.path.isdir(named):  # noqa: PTH112  # Path.is_dir raises on odd names, and a Path turns "./-" into "-"
        yield Capture(read_trace(named))
        return
    path = Path(named)
    if descriptions := _matching(path, _DESCRIPTIONS):
        infos = [read_info(description) for description in descriptions]
        _check_one_run(infos)
        yield from (_open_rank(path, info) for info in infos)
    else:
        yield from map(Capture, _read_folder(path))


def _matching(folder: Path, patterns: Sequence[str]) -> list[Path]:
    return sorted({file for pattern in patterns for file in folder.glob(pattern) if file.is_file()})


def _read_folder(folder: Path) -> list[Trace]:
    files = next(filter(None, (_matching(folder, patterns) for patterns in _TRACES)), [])
    if not files:
        raise InputError(f"{folder} holds no traces (*.json, *.json.gz). Name a trace file or the folder it is in.")
    found = [_trace_or_error(file) for file in files]
    traces = [trace for trace in found if isinstance(trace, Trace)]
    errors = [error for error in found if isinstance(error, NotATraceError)]
    if not traces:
        raise errors[0]
    notes = tuple(Note(f"A file beside it was left out. {error}") for error in errors)
    return [replace(trace, trust=trace.trust + notes) for trace in traces]


def _trace_or_error(file: Path) -> Trace | NotATraceError:
    try:
        return read_trace(file)
    except NotATraceError as error:  # other JSON files may well lie beside traces
        return error


def _open_rank(folder: Path, info: CaptureInfo) -> Capture:
    notes: list[Note] = []
    light = _optional(folder, info.light_file, read_trace, notes)
    attribution = _optional(folder, info.attribution_file, read_trace, notes)
    samples: Samples | None = _optional(folder, info.samples_file, read_samples, notes)
    run = _optional(folder, info.steps_file, read_steps, notes)
    lines = _optional(folder, info.lines_file, read_lines, notes)
    timing = light or attribution
    if timing is None:
        why = notes[0].text if notes else "the script ended before a step was captured. Trace it again, longer."
        raise InputError(f"{folder} holds no trace of rank {info.rank}: {why}")
    if light is None:
        notes.append(Note("The timing window is missing: times come from the window with stacks and shapes."))
    return Capture(
        trace=_of_rank(timing, info, notes),
        attribution=_of_rank(attribution, info, []) if light and attribution else None,
        info=info,
        samples=samples and replace(samples, places=_from_cwd(samples.places, info)),
        run=run and replace(run, paths=tuple(_from_cwd(path, info) for path in run.paths)),
        lines={(_name_from_cwd(file, info), line): text for (file, line), text in (lines or {}).items()},
    )


def _from_cwd(places: Sequence[_Place], info: CaptureInfo) -> tuple[_Place, ...]:
    return tuple((_name_from_cwd(file, info), line, function) for file, line, function in places)


def _name_from_cwd(file: str, info: CaptureInfo) -> str:
    """Return a file's name as the profiler's frames have it: below the working folder without that."""
    return file.removeprefix(f"{info.cwd.rstrip('/')}/") if info.cwd else file


def _optional(folder: Path, name: str, read: Callable[[Path], _Read], notes: list[Note]) -> _Read | None:
    """Read a file of a capture; what is damaged becomes a note, since the rest may suffice."""
    if not name:
        return None
    try:
        return read(_within(folder, name))
    except InputError as error:
        notes.append(Note(str(error)))
        return None


def _within(folder: Path, name: str) -> Path:
    """Return a file that capture.json names, which must lie in the folder: a capture may be anyone's.

    Raises:
        InputError: it is a path, or a link that leaves the folder.
    """
    path = folder / name
    if name in (".", "..") or {"/", "\\", "\0"} & set(name) or not path.resolve().is_relative_to(folder.resolve()):
        raise InputError(
            f"{folder} names a file outside itself ({name!r}), which was not read. Copy it into the folder."
        )
    return path


def _of_rank(trace: Trace, info: CaptureInfo, notes: Sequence[Note]) -> Trace:
    return replace(trace, rank=info.rank, world_size=info.world_size, trust=trace.trust + tuple(notes))


def _check_one_run(infos: Sequence[CaptureInfo]) -> None:
    for info in infos[1:]:
        if (info.run_id, info.command) != (infos[0].run_id, infos[0].command):
            raise InputError(
                f"These captures are of different runs ({_run(infos[0])} and {_run(info)}). "
                "Trace into an empty folder, or name the captures of one run."
            )


def _run(info: CaptureInfo) -> str:
    return f"'{' '.join(info.command)}' as {info.run_id or 'an unnamed run'}"


def _check_ranks(captures: Sequence[Capture]) -> None:
    seen: dict[int, Capture] = {}
    for capture in captures:
        other = seen.setdefault(capture.trace.rank, capture)
        if other is not capture:
            raise InputError(
                f"{other.trace.path} and {capture.trace.path} are both of rank {capture.trace.rank}. "
                "Name one trace for each rank; where the files do not hold their rank, put it into their names "
                "(rank0.json, rank1.json)."
            )
