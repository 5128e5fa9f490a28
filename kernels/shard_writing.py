"""Writes samples into tar shards once, before the run, for `WebShards` to read.

What it cures
    `data-stall` of datasets of many small files: opening each costs more than reading it, on network file systems most.

When it does not help
    Samples that are slow to decode rather than to read: write them decoded, or keep them in `SharedCache`.

Cost
    The bytes of the data set once more, and one pass over it.

Numerics
    Identical: files are copied byte by byte. Batches are read in another order; see `web_shards`.

Example::

    from diagnose.kernels.shard_writing import folder_samples, write_shards

    shards = write_shards(folder_samples(folder), "shards", max_bytes=256 << 20)
    # then: WebShards(shards, ("jpg", "cls"), batch_size=64, num_workers=4)
"""

from __future__ import annotations

import csv
import io
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

__all__ = ["folder_samples", "table_samples", "write_shards"]


def write_shards(
    samples: Iterable[Mapping[str, bytes]], folder: str | os.PathLike[str], *, max_bytes: int = 256 << 20
) -> list[str]:
    """Write samples into ``folder/shard-000000.tar`` and on; return the paths.

    ``samples`` are mappings of field, such as ``jpg`` or ``cls``, to the bytes of its file. A shard ends with the
    sample that brings it to ``max_bytes``, and appears under its name when it is whole. Shuffle the samples first where
    their order follows their classes: shards are shuffled as a whole.

    Raises:
        ValueError: there is no sample, ``max_bytes`` is less than one, or a field has a dot at its begin, or a slash.
        FileExistsError: the folder holds shards already.
    """
    if max_bytes < 1:
        raise ValueError(f"write_shards needs max_bytes >= 1, not {max_bytes}.")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    if any(target.glob("shard-*.tar")):
        raise FileExistsError(f"The folder {target} holds shards already; choose another one.")
    paths: list[str] = []
    number, source = 0, iter(samples)
    sample = next(source, None)
    while sample is not None:
        path = target / f"shard-{len(paths):06}.tar"
        partial = path.with_suffix(".partial")
        with tarfile.open(partial, "w") as shard:
            size = 0
            while sample is not None and size < max_bytes:
                size += _add(shard, f"{number:09}", sample)
                number += 1
                sample = next(source, None)
        partial.replace(path)
        paths.append(str(path))
    if not paths:
        raise ValueError("write_shards got no samples.")
    return paths


def folder_samples(root: str | os.PathLike[str]) -> Iterator[dict[str, bytes]]:
    """Yield the files below ``root/CLASS/`` as samples of two fields: by their extension, and ``cls``.

    ``cls`` is the number of the class in the order of the folders' names. Files of a class come in the order of theirs.

    Raises:
        ValueError: there are no such folders.
    """
    folders = sorted(path for path in Path(root).iterdir() if path.is_dir())
    if not folders:
        raise ValueError(f"{root} has no folder for each class.")
    for number, folder in enumerate(folders):
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            yield {**_file(path), "cls": str(number).encode()}


def table_samples(
    table: str | os.PathLike[str], *, file: str, label: str, root: str | os.PathLike[str] | None = None
) -> Iterator[dict[str, bytes]]:
    """Yield the rows of a CSV table as samples: the file that the column ``file`` names, and ``cls`` from ``label``.

    Paths in the table start at ``root``, the table's own folder unless given.

    Raises:
        ValueError: the table has no such column.
    """
    base = Path(table).parent if root is None else Path(root)
    with Path(table).open(encoding="utf-8", newline="") as opened:
        rows = csv.DictReader(opened)
        missing = {file, label} - set(rows.fieldnames or ())
        if missing:
            raise ValueError(f"{table} has no column {' and '.join(sorted(missing))}.")
        for row in rows:
            yield {**_file(base / row[file]), "cls": row[label].encode()}


def _file(path: Path) -> dict[str, bytes]:
    return {path.suffix.removeprefix(".").lower() or "bin": path.read_bytes()}


def _add(shard: tarfile.TarFile, key: str, sample: Mapping[str, bytes]) -> int:
    """Add the files of one sample; return their bytes."""
    for field, data in sample.items():
        if field.startswith(".") or "/" in field or not field:
            raise ValueError(f"A field is an extension such as 'jpg', not {field!r}.")
        entry = tarfile.TarInfo(f"{key}.{field}")
        entry.size = len(data)
        shard.addfile(entry, io.BytesIO(data))
    return sum(map(len, sample.values()))
