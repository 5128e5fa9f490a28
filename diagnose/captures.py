"""What a capture folder holds, as types: the traces of one rank and what was measured beside them.

A folder is written by ``diagnose trace`` and looks like this (one set of files a rank)::

    capture.json                            one rank; capture.rank<r>.json each where there are several
    rank0.light.pt.trace.json.gz            no stacks, no shapes: the timing claims come from it
    rank0.attribution.pt.trace.json.gz      stacks, shapes, syncs, GC: the names and lines come from it
    rank0.samples.json.gz                   the sampler's rows (see Samples)
    rank0.lines.json.gz                     the text of the source lines that the sampler saw

``capture.json`` is CaptureInfo field by field. Files of anyone else's profiler need none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

import numpy as np
import numpy.typing as npt

from diagnose.errors import InputError
from diagnose.trace import Ints, Trace

__all__ = ["CAPTURE_SCHEMA", "Capture", "CaptureInfo", "Samples"]

CAPTURE_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class CaptureInfo:
    """The content of capture.json."""

    schema_version: int = CAPTURE_SCHEMA
    run_id: str = ""  # the same in every rank of one run
    tool_version: str = ""
    command: tuple[str, ...] = ()  # the script and its arguments
    cwd: str = ""
    started_at: str = ""  # ISO 8601, UTC
    python: str = ""
    torch: str = ""
    cuda: str = ""
    rank: int = 0
    world_size: int = 1
    gpus: tuple[Mapping[str, object], ...] = ()  # index, uuid, name, memory_bytes
    light_file: str = ""  # name within the folder, "" where the window was not reached
    attribution_file: str = ""
    samples_file: str = ""
    lines_file: str = ""
    flags: Mapping[str, object] = field(default_factory=dict)  # profiler settings of each window
    found_steps_by: str = ""  # optimizer, dataloader, forward, marker
    events_per_step: int = 1  # marker events that make up one step
    settled_after: int | None = None  # steps until step times were steady; None: they never were
    unprofiled_ms: tuple[float, ...] = ()  # step times with no profiler running, steady ones only
    light_ms: tuple[float, ...] = ()
    attribution_ms: tuple[float, ...] = ()
    sampler: Mapping[str, object] = field(default_factory=dict)  # period_ms, cost_share, ready_share
    nvml: Mapping[str, object] = field(default_factory=dict)  # available, reason, gpus: one mapping of series each
    memory: Mapping[str, object] = field(
        default_factory=dict
    )  # of the allocator over the windows: retries, peaks, bytes
    loader: Mapping[str, object] = field(default_factory=dict)  # the DataLoader's real arguments, batch_size …
    optimizer: Mapping[str, object] = field(default_factory=dict)  # class, fused, num_params, param_bytes …
    notes: tuple[str, ...] = ()  # sentences for `trust`
    ended: str = ""  # stopped (early, on purpose), finished, raised, interrupted, killed
    exit_code: int | None = None

    def to_json(self) -> dict[str, object]:
        """Return the JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, object], *, source: str) -> CaptureInfo:
        """Read the JSON object; ``source`` names the file in errors. Unknown fields are ignored.

        Raises:
            InputError: the object is not a capture description of a known schema.
        """
        version = data.get("schema_version")
        if not isinstance(version, int):
            raise InputError(
                f"{source} is not a capture description: it has no schema_version. Trace the script again."
            )
        if version > CAPTURE_SCHEMA:
            raise InputError(f"{source} was written by a newer diagnose (schema {version}); please upgrade.")
        known = {f.name for f in fields(cls)}
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known}
        return cls(**values)  # type: ignore[arg-type]  # a JSON file cannot be typed further; fields default


@dataclass(frozen=True, slots=True)
class Samples:
    """What the sampler saw of the thread that runs the script, one row every few milliseconds.

    In the file: ``{"places": [[file, line, function], …], "time_ns": […], "place": […], "running": […],
    "gc": [[begin, end], …]}``.
    """

    time_ns: Ints  # wall clock, unix ns
    place: npt.NDArray[np.int32]  # row of places: the innermost line outside torch and the standard library
    running: npt.NDArray[np.int8]  # 1 on a CPU, 0 waiting, -1 unknown
    places: tuple[tuple[str, int, str], ...]  # file, line, function
    gc_runs: tuple[tuple[int, int], ...] = ()  # begin and end of garbage collections on that thread, unix ns


@dataclass(frozen=True, slots=True)
class Capture:
    """One rank's evidence: ``trace`` carries the timing, ``attribution`` (if any) the names and lines."""

    trace: Trace
    attribution: Trace | None = None
    info: CaptureInfo | None = None
    samples: Samples | None = None
    lines: Mapping[tuple[str, int], str] = field(default_factory=dict)  # source text of a file's line, as recorded
