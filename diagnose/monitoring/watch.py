"""The command's loop: read all GPUs, show them, write rows, and sum up at the end."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from diagnose.errors import OutputError, UsageError
from diagnose.monitoring.board import connect
from diagnose.monitoring.record import CSV_COLUMNS, Record, to_json
from diagnose.output import check
from diagnose.plain_text import one_line

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["MonitorRequest", "watch"]

NAME_WIDTH = 22  # of a GPU in the table
Show = Callable[[list[Record]], None]


@dataclass(frozen=True)
class MonitorRequest:
    """What the command was asked for."""

    interval: float = 1.0  # s
    seconds: float | None = None  # None: until Ctrl-C
    gpus: tuple[int, ...] = ()  # indices of the driver; empty: all
    csv_file: str | None = None  # "-" is standard output
    json_file: str | None = None
    force: bool = False

    @property
    def to_stdout(self) -> bool:
        """Tell whether standard output belongs to data."""
        return "-" in (self.csv_file, self.json_file)


def watch(request: MonitorRequest, nvml: Any = None) -> int:  # noqa: ANN401  # pynvml is untyped
    """Watch until the time is over or Ctrl-C comes; return the exit code, which is 0 also where there is no driver.

    Raises:
        UsageError: both outputs want standard output, or the driver has no GPU of a given index.
        OutputError: a file exists already or cannot be written.
    """
    if request.csv_file == request.json_file == "-":
        raise UsageError("--csv and --json cannot both go to standard output; give one of them a file name.")
    for name in (request.csv_file, request.json_file):
        if name and name != "-":
            check(Path(name), force=request.force)
    try:
        nvml = nvml if nvml is not None else _driver()
        nvml.nvmlInit()
    except Exception as error:  # NVML errors derive from Exception; no driver is an answer, not a fault
        reason = one_line(str(error))
        print(f"diagnose: no NVIDIA driver answers here ({reason}), so there is nothing to watch.", file=sys.stderr)
        return 0
    try:
        return _watch(request, nvml)
    except IndexError as error:
        index, count = error.args
        raise UsageError(f"There is no GPU {index}; the driver has {count}, numbered from 0.") from error
    finally:
        nvml.nvmlShutdown()


def _driver() -> Any:  # noqa: ANN401  # pynvml is untyped
    import pynvml

    return pynvml


def _watch(request: MonitorRequest, nvml: Any) -> int:  # noqa: ANN401  # pynvml is untyped
    records = [Record(board) for board in connect(nvml, request.gpus)]
    if not records:
        print("diagnose: the driver has no GPU, so there is nothing to watch.", file=sys.stderr)
        return 0
    from rich.console import Console

    console = Console(stderr=request.to_stdout)
    with ExitStack() as stack:
        rows = _rows(stack.enter_context(_opened(request.csv_file))) if request.csv_file else None
        _loop(request, records, stack.enter_context(_shown(console)), rows)
    _sum_up(request, records, console)
    return 0


def _loop(request: MonitorRequest, records: list[Record], show: Show, rows: Callable[[list[str]], None] | None) -> None:
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


def _rows(file: IO[str]) -> Callable[[list[str]], None]:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)

    def write(row: list[str]) -> None:
        writer.writerow(row)
        file.flush()  # what was seen is there even if this process is killed

    return write


@contextmanager
def _opened(name: str) -> Iterator[IO[str]]:
    if name == "-":
        yield sys.stdout
        return
    try:
        file = Path(name).open("w", encoding="utf-8", newline="")  # noqa: SIM115  # closed below
    except OSError as error:
        raise OutputError(f"{name} cannot be written ({error.strerror}); choose another place.") from error
    with file:
        yield file


@contextmanager
def _shown(console: Console) -> Iterator[Show]:
    """Show a table that changes in its place on a terminal; elsewhere nothing until the end."""
    if not console.is_terminal:
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

    if request.json_file == "-":
        print(to_json(records, request.interval))
    elif request.json_file:
        _write(Path(request.json_file), to_json(records, request.interval) + "\n")
    console.print(percentiles([(_label(r), r.percentiles(), r.slowed_share()) for r in records]))
    console.print(f"{len(records[0].readings)} readings, one every {request.interval:g} s", style="dim")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({error.strerror}); choose another place.") from error
