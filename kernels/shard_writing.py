"""Writes samples into tar shards for `WebShards`.

What it cures
    `data-stall` of datasets of many small files: opening each costs more than reading it, on network file systems most.

When it does not help
    Files that are slow to decode rather than to read: write them decoded by `dataset_samples`, or keep them in
    `SharedCache`.

Cost
    The bytes of the data set once more, and one pass over it.

Numerics
    Identical: files are copied byte by byte, and decoded samples bit by bit. What a dataset draws at random is stored
    as it was drawn once: leave it out there, and pass it to `WebShards` in ``transforms``. Batches are read in another
    order; see `web_shards`.

Example::

    from diagnose.kernels.shard_writing import write_shards

    samples = ({"txt": file.encode(), "cls": b"0"} for file in files)  # or folder_samples("images"), table_samples(…)
    shards = write_shards(samples, folder / "packed", max_bytes=256 << 20, progress=log)
    # then: WebShards(shards, ("txt", "cls"), batch_size=64, num_workers=4)

    from diagnose.kernels.shard_writing import dataset_samples

    shards = write_shards(dataset_samples(dataset), folder / "decoded")
    # then: WebShards(shards, "pth", batch_size=64, num_workers=4)
"""

from __future__ import annotations

import csv
import io
import os
import pickle
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from diagnose.kernels._atomic_write import atomic_write
from diagnose.kernels._nested import mapped

__all__ = ["Progress", "Samples", "dataset_samples", "folder_samples", "table_samples", "write_shards"]

READERS = ("pyarrow.parquet", "pandas")
"""What reads a Parquet table, the one that holds a part of it in memory first."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far `write_shards` is: the shards that are whole, and what they hold."""

    shards: int
    samples: int
    num_bytes: int

    def __str__(self) -> str:
        """Return one line for a log."""
        return f"{self.samples} samples, {self.num_bytes / 1e6:.1f} MB in {self.shards} shards"


def write_shards(
    samples: Iterable[Mapping[str, bytes]],
    folder: str | os.PathLike[str],
    *,
    max_bytes: int = 256 << 20,
    progress: Callable[[Progress], object] | None = None,
) -> list[str]:
    """Write samples into ``folder/shard-000000.tar`` and on; return the paths.

    ``samples`` are mappings of field, such as ``jpg`` or ``cls``, to the bytes of its file. A shard ends with the
    sample that brings it to ``max_bytes``, and appears under its name when it is whole; ``progress`` is called then.
    Shuffle the samples first where their order follows their classes: shards are shuffled as a whole.

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
    number, total, source = 0, 0, iter(samples)
    sample = next(source, None)
    while sample is not None:
        path = target / f"shard-{len(paths):06}.tar"
        with atomic_write(path) as file, tarfile.open(fileobj=file, mode="w") as shard:
            size = 0
            while sample is not None and size < max_bytes:
                size += _add(shard, f"{number:09}", sample)
                number += 1
                sample = next(source, None)
        paths.append(str(path))
        total += size
        if progress is not None:
            progress(Progress(len(paths), number, total))
    if not paths:
        raise ValueError("write_shards got no samples.")
    return paths


class Samples(Protocol):
    """A dataset with an index."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, index: int, /) -> Any:
        """Return one sample."""


def dataset_samples(dataset: Samples, *, seed: int | None = 0) -> Iterator[dict[str, bytes]]:
    """Yield the dataset's samples as it returns them, decoded: one field ``pth`` each, of tensors and plain values.

    They come in a random order that follows from ``seed``, since shards are shuffled as a whole only; in the dataset's
    own if it is None.

    Raises:
        TypeError: a sample holds something else, such as an array or an image.
    """
    order: Iterable[int] = range(len(dataset))
    if seed is not None:
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed)).tolist()
    for index in order:
        out = io.BytesIO()
        # A copy: of a part of a larger tensor torch would write the whole.
        torch.save(mapped(dataset[index], lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf), out)
        try:
            torch.load(io.BytesIO(out.getvalue()), weights_only=True)
        except pickle.UnpicklingError as error:
            raise TypeError(
                f"Sample {index} holds more than tensors and plain values, which WebShards does not read: return "
                "tensors, such as torch.from_numpy(array)."
            ) from error
        yield {"pth": out.getvalue()}


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
    """Yield the rows of a table as samples: the file that the column ``file`` names, and ``cls`` from ``label``.

    The table is a CSV, or a Parquet one by its extension, which pyarrow or pandas reads. There ``file`` may hold the
    bytes of a file instead of its path, also as Hugging Face's datasets store images: ``{"bytes": …, "path": …}``. Such
    a sample's field is the path's extension, ``bin`` where there is no path. Paths start at ``root``, the table's own
    folder unless given.

    Raises:
        ModuleNotFoundError: the table is a Parquet one, and neither pyarrow nor pandas is installed.
        ValueError: the table has no such column, or a row no file.
    """
    base = Path(table).parent if root is None else Path(root)
    rows = _parquet_rows if Path(table).suffix == ".parquet" else _csv_rows
    for number, (cell, value) in enumerate(rows(Path(table), (file, label))):
        sample = _stored_or_read(cell, base)
        if sample is None:
            raise ValueError(f"Row {number} of {table} has no file in its column {file}.")
        yield {**sample, "cls": str(value).encode()}


def _csv_rows(table: Path, columns: tuple[str, str]) -> Iterator[tuple[Any, Any]]:
    with table.open(encoding="utf-8", newline="") as opened:
        rows = csv.DictReader(opened)
        _check_columns(table, columns, rows.fieldnames or ())
        for row in rows:
            yield row[columns[0]], row[columns[1]]


def _parquet_rows(table: Path, columns: tuple[str, str]) -> Iterator[tuple[Any, Any]]:
    name, reader = _parquet_reader(table)
    if name == "pandas":
        frame = reader.read_parquet(table)
        _check_columns(table, columns, frame.columns)
        yield from zip(*(frame[column].tolist() for column in columns), strict=True)
        return
    with reader.ParquetFile(table) as opened:
        _check_columns(table, columns, opened.schema_arrow.names)
        for batch in opened.iter_batches(columns=list(columns)):
            yield from zip(*(batch.column(column).to_pylist() for column in columns), strict=True)


def _parquet_reader(table: Path) -> tuple[str, Any]:  # packages without types
    for name in READERS:
        try:
            return name, import_module(name)
        except ImportError:
            continue
    raise ModuleNotFoundError(
        f"{table} is a Parquet file. Write it as a CSV, or install what reads it: pip install pyarrow."
    )


def _check_columns(table: Path, columns: tuple[str, str], held: Iterable[str]) -> None:
    if missing := set(columns) - set(held):
        raise ValueError(f"{table} has no column {' and '.join(sorted(missing))}.")


def _stored_or_read(cell: Any, base: Path) -> dict[str, bytes] | None:  # what a column holds
    """Return the file that a cell holds, or that it names; None where it does neither."""
    path, data = (cell.get("path"), cell.get("bytes")) if isinstance(cell, Mapping) else (cell, None)
    if isinstance(path, bytes | bytearray):
        path, data = None, path
    if data is not None:
        return {_extension(Path(path or "")): bytes(data)}
    return _file(base / path) if isinstance(path, str) and path else None


def _extension(path: Path) -> str:
    return path.suffix.removeprefix(".").lower() or "bin"


def _file(path: Path) -> dict[str, bytes]:
    return {_extension(path): path.read_bytes()}


def _add(shard: tarfile.TarFile, key: str, sample: Mapping[str, bytes]) -> int:
    """Add the files of one sample; return their bytes."""
    for field, data in sample.items():
        if field.startswith(".") or "/" in field or not field:
            raise ValueError(f"A field is an extension such as 'jpg', not {field!r}.")
        entry = tarfile.TarInfo(f"{key}.{field}")
        entry.size = len(data)
        shard.addfile(entry, io.BytesIO(data))
    return sum(map(len, sample.values()))
