"""The command: gathers what was asked for, calls one function, and turns every error into a sentence and an exit code.

Nothing heavy is imported here: ``diagnose --help`` has to answer at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import click

from diagnose import __version__
from diagnose.cli.gate_options import compare, gate
from diagnose.errors import DEBUG, DiagnoseError, InputError, OutputError, is_debugging
from diagnose.model.files import DISK_ERRORS, cannot_write
from diagnose.text.plain_text import clean, middle, one_line

__all__ = ["INTERNAL_ERROR", "INTERRUPTED", "cli", "main", "run"]

INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h: a fault of diagnose itself, never of the input
INTERRUPTED = 130  # as a shell shows SIGINT
MAX_NAME = 200  # characters of a path in an error

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _outputs(command: _Command) -> _Command:
    """Give a command the options that say where the answer goes."""
    options = (
        click.option("--json", "as_json", is_flag=True, help="Print only the JSON diagnosis to standard output."),
        click.option("--html", metavar="FILE", help="Write the HTML report to FILE."),
        click.option("-o", "--output", metavar="FILE", help="Write what the suffix says: .html, .json or .txt."),
        click.option("--force", is_flag=True, help="Overwrite files that exist already."),
        click.option("--quiet", is_flag=True, help="Show no progress."),
        click.option("--open", "open_browser", is_flag=True, help="Open the HTML report in the browser."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Say why a PyTorch training step is slow, on which line, and what to change."""


@cli.command(context_settings={"allow_interspersed_args": False})
@click.option("-m", "module", is_flag=True, help="SCRIPT is a module, as in python -m.")
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="Steady steps to record in each window.")
@click.option("--skip", type=click.IntRange(min=0), metavar="N", help="Wait at most N steps for step times to settle.")
@click.option(
    "--step-on",
    type=click.Choice(["auto", "optimizer", "dataloader", "forward", "marker"]),
    help="What ends a step; marker: diagnose.step() in the script.  [default: auto]",
)
@click.option(
    "--max-seconds", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Record at most S seconds."
)
@click.option("--max-mb", type=click.FloatRange(min=0, min_open=True), metavar="MB", help="Record at most MB of trace.")
@click.option("--keep-going", is_flag=True, help="Let the script run to its end instead of stopping it once recorded.")
@click.option("--capture", "folder", metavar="FOLDER", help="Where the capture goes.  [default: diagnose-capture-TIME]")
@_outputs
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def trace(**asked: Any) -> int:  # what click read, typed by TraceRequest
    """Run SCRIPT as Python would, record a few steady steps, and diagnose them.

    Everything after SCRIPT belongs to the script:

        diagnose trace train.py --epochs 3
        diagnose trace --steps 10 -m package.train --epochs 3
        torchrun --nproc-per-node 8 -m diagnose trace train.py
    """
    from diagnose.cli.trace import TraceRequest, trace_and_answer

    return trace_and_answer(TraceRequest(**asked))


@cli.command()
@_outputs
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
def analyze(paths: tuple[str, ...], **asked: Any) -> None:  # what click read, typed by Request
    """Diagnose traces that exist already: capture folders, or files and folders of torch.profiler.

    Several PATHs, or a folder of several files, are the ranks of one run.
    """
    # No linear algebra happens here; the threads that NumPy would start for it cost more than reading a small trace.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from diagnose.cli.answer import Request, answer, examine_paths, prepare

    request = Request(**asked)
    files = prepare(request, inputs=paths)
    draw = not request.as_json or any(file.suffix != ".json" for file in files)
    answer(examine_paths(paths, request.progress, draw=draw), request, files)


@cli.command(context_settings={"allow_interspersed_args": False})
@click.option("-m", "module", is_flag=True, help="SCRIPT is a module, as in python -m.")
@click.option("--auto", is_flag=True, help="Try every prescription that can be applied from outside (the default).")
@click.option("--apply", "ids", metavar="ID,…", help="Try these changes only.")
@click.option("--budget", default="10m", show_default=True, metavar="TIME", help="Stop starting runs after it.")
@click.option(
    "--cwd-mode",
    type=click.Choice(["copy", "same"]),
    default="copy",
    show_default=True,
    help="Run in a copy of the working folder, or in the folder itself.",
)
@click.option("--launcher", default="", metavar="COMMAND", help="What starts the ranks: 'torchrun --nproc-per-node 2'.")
@click.option(
    "--step-on",
    type=click.Choice(["auto", "optimizer", "dataloader", "forward", "marker"]),
    default="auto",
    help="What ends a step.  [default: auto]",
)
@click.option("--keep", metavar="FOLDER", help="Keep the output of every run in FOLDER.")
@click.option("--write-patch", metavar="FILE", help="Write what helped into a diff of the script; git apply takes it.")
@click.option("--yes", is_flag=True, help="Do not ask before running the script repeatedly.")
@click.option("--trust-command", is_flag=True, help="With --yes: also run a command that a capture has recorded.")
@_outputs
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def prove(ids: str | None, auto: bool, **asked: Any) -> int:  # what click read, typed by ProveRequest
    """Run SCRIPT with the prescribed changes and without, in turns, and measure both, losses included.

    SCRIPT is run unmodified, many times, each time for some dozens of steps. A capture folder may stand in its place.
    """
    from diagnose.cli.prove import ProveRequest, prove_and_answer
    from diagnose.errors import UsageError

    if auto and ids:
        raise UsageError("--auto and --apply contradict each other; give one of them.")
    apply = tuple(name.strip() for name in (ids or "").split(",") if name.strip())
    return prove_and_answer(ProveRequest(apply=apply, **asked))


cli.add_command(compare)
cli.add_command(gate)


@cli.command()
@click.option(
    "--interval",
    type=click.FloatRange(min=0.05),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds between two readings.",
)
@click.option("--seconds", type=click.FloatRange(min=0), metavar="S", help="Stop after S seconds.  [default: Ctrl-C]")
@click.option("--gpus", metavar="N,…", default="", help="Watch these GPUs only, by the driver's numbers.")
@click.option("--csv", "csv_file", metavar="FILE", help="Write every reading to FILE; - is standard output.")
@click.option("--json", "json_file", metavar="FILE", help="Write series and percentiles to FILE at the end.")
@click.option("--force", is_flag=True, help="Overwrite files that exist already.")
def monitor(gpus: str, **asked: Any) -> int:  # what click read, typed by MonitorRequest
    """Watch the machine's NVIDIA GPUs: clocks, what holds them back, power, memory, traffic.

    "kernel running" is the share of time in which any kernel ran, not how much of the GPU it used.
    """
    from diagnose.monitor import MonitorRequest, watch

    indices = tuple(name.strip() for name in gpus.split(",") if name.strip())
    if not all(name.isdecimal() for name in indices):
        raise click.BadParameter(f"{gpus} is no list of numbers such as 0,1.", param_hint="--gpus")
    return watch(MonitorRequest(gpus=tuple(map(int, indices)), **asked))


@cli.command("what-if")
@click.option("--apply", "ids", metavar="ID,…", default="", help="Apply these prescriptions, in this order.")
@click.option(
    "--without", "rules", multiple=True, metavar="RULE", help="Take away what this rule found; may be repeated."
)
@click.option(
    "--no-sync",
    "places",
    multiple=True,
    metavar="FILE:LINE",
    help="Do not wait for the device at this line; may be repeated.",
)
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Load batches in N worker processes.")
@click.option(
    "--bucket-mb",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MB",
    help="Reduce gradients in buckets of this size.",
)
@click.option(
    "--scale",
    "scales",
    multiple=True,
    metavar="PATTERN=FACTOR",
    help="Let kernels whose name PATTERN finds take FACTOR of their time; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("path")
def what_if(path: str, as_json: bool, **named: Any) -> None:  # lists of texts
    """Predict the step after changes, by replaying the recorded steps with one change after the other.

        diagnose what-if trace.json.gz --apply load-in-workers,autocast --scale 'gemm=0.5'

    Without a change it shows what the step's critical path consists of.
    """
    from diagnose.pipeline.what_if import WhatIfRequest, parse_place, parse_scale, run_what_if

    request = WhatIfRequest(
        apply=tuple(name.strip() for name in named["ids"].split(",") if name.strip()),
        without=named["rules"],
        no_sync=tuple(map(parse_place, named["places"])),
        workers=named["workers"],
        bucket_mb=named["bucket_mb"],
        scale=tuple(map(parse_scale, named["scales"])),
    )
    result = run_what_if(path, request)
    click.echo(result.to_json() if as_json else result.text())


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; no exception but SystemExit leaves this function."""
    try:
        return int(
            cli.main(args=None if argv is None else list(argv), prog_name="diagnose", standalone_mode=False) or 0
        )
    except click.exceptions.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        _show_usage(error)
        return error.exit_code
    except DiagnoseError as error:
        _complain(str(error), error)
        return error.exit_code
    except Exception as error:  # the promise is a sentence, whatever went wrong
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            full = _disk_is_full(error)
            _complain(str(full), full)
            return OutputError.exit_code
        return _unforeseen(error)


def main() -> NoReturn:
    """Run the command and leave the process."""
    sys.exit(run())


def _complain(sentence: str, error: BaseException) -> None:
    """Write one line, under DIAGNOSE_DEBUG after the traceback of a fault of our own."""
    if is_debugging() and not isinstance(error, DiagnoseError):
        import traceback

        click.echo(clean("".join(traceback.format_exception(error))), err=True)
    click.echo(f"diagnose: error: {one_line(sentence)}", err=True)


def _show_usage(error: click.ClickException) -> None:
    """Write what click found wrong with the arguments, as click does, but with the arguments made harmless."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is not None:
        click.echo(context.get_usage(), err=True)
        if context.command.get_help_option(context) is not None:
            click.echo(f"Try '{context.command_path} {context.help_option_names[0]}' for help.", err=True)
        click.echo(err=True)
    click.echo(f"Error: {one_line(error.format_message())}", err=True)


def _unforeseen(error: Exception) -> int:
    """Explain what no other place did: a path that the system refuses, such as one too long, or a fault of our own."""
    if isinstance(error, OSError) and error.filename is not None:
        name = middle(one_line(str(error.filename)), MAX_NAME)
        _complain(f"{name} cannot be used ({error.strerror}). Check the path.", error)
        return InputError.exit_code
    _complain(_own_fault(error), error)
    return INTERNAL_ERROR


def _disk_is_full(error: OSError) -> OutputError:
    """Return the error to show; drop what standard output still holds if that is what cannot be written."""
    try:
        sys.stdout.flush()
    except OSError:  # the interpreter would fail once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return cannot_write(error.filename or "standard output or a temporary file", error)


def _own_fault(error: Exception) -> str:
    text = " ".join(str(error).split())
    return (
        f"a fault in diagnose itself: {type(error).__name__}{': ' if text else ''}{text}. "
        f"Please report it with what the same command prints under {DEBUG}=1."
    )
