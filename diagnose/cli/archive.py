"""What lies in a folder: its captures and JSON reports, each with the step as it was measured; nothing is analysed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any, Literal

from diagnose.errors import InputError
from diagnose.model.capture import MAX_INFO_BYTES, CaptureInfo
from diagnose.reports.json_reading import from_json, is_report
from diagnose.text.commands import command_line
from diagnose.text.masking import mask_text

__all__ = ["Entry", "entries"]

MAX_LEVELS = 6  # of folders below the one that is listed
MAX_FOLDERS = 5_000
MAX_ENTRIES = 1_000
MAX_REPORT_BYTES = 64 << 20
HEAD_BYTES = 4_096  # in which a report has its schema_version


@dataclass(frozen=True, slots=True)
class Entry:
    """A capture or a report."""

    id: str  # stands for its path in addresses
    path: Path
    name: str  # its path below the folder
    kind: Literal["capture", "report"]
    time: datetime
    command: str
    device: str
    torch: str
    ranks: int
    unprofiled_ns: float | None
    recorded_ns: float | None
    verdict: str = ""  # of a report; a capture's is known once it is analysed


def entries(root: Path) -> list[Entry]:
    """Return what lies below a folder, the oldest first, without links and what cannot be read."""
    found: list[Entry] = []
    for folder, files in _folders(root):
        described = sorted(name for name in files if name.startswith("capture") and name.endswith(".json"))
        with suppress(OSError, InputError, ValueError):
            if described:
                found.append(_capture(root, folder, described[0]))
        for name in files if not described else ():
            with suppress(OSError, InputError, ValueError):
                report = _report(root, folder / name)
                found += [report] if report is not None else []
        if len(found) >= MAX_ENTRIES:
            break
    return sorted(found[:MAX_ENTRIES], key=lambda entry: (entry.time, entry.name))


def _folders(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield folders with the names of their own files."""
    for num, (folder, below, _) in enumerate(os.walk(root)):
        path = Path(folder)
        level = len(path.relative_to(root).parts)
        below[:] = sorted(name for name in below if not name.startswith(".")) if level < MAX_LEVELS else []
        with suppress(OSError), os.scandir(path) as scanned:
            yield path, sorted(entry.name for entry in scanned if entry.is_file(follow_symlinks=False))
        if num >= MAX_FOLDERS:
            return


def _capture(root: Path, folder: Path, described: str) -> Entry:
    path = folder / described
    if path.stat().st_size > MAX_INFO_BYTES:
        raise ValueError("it is not a description of a capture")
    info = CaptureInfo.from_json(path.read_bytes(), source=str(path))
    try:
        time = datetime.fromisoformat(info.started_at.replace("Z", "+00:00"))
    except ValueError:
        time = _written(path)
    return Entry(
        **_named(root, folder),
        kind="capture",
        time=time if time.tzinfo else time.replace(tzinfo=timezone.utc),
        command=mask_text(command_line(info.command)),
        device=", ".join(dict.fromkeys(gpu.name for gpu in info.gpus)) or "CPU",
        torch=info.torch,
        ranks=info.world_size,
        unprofiled_ns=1e6 * median(info.unprofiled_ms) if info.unprofiled_ms else None,
        recorded_ns=1e6 * median(info.light_ms) if info.light_ms else None,
    )


def _report(root: Path, path: Path) -> Entry | None:
    if path.suffix != ".json" or path.stat().st_size > MAX_REPORT_BYTES:
        return None
    with path.open("rb") as file:  # a trace is larger, and is not read to its end
        text = file.read(HEAD_BYTES)
        if b'"schema_version"' not in text:
            return None
        text += file.read()
    if not is_report(text):
        return None
    d = from_json(text, source=str(path))
    unprofiled = d.source.unprofiled_step_ns
    return Entry(
        **_named(root, path),
        kind="report",
        time=_written(path),
        command=mask_text(d.source.command),
        device=", ".join(d.source.devices) or "CPU",
        torch=d.source.torch,
        ranks=d.source.world_size,
        unprofiled_ns=median(unprofiled) if unprofiled else None,
        recorded_ns=d.step_ns,
        verdict=d.verdict,
    )


def _named(root: Path, path: Path) -> dict[str, Any]:
    name = path.relative_to(root).as_posix()
    return {"id": sha256(os.fsencode(name)).hexdigest()[:16], "path": path, "name": name}


def _written(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
