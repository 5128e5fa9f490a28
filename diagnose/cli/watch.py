"""``diagnose watch``: run a script under the monitor, and with ``--list`` read what such runs have left."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from diagnose.cli.output import ResultRequest, answer_text, plan_text
from diagnose.errors import InputError, UsageError
from diagnose.model.files import printable
from diagnose.text.plain_text import one_line
from diagnose.text.progress import Progress


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """What ``diagnose watch`` was asked for."""

    script: str
    args: tuple[str, ...] = ()
    module: bool = False
    name: str = ""
    every: int = 50
    step_on: str = "auto"
    slow: float = 20.0  # per cent
    windows: int = 5
    max_mb: float = 500.0
    dataflow: bool = True
    prometheus: str = ""
    folder: str = "diagnose-runs"
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class HistoryRequest(ResultRequest):
    """What ``diagnose watch --list`` was asked for."""

    name: str | None = None
    folder: str = "diagnose-runs"


def watch_and_answer(request: WatchRequest) -> int:
    """Run the script; return its exit code. What the run shows is written to standard error.

    Raises:
        UsageError: an option makes no sense, or there is no such script.
        OutputError: the run's folder cannot be made.
    """
    from diagnose.monitor.long_run import watch_script
    from diagnose.monitor.watch_options import WatchOptions
    from diagnose.monitor.windows import WindowLimits

    options = WatchOptions(
        name=request.name or _name_of(request),
        every=request.every,
        slow=request.slow / 100,
        folder=Path(request.folder),
        step_on=request.step_on,  # type: ignore[arg-type]  # click has checked the choice
        dataflow=request.dataflow,
        limits=WindowLimits(count=request.windows, total_mb=request.max_mb),
        prometheus=request.prometheus,
    )
    progress = Progress(quiet=request.quiet)
    code, watch = watch_script([request.script, *request.args], options, module=request.module, report=progress.report)
    if watch.folder is not None:
        progress.report(f"watched {watch.num_steps:,} steps: {printable(watch.folder.path)}")
    if not watch.num_steps:
        progress.report("no step was found; set what ends a step with --step-on")
    sys.stdout.flush()
    return code


def history_and_answer(request: HistoryRequest) -> None:
    """Print the runs of a name, or the names.

    Raises:
        InputError: there is no such run.
        OutputError: the file cannot be written.
    """
    from diagnose.monitor.history import history_json, history_text, summary
    from diagnose.monitor.run_folder import check_name, load_runs, names_in

    files = plan_text(request)
    runs = Path(request.folder)
    names = names_in(runs)
    if not names:
        raise InputError(
            f"There are no watched runs in {printable(runs)}; make one with diagnose watch, or give --folder."
        )
    if request.name is None:
        data = json.dumps({"schema_version": 1, "names": names}, indent=2)
        answer_text(lambda: "\n".join(names), lambda: data, request, files)
        return
    name = request.name
    check_name(name)
    summaries = [summary(run) for run in load_runs(runs, name)]
    if not summaries:
        raise UsageError(f"There is no run named '{one_line(name)}' in {printable(runs)}: {', '.join(names)}.")
    answer_text(lambda: "\n".join(history_text(summaries)), lambda: history_json(name, summaries), request, files)


def _name_of(request: WatchRequest) -> str:
    """Return the script's name as one of a run."""
    stem = request.script.rpartition(".")[2] if request.module else Path(request.script).absolute().stem
    return re.sub(r"[^A-Za-z0-9._-]", "_", stem).lstrip("._-")[:100] or "run"
