"""``diagnose analyze --export``: a diagnosis in the forms of other tools."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.errors import UsageError, missing_extra
from diagnose.model.files import check_distinct, check_file, printable, write_bytes
from diagnose.model.limits import EXPORTS
from diagnose.text.progress import Progress

if TYPE_CHECKING:
    from diagnose.model.capture import Capture
    from diagnose.model.diagnosis import Diagnosis
    from diagnose.reports.exports import Value

__all__ = ["planned", "write_exports"]

FOLDER = "tensorboard"  # the kind that is a folder
TABLES = (".csv", ".parquet")


def planned(
    exports: Sequence[str], others: Mapping[str, str | None], paths: Sequence[str], *, force: bool
) -> dict[str, str]:
    """Return the file of each kind that ``--export`` names, after checking that it can be written.

    ``others`` are the files of other options, ``paths`` what is read.

    Raises:
        UsageError: a text is no KIND=FILE, a kind is given twice, or a file has two meanings or the wrong suffix.
        InputError: the package that writes a form is not installed.
        OutputError: a file exists already, or cannot be written.
    """
    files: dict[str, str] = {}
    for text in exports:
        kind, _, file = text.partition("=")
        if kind not in EXPORTS or not file:
            raise UsageError(f"Invalid --export '{printable(text)}': use KIND=FILE, where KIND is {_listed()}.")
        if kind in files:
            raise UsageError(f"--export {kind} is given twice; leave one of them out.")
        files[kind] = file
    if files and "-" in paths:
        raise UsageError("--export reads the recording twice, which standard input cannot; name a file.")
    check_distinct({**others, **{f"--export {kind}": file for kind, file in files.items()}}, paths)
    for kind, file in files.items():
        _check(kind, file, force=force)
    return files


def _check(kind: str, file: str, *, force: bool) -> None:
    if kind == FOLDER:
        from diagnose.integrations.tensorboard import check_log

        check_log(Path(file), force=force)
        return
    suffix = Path(file).suffix.lower()
    if kind in ("findings", "kernels"):
        if suffix not in TABLES:
            raise UsageError(f"Invalid --export {kind} '{printable(file)}': the name must end in .csv or .parquet.")
        if suffix == ".parquet" and find_spec("pyarrow") is None:
            raise missing_extra(f"{printable(file)} is to be a Parquet file", "parquet")
    check_file(Path(file), force=force)


def _listed() -> str:
    return f"{', '.join(EXPORTS[:-1])} or {EXPORTS[-1]}"


def write_exports(
    diagnosis: Diagnosis, captures: Sequence[Capture], files: Mapping[str, str], *, force: bool, progress: Progress
) -> None:
    """Write a diagnosis of the captures in every form that was asked for.

    Raises:
        OutputError: a file has appeared since it was checked, or cannot be written.
    """
    from diagnose.pipeline.run import shown_rank
    from diagnose.pipeline.timeline import whole_window
    from diagnose.reports import exports

    shown = captures[shown_rank(captures)]
    picture = whole_window(shown)
    makers: dict[str, Callable[[Path], bytes]] = {
        "perfetto": lambda _path: exports.perfetto(diagnosis, picture).encode(),
        "speedscope": lambda _path: exports.speedscope(diagnosis, picture).encode(),
        "collapsed": lambda _path: exports.collapsed(picture).encode(),
        "findings": lambda path: _table(path, exports.FINDING_COLUMNS, exports.finding_rows(diagnosis)),
        "kernels": lambda path: _table(path, exports.KERNEL_COLUMNS, exports.kernel_rows(diagnosis, picture)),
        "markdown": lambda _path: _markdown(diagnosis).encode(),
    }
    for kind, file in files.items():
        if kind == FOLDER:
            from diagnose.integrations.tensorboard import write_log

            write_log(Path(file), captures, shown, force=force)
            progress.report(f"wrote {printable(file)}; open it with tensorboard --logdir")
        else:
            write_bytes(file, makers[kind](Path(file)), force=force)
            progress.report(f"wrote {printable(file)}")
    if picture.num_spans_left_out:
        progress.report(
            f"the {picture.num_spans_left_out:,} shortest bars were left out; causes and findings rest on all"
        )


def _table(path: Path, columns: Sequence[str], rows: Sequence[dict[str, Value]]) -> bytes:
    from diagnose.reports.exports import csv_table

    if path.suffix.lower() == ".csv":
        return csv_table(columns, rows).encode()
    import pyarrow
    from pyarrow import parquet

    packed = io.BytesIO()
    table = pyarrow.table({name: [row[name] for row in rows] for name in columns})
    parquet.write_table(table, packed)
    return packed.getvalue()


def _markdown(diagnosis: Diagnosis) -> str:
    from diagnose.answer.screen import answer
    from diagnose.reports.markdown import as_markdown

    return as_markdown(diagnosis, answer(diagnosis)).rstrip("\n") + "\n"
