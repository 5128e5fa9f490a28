"""``diagnose export``: a recording's diagnosis in the forms of other tools."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

from diagnose.cli.answer import check_rules, chosen
from diagnose.errors import UsageError, missing_extra
from diagnose.model.charts import Picture
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.files import check_distinct, check_file, printable, write_bytes
from diagnose.model.frozen import dataclass
from diagnose.reports import exports
from diagnose.text.progress import Progress

__all__ = ["ExportRequest", "export"]

TABLES = (".csv", ".parquet")


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What ``diagnose export`` was asked for: a file for each form."""

    perfetto: str | None = None
    speedscope: str | None = None
    collapsed: str | None = None
    findings: str | None = None
    kernels: str | None = None
    markdown: str | None = None
    select: tuple[str, ...] = ()  # rules
    ignore: tuple[str, ...] = ()
    tensorboard: str | None = None
    force: bool = False
    quiet: bool = False

    @property
    def files(self) -> dict[str, str]:
        """Return the files that were asked for, by option."""
        named = {
            "--perfetto": self.perfetto,
            "--speedscope": self.speedscope,
            "--collapsed": self.collapsed,
            "--findings": self.findings,
            "--kernels": self.kernels,
            "--markdown": self.markdown,
        }
        return {option: file for option, file in named.items() if file}


def export(paths: Sequence[str], request: ExportRequest) -> None:
    """Diagnose a recording and write every form that was asked for.

    Raises:
        UsageError: no form was asked for, or a table's suffix is unknown.
        InputError: nothing can be read, or Parquet is asked for and its packages are missing.
        OutputError: a file exists already or cannot be written.
    """
    _check(paths, request)
    from diagnose.pipeline.run import analyze_captures, shown_rank
    from diagnose.pipeline.timeline import whole_window
    from diagnose.trace_reader import open_captures

    progress = Progress(quiet=request.quiet)
    with progress.phase("analysing"):
        captures = open_captures(paths)
        diagnosis = chosen(analyze_captures(captures), request.select, request.ignore)
        picture = whole_window(captures[shown_rank(captures)])
    makers: dict[str, Callable[[Path], bytes]] = {
        "--perfetto": lambda _path: exports.perfetto(diagnosis, picture).encode(),
        "--speedscope": lambda _path: exports.speedscope(diagnosis, picture).encode(),
        "--collapsed": lambda _path: exports.collapsed(picture).encode(),
        "--findings": lambda path: _table(path, exports.FINDING_COLUMNS, exports.finding_rows(diagnosis)),
        "--kernels": lambda path: _table(path, exports.KERNEL_COLUMNS, exports.kernel_rows(diagnosis, picture)),
        "--markdown": lambda _path: _markdown(diagnosis).encode(),
    }
    for option, file in request.files.items():
        write_bytes(file, makers[option](Path(file)), force=request.force)
        progress.report(f"wrote {printable(file)}")
    if request.tensorboard:
        from diagnose.integrations.tensorboard import write_log

        write_log(Path(request.tensorboard), captures, captures[shown_rank(captures)], force=request.force)
        progress.report(f"wrote {printable(request.tensorboard)}; open it with tensorboard --logdir")
    _note_left_out(picture, progress)


def _check(paths: Sequence[str], request: ExportRequest) -> None:
    check_rules(request.select, request.ignore)
    files = request.files
    if not files and not request.tensorboard:
        raise UsageError("Name at least one file to write, such as --perfetto trace.json or --markdown issue.md.")
    for option in ("--findings", "--kernels"):
        if option in files and Path(files[option]).suffix.lower() not in TABLES:
            raise UsageError(f"Invalid {option} '{printable(files[option])}': the name must end in .csv or .parquet.")
    for file in files.values():
        check_file(Path(file), force=request.force)
    check_distinct({**files, "--tensorboard": request.tensorboard}, paths)
    if request.tensorboard:
        from diagnose.integrations.tensorboard import check_log

        check_log(Path(request.tensorboard), force=request.force)


def _table(path: Path, columns: Sequence[str], rows: Sequence[dict[str, exports.Value]]) -> bytes:
    if path.suffix.lower() == ".csv":
        return exports.csv_table(columns, rows).encode()
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise missing_extra(f"{printable(path)} is to be a Parquet file", "parquet") from None
    packed = io.BytesIO()
    table = pyarrow.table({name: [row[name] for row in rows] for name in columns})
    parquet.write_table(table, packed)
    return packed.getvalue()


def _markdown(diagnosis: Diagnosis) -> str:
    from diagnose.answer.screen import answer
    from diagnose.reports.markdown import as_markdown

    return as_markdown(diagnosis, answer(diagnosis)).rstrip("\n") + "\n"


def _note_left_out(picture: Picture, progress: Progress) -> None:
    if picture.num_spans_left_out:
        progress.report(
            f"the {picture.num_spans_left_out:,} shortest bars were left out; causes and findings rest on all"
        )
