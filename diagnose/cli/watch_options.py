"""The command lines of ``diagnose watch`` and ``diagnose history``; nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from diagnose.cli.help import Command, Decorator, option
from diagnose.cli.options import dataflow_option, module_option, result_options, step_on_option
from diagnose.cli.script_arguments import ScriptCommand

__all__ = ["history", "watch"]

WATCH, WINDOWS, METRICS, OUTPUT = "Watch", "Window", "Metrics", "Output"

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])


def _folder() -> Decorator:
    return option(
        "--folder",
        group=OUTPUT,
        default="diagnose-runs",
        show_default=True,
        metavar="FOLDER",
        help="Keep runs in FOLDER/NAME.",
    )


@click.command(
    cls=ScriptCommand,
    short_help="Run a script and record where it becomes slower.",
    context_settings={"allow_interspersed_args": False},
    examples=[
        "diagnose watch train.py --epochs 90",
        "diagnose watch --name resnet --slow 10 -m package.train",
        "torchrun --nproc-per-node 8 -m diagnose watch train.py",
    ],
)
@module_option(WATCH)
@option("--name", group=WATCH, default="", metavar="NAME", help="Name of the run.  [default: the script's]")
@option(
    "--every",
    group=WATCH,
    type=click.IntRange(min=2),
    default=50,
    show_default=True,
    metavar="N",
    help="Sum up every N steps.",
)
@step_on_option(WATCH)
@option(
    "--slow",
    group=WINDOWS,
    type=click.FloatRange(min=0, min_open=True),
    default=20,
    show_default=True,
    metavar="PERCENT",
    help="Record a window where steps become PERCENT slower than the run's own first ones.",
)
@option(
    "--windows",
    group=WINDOWS,
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    metavar="N",
    help="Record at most N windows.",
)
@option(
    "--window-mb",
    "max_mb",
    group=WINDOWS,
    type=click.FloatRange(min=0, min_open=True),
    default=500,
    show_default=True,
    metavar="MB",
    help="Keep at most MB megabytes of windows.",
)
@option(
    "--signal",
    group=WINDOWS,
    default="SIGUSR2",
    show_default=True,
    metavar="NAME",
    help="Record a window upon this signal, unless the script handles it; '' for none.",
)
@dataflow_option(WINDOWS)
@option(
    "--prometheus",
    group=METRICS,
    default="",
    metavar="[ADDRESS:]PORT",
    help="Serve metrics for Prometheus, on 127.0.0.1 where no address is given.",
)
@option(
    "--otlp",
    group=METRICS,
    default="",
    metavar="URL",
    help="Send metrics to a collector of OpenTelemetry, such as http://127.0.0.1:4318/v1/metrics.",
)
@_folder()
@option("-q", "--quiet", group=OUTPUT, is_flag=True, help="Show no progress.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def watch(**asked: Any) -> int:  # what click read, typed by WatchRequest
    """Run SCRIPT to its end, timing every step; where steps become slower, record a window and diagnose it.

    Without a window nothing is profiled. Steps, waits for batches, memory and NVML are summed up every N steps in
    FOLDER/NAME. A file named "record" in the run's folder, or the signal, asks for a window. If memory grows, two steps
    show which variable holds what stays. Options go before SCRIPT.
    """
    from diagnose.cli.watch import WatchRequest, watch_and_answer

    return watch_and_answer(WatchRequest(**asked))


@click.command(
    cls=Command,
    short_help="Show since when watched runs are slower.",
    examples=["diagnose history", "diagnose history resnet", "diagnose history resnet --json"],
)
@_folder()
@result_options
@click.argument("name", required=False)
def history(name: str | None, folder: str, **asked: Any) -> None:  # what click read, typed by HistoryRequest
    """List the runs of NAME that were watched, and state from which one on their steps are slower or faster.

    Without a NAME the names are listed. What differed then is named: commit, command, torch, host, GPUs.
    """
    from diagnose.cli.watch import HistoryRequest, history_and_answer

    history_and_answer(HistoryRequest(name=name, folder=folder, **asked))
