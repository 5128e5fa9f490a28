"""``diagnose trace``: check what can be checked, run the script under capture, then answer from what was captured."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.capture.options import CaptureOptions
from diagnose.capture.process import launch
from diagnose.capture.process.launch import CaptureRequest
from diagnose.capture.process.script import check_utf8
from diagnose.capture.record.folder import CapturePaths, unfinished
from diagnose.cli.output import Request, analyze_with_progress, answer, prepare
from diagnose.cli.ranks import Exchange, chosen_ranks, named_after, wait_for_others
from diagnose.errors import CaptureError, InputError, OutputError, UsageError
from diagnose.model.events import Note
from diagnose.model.files import cannot_write, printable
from diagnose.model.launched import Launched, launched
from diagnose.text.commands import command_line
from diagnose.text.progress import Progress

if TYPE_CHECKING:
    from diagnose.cli.copied_folder import CopiedFolder
    from diagnose.model.diagnosis import Diagnosis

ANALYSIS = ("diagnose.trace_reader", "diagnose.pipeline.run", "diagnose.reports.text", "diagnose.reports.html")


@dataclass(frozen=True, slots=True)
class TraceRequest(Request):
    """What ``diagnose trace`` was asked for; None leaves a bound at its default."""

    script: str = ""
    args: Sequence[str] = ()
    module: bool = False
    folder: str | None = None
    steps: int | None = None
    skip: int | None = None
    step_on: str | None = None
    max_seconds: float | None = None
    max_mb: float | None = None
    quick: bool = False
    dataflow: bool = True
    keep_going: bool = False
    copy: bool = False  # of the working folder, for the script to run in
    ranks: str | None = None  # that are recorded, such as 0,1,8-15; None: all


def trace_and_answer(request: TraceRequest) -> int:
    """Run the script, diagnose it, and return the exit code of the command: the script's own.

    Raises:
        UsageError: the options or the script make no sense.
        OutputError: a result could not be written; raised before the script runs.
        CaptureError: the script ended without a step that could be captured.
    """
    ranks = launched()
    _check_script(request)
    if request.copy and ranks.world_size > 1:
        raise UsageError("--copy is for one process; start several ranks in a copy of the folder that you make.")
    chosen = chosen_ranks(request.ranks, ranks.world_size) if request.ranks else frozenset(range(ranks.world_size))
    if ranks.rank not in chosen:
        # Run the script as Python would, in a rank that is not recorded, and return its exit code.
        script = (["-m"] if request.module else []) + [request.script, *request.args]
        ended = subprocess.run([sys.executable, *script], check=False).returncode
        return ended if ended >= 0 else 128 - ended
    if len(chosen) < ranks.world_size:
        request = replace(request, keep_going=True)  # the others do not stop, and would wait for those that do
    folder = _capture_folder(request, ranks)
    request = _with_default_report(request, folder)
    files = prepare(request) if ranks.rank == min(chosen) else ()
    if ranks.rank == min(chosen):
        threading.Thread(target=import_analysis, name="diagnose-imports").start()  # beside the script's own imports
    exchange = Exchange(ranks.rank, chosen, request.progress)
    from diagnose.cli.copied_folder import copied_folder, warn_of_checkpoints

    if not request.copy and not request.keep_going and ranks.rank == 0:
        warn_of_checkpoints(Path.cwd(), request.progress.report)
    place = copied_folder(folder, force=request.force, report=request.progress.report)
    with place if request.copy else contextlib.nullcontext() as copied:
        names = {field.name for field in fields(CaptureOptions)} - {"output"}
        given = {name: getattr(request, name) for name in names if getattr(request, name, None) is not None}
        code, folder = _run(request, CaptureOptions(output=folder, **given), ranks, exchange, copied)
    if ranks.rank != min(chosen):
        return code
    diagnosis = _diagnosed(request, folder, ranks, chosen, exchange)
    answer(diagnosis, request, files)
    return code


def import_analysis() -> None:
    """Import what the diagnosis needs, which takes half a second, while the script runs in another process."""
    for name in ANALYSIS:
        import_module(name)


def _diagnosed(
    request: TraceRequest, folder: Path, ranks: Launched, chosen: frozenset[int], exchange: Exchange
) -> Diagnosis:
    """Diagnose the captures of all ranks: by what they have sent, else by what lies in the folder."""
    received, progress = exchange.received, request.progress
    there = received.ranks if received is not None else frozenset()
    whole_world = request.folder is not None
    left = chosen - there
    notes: tuple[str, ...] = ()
    if left and (received is None or exchange.is_cut):
        notes = wait_for_others(folder, ranks, chosen=left, whole_world=whole_world, progress=progress)
    again = command_line(["diagnose", "analyze", str(folder)])
    progress.report(f"wrote the capture {printable(folder)}; {again} repeats the analysis")
    if received is None:
        found = analyze_with_progress([folder], progress)
    else:
        from diagnose.pipeline.job import Workers, analyze_inputs, answer_from_received

        with progress.phase("analysing"):
            found = (
                analyze_inputs([folder], workers=Workers(), progress=Progress(quiet=True), draw=True)
                if left
                else answer_from_received(received)
            )
    return replace(found, trust=(*found.trust, *map(Note, notes)))


def _check_script(request: TraceRequest) -> None:
    if request.module:
        check_utf8(Path.cwd())
        return  # only the interpreter that runs it can tell where a module lies
    script = Path(request.script)
    if not script.exists():
        raise UsageError(f"The script {printable(script)} does not exist; give the path of a Python file.")
    if script.is_dir() and not (script / "__main__.py").is_file():
        raise UsageError(f"{printable(script)} is a folder without __main__.py; give the path of a Python file.")
    check_utf8(script.resolve())


def _capture_folder(request: TraceRequest, ranks: Launched) -> Path:
    folder = Path(request.folder) if request.folder else Path(named_after("diagnose-capture", ranks))
    check_utf8(folder.absolute())
    name = printable(folder)
    try:
        if os.path.lexists(folder) and not folder.is_dir():
            what = "a file" if folder.exists() else "a link to nothing"
            raise OutputError(f"Invalid --capture '{name}': it is {what}; choose a new folder.")
        if not request.force and ranks.world_size == 1 and folder.is_dir() and any(folder.iterdir()):
            raise OutputError(f"The folder {name} is not empty; choose another --capture, or --force to replace it.")
        above = next((parent for parent in folder.absolute().parents if parent.exists()), Path("/"))
    except (OSError, ValueError) as error:
        raise cannot_write(folder, error) from error
    if not os.access(folder if folder.exists() else above, os.W_OK | os.X_OK):
        raise OutputError(f"The folder {name} is not writable; choose another one with --capture.")
    for earlier in unfinished(folder):
        request.progress.report(
            f"{printable(earlier)} is the partial capture of an earlier run that was killed; diagnose analyze reads it"
        )
    return folder


def _with_default_report(request: TraceRequest, folder: Path) -> TraceRequest:
    """Write an HTML report next to the capture unless another output was requested.

    Raises:
        OutputError: their folder cannot be created.
    """
    if request.as_json or request.html or request.output:
        return request
    if not request.folder:
        return replace(request, html=f"{folder.name.replace('capture', 'report', 1)}.html")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
    name = folder.name if folder.name.strip(".") else folder.absolute().resolve().name  # . and .. have one too
    return replace(request, html=str(folder.parent / f"{name}-report.html"))


def _run(
    request: TraceRequest,
    options: CaptureOptions,
    ranks: Launched,
    exchange: Exchange,
    copied: CopiedFolder | None = None,
) -> tuple[int, Path]:
    """Run the script; return its exit code and the folder that holds what was captured.

    Raises:
        CaptureError: nothing was captured; its exit code is the script's own where that is not 0.
    """
    script = (["-m"] if request.module else []) + [request.script, *request.args]
    if copied is not None:
        script, options = copied.words(script), replace(options, output=copied.capture)
    capture_request = CaptureRequest(options, parent=os.getpid(), failure_file=-1, signal_file=-1)
    began, is_new = time.time(), not options.output.exists()
    with_store = exchange.run if ranks.world_size > 1 else None
    ended = launch.supervise(
        capture_request,
        script,
        stdout_to_stderr=request.as_json,
        with_store=with_store,
        place=copied.place if copied is not None else None,
    )
    if copied is not None:
        ended = replace(ended, failure=copied.sentence(ended.failure))
    paths = CapturePaths(options.output, rank=ranks.rank, num_ranks=ranks.world_size, pid=ended.pid)
    own = () if ended.failure else (options.output,)  # a child that failed has put nothing there; another run may have
    for folder in (paths.beside, paths.partial, *own):
        if _holds_steps(folder, ranks, since=began):
            if ended.failure or ended.returncode < 0:
                request.progress.report(
                    ended.failure or f"{request.script} {_how(ended)}; the steps captured until then are diagnosed."
                )
            if folder == paths.beside:
                request.progress.report(
                    f"{printable(options.output)} was created by another process while the script ran"
                )
            _remove_empty(options.output, is_new=is_new)
            found = copied.publish(folder) if copied is not None else folder
            here = Path.cwd()
            return ended.exit_code, found.relative_to(here) if found.is_relative_to(here) else found
    shutil.rmtree(paths.partial, ignore_errors=True)  # a killed process left it, without a whole window
    _remove_empty(options.output, is_new=is_new)
    error = CaptureError(ended.failure or f"No step was captured: {request.script} {_how(ended)}. {_remedy(ended)}")
    error.exit_code = ended.exit_code or CaptureError.exit_code
    raise error


def _remove_empty(folder: Path, *, is_new: bool) -> None:
    """Remove the folder that a killed process had reserved."""
    if is_new:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _holds_steps(folder: Path, ranks: Launched, *, since: float) -> bool:
    """Return whether this process's own capture lies in ``folder`` with at least one window, and not an earlier one."""
    names = [f"capture.rank{ranks.rank}.json", *(["capture.json"] if ranks.world_size == 1 else [])]
    path = next((folder / name for name in reversed(names) if (folder / name).exists()), folder / names[0])
    from diagnose.model.capture import CaptureInfo  # numpy, which a wrong option need not wait for

    try:
        info = CaptureInfo.from_json(path.read_bytes(), source=printable(path))
        # File systems that keep whole seconds, and clocks of file servers.
        fresh = path.stat().st_mtime >= since - 2.0
    except (OSError, InputError):
        return False
    return fresh and bool(info.light_file or info.attribution_file)


def _how(ended: launch.Ended) -> str:
    if ended.returncode >= 0:
        return f"ended with exit code {ended.returncode} before one was complete"
    name = signal.Signals(-ended.returncode).name if -ended.returncode in set(signal.Signals) else "a signal"
    return f"was ended by {name}"


def _remedy(ended: launch.Ended) -> str:
    if ended.returncode == -signal.SIGKILL:
        return "The system may have run out of memory; try a smaller batch or fewer workers."
    if ended.returncode == 0:
        return "Run at least a few dozen steps, or set what ends a step with --step-on."
    return "Check that it runs without diagnose; its arguments go after its name."
