"""The files of a capture beside its traces: the sampler's rows, the lines that they name, the steps of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from diagnose.capture.record.folder import CaptureFolder
from diagnose.capture.record.samplers import Samplers
from diagnose.capture.record.source_lines import SourceLines
from diagnose.model.files import printable, reason

__all__ = ["RowFiles", "write_rows"]


class RowFiles(NamedTuple):
    """The names of the files, "" for one that was not written, and why."""

    samples: str
    lines: str
    steps: str
    notes: tuple[str, ...]


def write_rows(
    folder: CaptureFolder, rank: int, samplers: Samplers, lines: SourceLines, steps: Mapping[str, Any]
) -> RowFiles:
    """Write what the samplers saw and the steps of the run; what finds no room becomes a note."""
    notes: list[str] = []
    names = dict.fromkeys(("samples", "lines", "steps"), "")
    try:
        in_windows, of_run = samplers.in_windows, samplers.of_run
        if in_windows is not None:
            seen = [*in_windows.lines, *(of_run.lines if of_run is not None else ())]
            file = f"rank{rank}.samples.json.gz"
            folder.write_rows(file, {**in_windows.rows(), "gc": samplers.gc_runs})
            names["samples"] = file
            file = f"rank{rank}.lines.json.gz"
            folder.write_rows(file, lines.stored(dict.fromkeys(seen)))
            names["lines"] = file
            notes += [
                f"{printable(name)} was changed while it ran, so its lines are not quoted." for name in lines.changed
            ]
    except OSError as error:
        notes.append(f"The sampler's rows could not be written: {reason(error)}")
    try:
        file = f"rank{rank}.steps.json.gz"
        folder.write_rows(file, {**steps, **samplers.run_paths()})
        names["steps"] = file
    except OSError as error:
        notes.append(f"The times of the steps could not be written: {reason(error)}")
    return RowFiles(**names, notes=tuple(notes))
