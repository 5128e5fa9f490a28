"""Summaries of ranks in files: what ``diagnose analyze --partial`` and ``--keep`` write, and ``--merge`` reads.

``.ranks`` is a list of packed profiles, for job arrays; ``.parquet`` is a table with a row for each rank, for whoever
wants to query it, whose last column holds the same packed profile. Both can be merged in any order and grouping.
"""

from __future__ import annotations

import glob
import io
import json
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from diagnose.errors import InputError, UsageError, missing_extra
from diagnose.model.files import printable, write_bytes
from diagnose.ranks.profile import JobProfile, RankProfile
from diagnose.text.masking import mask_text
from diagnose.trace_reader.source import open_source
from diagnose.trace_reader.stored import Stored, is_url, list_folder, matching_urls

if TYPE_CHECKING:
    import pyarrow

__all__ = ["FORMAT", "SUFFIXES", "check_keep", "list_summaries", "read_summaries", "write_summaries"]

SUFFIXES = (".ranks", ".parquet")
MAX_FILE_BYTES = 2 << 30  # 200,000 ranks
_CHUNK = 1 << 20
FORMAT = "diagnose ranks 1"
_MISSING = b"diagnose.missing"  # the table's metadata: inputs that gave no summary
_REMEDY = "Make it again with diagnose analyze --partial."


class _File(msgspec.Struct):
    """The content of a .ranks file."""

    format: str
    ranks: list[bytes]
    missing: list[str]


def check_keep(path: Path) -> None:
    """Check that summaries can be written under a name.

    Raises:
        UsageError: its suffix names no format.
        InputError: the package that writes it is not installed.
    """
    if path.suffix not in SUFFIXES:
        raise UsageError(f"Invalid name '{printable(path)}': it must end in {' or '.join(SUFFIXES)}.")
    if path.suffix == ".parquet":
        _pyarrow(printable(path))


def write_summaries(path: Path, job: JobProfile, *, force: bool) -> None:
    """Write the summaries of a job's ranks, in the format that the suffix names.

    Raises:
        OutputError: the file exists already and ``force`` is off, or it cannot be written.
    """
    if path.suffix == ".parquet":
        data = _parquet(job, printable(path))
    else:
        ranks = [profile.to_bytes() for profile in job.ranks]
        data = msgspec.msgpack.encode(_File(FORMAT, ranks, list(job.missing)))
    write_bytes(path, data, force=force)


def list_summaries(paths: Sequence[str]) -> list[str]:
    """Return the files of summaries among what is named: files, folders of them, patterns, each also behind a URL.

    Raises:
        InputError: something is neither, or a folder holds none.
    """
    found: list[str] = []
    for path in paths:
        if path.endswith(SUFFIXES) and not glob.has_magic(path):
            found.append(path)
        elif is_url(path):
            folder = path.rstrip("/")
            names = matching_urls(path) if glob.has_magic(path) else [f"{folder}/{n}" for n in list_folder(path)]
            found += _some(path, names)
        elif os.path.isdir(path):  # an odd name is no folder
            found += _some(path, [str(file) for file in Path(path).iterdir()])
        else:
            found += _some(path, glob.glob(path, recursive=True))  # a pattern may be absolute
    return list(dict.fromkeys(found))


def _some(path: str, names: Sequence[str]) -> list[str]:
    found = sorted(name for name in names if name.endswith(SUFFIXES))
    if not found:
        kinds = ", ".join(SUFFIXES)
        raise InputError(f"{path} holds no summaries ({kinds}). Make them with diagnose analyze --partial.")
    return found


def read_summaries(paths: Sequence[str]) -> JobProfile:
    """Read files of summaries, and merge them; one that cannot be read is named among what is missing.

    Raises:
        InputError: none of them can be read.
    """
    job, faults = JobProfile(), []
    for path in paths:
        try:
            job = job.merge(_read(path))
        except InputError as error:
            faults.append(str(error))
    if not job.ranks and faults:
        raise InputError(faults[0])
    return job.merge(JobProfile.of((), faults))


def _read(path: str) -> JobProfile:
    data = _content(path)
    if path.endswith(".parquet"):
        packed, missing = _of_parquet(data, path)
    else:
        try:
            found = msgspec.msgpack.decode(data, type=_File)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise InputError(f"{path} is damaged, or no file of summaries. {_REMEDY}") from None
        if found.format != FORMAT:
            raise InputError(f"{path} was made by another version of diagnose. {_REMEDY}")
        packed, missing = found.ranks, found.missing
    return JobProfile.of(map(RankProfile.from_bytes, packed), missing)


def _content(path: str) -> bytes:
    data, chunk = bytearray(), memoryview(bytearray(_CHUNK))
    with open_source(Stored(path, mask_text(path))) as source:
        while count := source.readinto(chunk):
            data += chunk[:count]
            if len(data) > MAX_FILE_BYTES:
                raise InputError(f"{path} holds more than {MAX_FILE_BYTES >> 30} GiB. Merge fewer ranks at a time.")
        if source.fault:
            raise InputError(f"{path} cannot be read: {source.fault}. {_REMEDY}")
    return bytes(data)


def _pyarrow(name: str) -> None:
    try:
        import_module("pyarrow")
    except ImportError:
        raise missing_extra(f"{name} is a Parquet file", "parquet") from None


def _parquet(job: JobProfile, name: str) -> bytes:
    _pyarrow(name)
    import pyarrow
    from pyarrow import parquet

    rows = [_row(profile) for profile in job.ranks]
    table = pyarrow.Table.from_pylist(rows, schema=_schema()) if rows else _schema().empty_table()
    table = table.replace_schema_metadata({_MISSING: json.dumps(job.missing).encode()})
    buffer = io.BytesIO()
    parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _schema() -> pyarrow.Schema:
    import pyarrow

    number, text = pyarrow.float64(), pyarrow.string()
    return pyarrow.schema(
        {
            "rank": pyarrow.int64(),
            "world_size": pyarrow.int64(),
            "path": text,
            "run_id": text,
            "host": text,
            "verdict": text,
            "num_steps": pyarrow.int64(),
            "step_ms": number,
            "compute_share": number,
            "exposed_communication_share": number,
            "exposed_copy_share": number,
            "idle_share": number,
            "idle_by_cause": pyarrow.map_(text, number),
            "num_collectives": pyarrow.int64(),
            "clock_mhz": number,
            "notes": pyarrow.list_(text),
            "profile": pyarrow.binary(),
        }.items()
    )


def _row(p: RankProfile) -> dict[str, object]:
    part = p.partition
    return {
        "rank": p.rank,
        "world_size": p.world_size,
        "path": p.path.encode("utf-8", "backslashreplace").decode(),
        "run_id": p.run_id,
        "host": p.host,
        "verdict": p.verdict,
        "num_steps": p.num_steps,
        "step_ms": p.step_ns / 1e6,
        "compute_share": part and part.compute,
        "exposed_communication_share": part and part.exposed_communication,
        "exposed_copy_share": part and part.exposed_copy,
        "idle_share": part and part.idle,
        "idle_by_cause": list(p.idle_by_cause.items()),
        "num_collectives": len(p.collectives),
        "clock_mhz": p.clock_mhz or None,
        "notes": list(p.notes),
        "profile": p.to_bytes(),
    }


def _of_parquet(data: bytes, path: str) -> tuple[list[bytes], list[str]]:
    _pyarrow(path)
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(io.BytesIO(data), columns=["profile"])
        missing = json.loads((table.schema.metadata or {}).get(_MISSING, b"[]"))
        return table["profile"].to_pylist(), [str(sentence) for sentence in missing]
    except (pyarrow.ArrowException, ValueError, TypeError, OSError):
        raise InputError(f"{path} is damaged, or no table that --keep wrote. {_REMEDY}") from None
