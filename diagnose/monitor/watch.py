"""The command's loop: read all GPUs, show them, write rows, and sum up at the end."""

from __future__ import annotations

import csv
import io
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from diagnose.errors import OutputError, UsageError
from diagnose.model.files import NewFile, cannot_write, check_distinct, check_file, is_stream, printable, write_file
from diagnose.monitor.board import METRICS, connect
from diagnose.monitor.record import CSV_COLUMNS, Record, to_json
from diagnose.text.plain_text import one_line

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["MonitorRequest", "watch"]

NAME_WIDTH = 22  # of a GPU in the table
TEXT_WIDTH = 120  # columns of the percentiles in a file
Show = Callable[[list[Record]], None]
WriteRow = Callable[[list[str]], None]


@dataclass(frozen=True)
class MonitorRequest:
    """The options of the command."""

    interval: float = 1.0  # s
    seconds: float | None = None  # None: until Ctrl-C
    gpus: tuple[int, ...] = ()  # indices of the driver; empty: all
    csv_file: str | None = None  # "-" is standard output
    json_file: str | None = None  # as csv_file
    output: str | None = None  # series and percentiles as .json or .html, or the percentiles as .txt
    html: str | None = None  # the same as a page
    force: bool = False
    quiet: bool = False  # no live table
    lang: str = "en"  # of the page

    @property
    def to_stdout(self) -> bool:
        """Return whether standard output belongs to data."""
        return "-" in (self.csv_file, self.json_file)


def watch(request: MonitorRequest, nvml: Any = None) -> int:
    """Watch until the time is over or Ctrl-C comes; return the exit code, which is 0 also where there is no driver.

    Raises:
        UsageError: both outputs want standard output, or the driver has no GPU of a given index.
        OutputError: a file exists already or cannot be written.
    """
    if request.csv_file == request.json_file == "-":
        raise UsageError("--csv and --json cannot both go to standard output; give one of them a file name.")
    _check_files(request)
    try:
        nvml = nvml if nvml is not None else _driver()
        nvml.nvmlInit()
    except Exception as error:  # NVML errors derive from Exception; no driver is an answer, not a fault
        reason = one_line(str(error))
        _answer_nothing(request, f"no NVIDIA driver responds here ({reason}), so there is nothing to watch.")
        return 0
    try:
        return _watch(request, nvml)
    except IndexError as error:
        index, count = error.args
        raise UsageError(f"There is no GPU {index}; the driver has {count}, numbered from 0.") from error
    finally:
        nvml.nvmlShutdown()


def _check_files(request: MonitorRequest) -> None:
    if request.output and Path(request.output).suffix.lower() not in {".html", ".json", ".txt"}:
        raise UsageError(f"Invalid --output '{printable(request.output)}': the name must end in .html, .json or .txt.")
    if request.html and Path(request.html).suffix.lower() not in {".html", ".htm"}:
        raise UsageError(f"Invalid --html '{printable(request.html)}': the name must end in .html.")
    named = {
        "--csv": request.csv_file,
        "--json": request.json_file,
        "--output": request.output,
        "--html": request.html,
    }
    for name in named.values():
        if name and name != "-":
            check_file(Path(name), force=request.force)
    check_distinct(named)


def _driver() -> Any:  # pynvml is untyped
    import pynvml

    return pynvml


def _watch(request: MonitorRequest, nvml: Any) -> int:
    records = [Record(board) for board in connect(nvml, request.gpus)]
    if not records:
        _answer_nothing(request, "the driver has no GPU, so there is nothing to watch.")
        return 0
    from rich.console import Console

    console = Console(stderr=request.to_stdout)
    failure: OutputError | None = None
    with ExitStack() as stack:
        rows = stack.enter_context(_rows(request)) if request.csv_file else None
        try:
            _loop(request, records, stack.enter_context(_shown(console, quiet=request.quiet)), rows)
        except OutputError as error:  # the readings so far are worth their summary
            failure = error
    _sum_up(request, records, console)
    if failure is not None:
        raise failure
    return 0


def _answer_nothing(request: MonitorRequest, why: str) -> None:
    """State that there is no GPU, and leave every file that was asked for: valid, and without a reading.

    Raises:
        OutputError: a file cannot be written.
    """
    print(f"diagnose: {why}", file=sys.stderr)
    data = to_json([], request.interval, why)
    if request.csv_file:
        with _rows(request):
            pass
    if request.json_file == "-":
        print(data)
    elif request.json_file:
        write_file(request.json_file, data + "\n", force=request.force)
    if request.output:
        made = {".json": data, ".html": _page(request, [], why)}.get(Path(request.output).suffix.lower(), why)
        write_file(request.output, made.rstrip("\n") + "\n", force=request.force)
    if request.html:
        write_file(request.html, _page(request, [], why), force=request.force)


def _loop(request: MonitorRequest, records: list[Record], show: Show, rows: WriteRow | None) -> None:
    began = time.monotonic()
    turn = 0
    try:
        while request.seconds is None or time.monotonic() - began < request.seconds or turn == 0:
            for record in records:
                row = record.add(record.board.read())
                if rows is not None:
                    rows(row)
            show(records)
            turn += 1
            time.sleep(max(0.0, began + turn * request.interval - time.monotonic()))
    except KeyboardInterrupt:  # how a watch without an end is ended
        pass


@contextmanager
def _rows(request: MonitorRequest) -> Iterator[WriteRow]:
    """Yield what writes one row; what was written is there even if this process is killed.

    Raises:
        OutputError: the file has come into being, or cannot be written.
    """
    name = str(request.csv_file)
    if name == "-":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(CSV_COLUMNS)

        def to_stdout(row: list[str]) -> None:
            writer.writerow(row)
            sys.stdout.flush()

        yield to_stdout
        return
    path = Path(name)
    with ExitStack() as stack:
        try:
            if is_stream(path):
                file: IO[bytes] = stack.enter_context(path.open("wb", buffering=0))
                file.write(_line_of(CSV_COLUMNS))
            else:
                new = stack.enter_context(NewFile(path))
                file = new.file
                file.write(_line_of(CSV_COLUMNS))
                new.publish(force=request.force)
        except OSError as error:
            raise cannot_write(path, error) from error

        def write(row: list[str]) -> None:
            try:
                _append(file, _line_of(row))
            except OSError as error:
                raise cannot_write(path, error) from error

        yield write


def _line_of(row: Sequence[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(row)
    return text.getvalue().encode()


def _append(file: IO[bytes], line: bytes) -> None:
    """Write a line whole, or cut off what could be written of it.

    Raises:
        OSError: the file is at an end.
    """
    written = 0
    try:
        while written < len(line):
            written += os.write(file.fileno(), line[written:])
    except OSError:
        if written:
            os.ftruncate(file.fileno(), os.fstat(file.fileno()).st_size - written)
        raise


@contextmanager
def _shown(console: Console, *, quiet: bool) -> Iterator[Show]:
    """Show a table that changes in its place on a terminal; elsewhere, and when quiet, nothing until the end."""
    if quiet or not console.is_terminal:
        yield lambda _records: None
        return
    from rich.live import Live

    from diagnose.reports.text_monitor import live

    with Live(console=console, auto_refresh=False, transient=True) as shown:
        yield lambda records: shown.update(live([_line(record) for record in records]), refresh=True)


def _label(record: Record) -> str:
    return f"{record.board.index} {record.board.name[:NAME_WIDTH]}"


def _line(record: Record) -> tuple[str, dict[str, float | None], str]:
    newest = record.readings[-1]
    return _label(record), newest.values, ", ".join(newest.slowed_by)


def _sum_up(request: MonitorRequest, records: list[Record], console: Console) -> None:
    from diagnose.reports.text_monitor import percentiles

    def summary(to: Console) -> None:
        to.print(percentiles([(_label(r), r.percentiles(), r.slowed_share()) for r in records]))
        to.print(f"{len(records[0].readings)} readings, one every {request.interval:g} s", style="dim")

    summary(console)
    if request.json_file == "-":
        print(to_json(records, request.interval))
    elif request.json_file:
        write_file(request.json_file, to_json(records, request.interval) + "\n", force=request.force)
    if request.output:
        write_file(request.output, _rendered(request, records, summary), force=request.force)
    if request.html:
        write_file(request.html, _page(request, records), force=request.force)


def _rendered(request: MonitorRequest, records: list[Record], summary: Callable[[Console], None]) -> str:
    """Return what ``--output`` holds, in the format of its suffix."""
    from rich.console import Console

    if Path(str(request.output)).suffix.lower() == ".json":
        return to_json(records, request.interval) + "\n"
    if Path(str(request.output)).suffix.lower() == ".html":
        return _page(request, records)
    page = Console(file=io.StringIO(), width=TEXT_WIDTH, record=True)
    summary(page)
    return page.export_text()


def _page(request: MonitorRequest, records: Sequence[Record], why: str = "") -> str:
    """Return the readings as a page; ``why`` states why there are none."""
    from diagnose.reports.language import language
    from diagnose.reports.monitor_page import Board, render

    boards = [
        Board(
            label=_label(r),
            seconds=[reading.time_s - r.readings[0].time_s for reading in r.readings],
            series={name: [reading.values[name] for reading in r.readings] for name in METRICS},
            percentiles=r.percentiles(),
            slowed=r.slowed_share(),
            reasons=sorted({reason for reading in r.readings for reason in reading.slowed_by}),
        )
        for r in records
    ]
    with language(request.lang):
        return render(boards, request.interval, why)
