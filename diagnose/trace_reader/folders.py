"""Captures from whatever a user names: trace files, folders of traces, folders that ``diagnose trace`` wrote."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias, TypeVar

import msgspec
import numpy as np

from diagnose.errors import InputError, NotATraceError
from diagnose.model.capture import Capture, CaptureInfo, RunSteps, Samples
from diagnose.model.dataflow import Dataflow, Frame
from diagnose.model.events import Note, Trace
from diagnose.model.locations import is_installed
from diagnose.model.records import PlaceRecord
from diagnose.trace_reader.documents import SourceText, read_dataflow, read_info, read_lines, read_samples, read_steps
from diagnose.trace_reader.file import read_trace
from diagnose.trace_reader.inputs import Folder, RankFiles, list_inputs
from diagnose.trace_reader.stored import Stored

_Read = TypeVar("_Read")
_Place: TypeAlias = tuple[str, int, str]  # file, line, function


def open_captures(paths: Sequence[str | os.PathLike[str]]) -> list[Capture]:
    """Read everything named into one Capture a rank, sorted by rank; ``list_inputs`` has what may be named.

    Raises:
        InputError: something cannot be read, or what was named does not belong to one run.
    """
    inputs = list_inputs(paths)
    captures: list[Capture] = []
    errors: list[NotATraceError] = []
    for files in inputs.ranks:
        try:
            captures.append(read_rank(files))
        except NotATraceError as error:  # other JSON files may well lie beside traces
            if files.folder is None:
                raise
            errors.append(error)
    if errors and not captures:
        raise errors[0]
    faults = (*(f"Another file in the folder was left out. {error}" for error in errors), *inputs.faults)
    if notes := tuple(map(Note, faults)):
        captures = [replace(c, trace=replace(c.trace, trust=c.trace.trust + notes)) for c in captures]
    infos = [capture.info for capture in captures if capture.info]
    for info in infos[1:]:
        if (info.run_id, info.command) != (infos[0].run_id, infos[0].command):
            raise InputError(
                f"These captures are of different runs ({_run(infos[0])} and {_run(info)}). "
                "Trace into an empty folder, or name the captures of one run."
            )
    captures.sort(key=lambda capture: capture.trace.rank)
    for one, other in pairwise(captures):
        if one.trace.rank == other.trace.rank:
            raise InputError(
                f"{one.trace.path} and {other.trace.path} are both of rank {one.trace.rank}. "
                "Name one trace for each rank; if the files do not contain their rank, put it into their names "
                "(rank0.json, rank1.json)."
            )
    return captures


def read_rank(files: RankFiles, processes: int = 1, meanwhile: Callable[[], object] | None = None) -> Capture:
    """Read the files of one rank, a large trace by several ``processes``; ``meanwhile`` is as for ``read_trace``.

    Raises:
        InputError: they cannot be read.
        NotATraceError: the file is something else than a trace of torch.profiler.
    """
    if files.description is not None and files.folder is not None:
        return _open_rank(files.folder, read_info(files.description))
    if files.trace is None:
        raise InputError(f"{files} names no file.")
    return Capture(read_trace(files.trace, processes, meanwhile))


def _open_rank(folder: Folder, info: CaptureInfo) -> Capture:
    notes: list[Note] = []
    timing = _optional(folder, info.light_file, read_trace, notes)
    attribution = _optional(folder, info.attribution_file, read_trace, notes)
    samples: Samples | None = _optional(folder, info.samples_file, read_samples, notes)
    run = _optional(folder, info.steps_file, read_steps, notes)
    flow = _optional(folder, info.dataflow_file, read_dataflow, notes)
    long_step = _optional(folder, info.long_step_file, read_dataflow, notes)
    source = _optional(folder, info.lines_file, read_lines, notes) or SourceText({}, {}, {}, {}, {}, {}, {}, {}, {})
    saves = tuple(msgspec.structs.replace(one, file=_name_from_cwd(one.file, info)) for one in info.saves)
    hooks = tuple(
        msgspec.structs.replace(one, file=_name_from_cwd(one.file, info), hook_file=_name_from_cwd(one.hook_file, info))
        for one in info.hooks
    )
    unread = tuple(
        msgspec.structs.replace(
            one,
            chains=tuple(_places_from_cwd(chain, info) for chain in one.chains),
            first=_places_from_cwd(one.first, info),
            readers=_places_from_cwd(one.readers, info),
        )
        for one in info.unread
    )
    info = msgspec.structs.replace(info, saves=saves, hooks=hooks, unread=unread)
    trace = timing or attribution
    if trace is None:
        why = notes[0].text if notes else "the script ended before a step was captured. Trace it again, longer."
        raise InputError(f"{folder} holds no trace of rank {info.rank}: {why}")
    if timing is None:
        notes.append(Note("The timing window is missing: times come from the window with stacks and shapes."))
    inside = (one for one in info.wide if 0 <= one.begin[0] - one.first < len(one.lines))  # what makes 64-bit floats
    wide = {(one.file, one.begin[0]): one.lines[one.begin[0] - one.first].strip() for one in inside}
    return Capture(
        trace=_of_rank(trace, info, notes),
        attribution=_of_rank(attribution, info, []) if timing and attribution else None,
        info=info,
        samples=samples and _samples_from_cwd(samples, info, source),
        run=run and _run_from_cwd(run, info, source),
        lines={(_name_from_cwd(file, info), line): text for (file, line), text in (source.lines | wide).items()},
        loops={_name_from_cwd(file, info): loops for file, loops in source.loops.items()},
        functions={_name_from_cwd(file, info): each for file, each in source.functions.items()},
        bound={(_name_from_cwd(file, info), line): names for (file, line), names in source.bound.items()},
        draws={_name_from_cwd(file, info): _firsts(source, file, draws) for file, draws in source.draws.items()},
        seeded={_name_from_cwd(file, info): _firsts(source, file, seeded) for file, seeded in source.seeded.items()},
        deques={
            _name_from_cwd(file, info): tuple(
                msgspec.structs.replace(each, line=source.first_line(file, each.line)) for each in deques
            )
            for file, deques in source.deques.items()
        },
        sources={_name_from_cwd(file, info): each for file, each in source.sources.items()},
        dataflow=flow and _flow_from_cwd(flow, info),
        long_step=long_step and _flow_from_cwd(long_step, info),
    )


def _firsts(source: SourceText, file: str, lines: Sequence[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(source.first_line(file, line) for line in lines))


def _run_from_cwd(run: RunSteps, info: CaptureInfo, source: SourceText) -> RunSteps:
    """Return the run with paths of the user's lines; samples without any, or before the first step, are left out."""
    users = tuple(tuple(at for at in path if not is_installed(at[0])) for path in run.paths)
    kept = np.array([*map(bool, users), False], bool)[run.path]
    if run.num:
        kept &= run.sampled_ns >= run.began_ns[0]
    paths = tuple(_from_cwd(path or whole, info, source) for path, whole in zip(users, run.paths, strict=True))
    return replace(run, paths=paths, path=run.path[kept], sampled_ns=run.sampled_ns[kept])


def _samples_from_cwd(samples: Samples, info: CaptureInfo, source: SourceText) -> Samples:
    """Return samples in which a line of a library is no place."""
    users = np.array([*(not is_installed(file) for file, _, _ in samples.places), False], bool)
    place = np.where(users[samples.place], samples.place, -1).astype(np.int32)
    return replace(samples, place=place, places=_from_cwd(samples.places, info, source))


def _flow_from_cwd(flow: Dataflow, info: CaptureInfo) -> Dataflow:
    """Return the data flow with files named as the profiler's frames have them."""
    stacks: dict[tuple[Frame, ...], tuple[Frame, ...]] = {}

    def named(stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
        if stack not in stacks:
            stacks[stack] = tuple(frame._replace(file=_name_from_cwd(frame.file, info)) for frame in stack)
        return stacks[stack]

    return replace(
        flow,
        operators=tuple(operator._replace(stack=named(operator.stack)) for operator in flow.operators),
    )


def _from_cwd(places: Sequence[_Place], info: CaptureInfo, source: SourceText) -> tuple[_Place, ...]:
    return tuple(_named(place, info, source) for place in places)


def _named(place: _Place, info: CaptureInfo, source: SourceText) -> _Place:
    """Return a place below the working folder, with the first line of its statement."""
    file, line, function = place
    return _name_from_cwd(file, info), source.first_line(file, line), function


def _places_from_cwd(places: Sequence[PlaceRecord], info: CaptureInfo) -> tuple[PlaceRecord, ...]:
    return tuple((_name_from_cwd(file, info), line) for file, line in places)


def _name_from_cwd(file: str, info: CaptureInfo) -> str:
    """Return a file's name as the profiler's frames have it: below the working folder without that."""
    return file.removeprefix(f"{info.cwd.rstrip('/')}/") if info.cwd else file


def _optional(folder: Folder, name: str, read: Callable[[Stored], _Read], notes: list[Note]) -> _Read | None:
    """Read a file of a capture; what is damaged becomes a note, since the rest may suffice."""
    if not name:
        return None
    try:
        return read(folder.file(name))
    except InputError as error:
        notes.append(Note(str(error)))
        return None


def _of_rank(trace: Trace, info: CaptureInfo, notes: Sequence[Note]) -> Trace:
    return replace(trace, rank=info.rank, world_size=info.world_size, trust=trace.trust + tuple(notes))


def _run(info: CaptureInfo) -> str:
    return f"'{' '.join(info.command)}' as {info.run_id or 'an unnamed run'}"
