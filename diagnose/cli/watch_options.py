"""The command line of ``diagnose watch``; nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from diagnose.cli.help import option
from diagnose.cli.options import module_option, result_options, step_on_option
from diagnose.cli.script_arguments import ScriptCommand

__all__ = ["folder_option", "watch"]

WATCH, WINDOWS, METRICS, OUTPUT = "Watch", "Window", "Metrics", "Output"

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])


def folder_option(command: _Decorated) -> _Decorated:
    """Give a command ``--folder``: where watched runs are."""
    decorate = option(
        "--folder",
        group=OUTPUT,
        default="diagnose-runs",
        show_default=True,
        metavar="FOLDER",
        help="Keep runs in FOLDER/NAME.",
    )
    return decorate(command)


class _WatchCommand(ScriptCommand):
    """After ``--list`` no script follows, so that options may stand behind the name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = "list_runs" in self.make_parser(ctx).parse_args(list(args))[0]
        return super().parse_args(ctx, args)


@click.command(
    cls=_WatchCommand,
    short_help="Run a script and record where it becomes slower.",
    context_settings={"allow_interspersed_args": False},
    examples=[
        "diagnose watch train.py --epochs 90",
        "diagnose watch --name resnet --slow 10 -m package.train",
        "diagnose watch --list resnet",
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
@option("--list", "list_runs", group=OUTPUT, is_flag=True, help="Run nothing: list the runs of the NAME that follows.")
@folder_option
@result_options
@click.argument("script", required=False, metavar="SCRIPT")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def watch(
    script: str | None, args: tuple[str, ...], folder: str, list_runs: bool, **asked: Any
) -> int | None:  # what click read, typed by the requests
    """Run SCRIPT to its end, timing every step; where steps become slower, record a window and diagnose it.

    Without a window nothing is profiled. Steps, waits for batches, memory and NVML are summed up every N steps in
    FOLDER/NAME. A file named "record" in the run's folder, or the signal, asks for a window. Options go before SCRIPT.
    """
    from diagnose.cli.watch import HistoryRequest, WatchRequest, history_and_answer, watch_and_answer

    where = {name: asked.pop(name) for name in ("as_json", "output", "force")}
    if list_runs:
        if args:
            raise click.UsageError(f"Unexpected argument after --list {script}: {args[0]}.")
        history_and_answer(HistoryRequest(name=script, folder=folder, quiet=asked["quiet"], **where))
        return None
    if script is None:
        raise click.UsageError("Missing argument 'SCRIPT'.")
    if any(where.values()):
        raise click.UsageError("--json, --output and --force go with --list; a run is kept in --folder.")
    return watch_and_answer(WatchRequest(script=script, args=args, folder=folder, **asked))
