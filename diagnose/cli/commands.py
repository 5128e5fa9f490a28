"""The commands and their options: each gathers what was asked for and calls one function, imported only then."""

from __future__ import annotations

from typing import Any

import click

from diagnose import __version__
from diagnose.cli import options as shared
from diagnose.cli.analyze_options import analyze
from diagnose.cli.former import FORMER
from diagnose.cli.gate_options import compare, gate
from diagnose.cli.help import Command, Group, needless_flag, option, renamed_option, show_all_help
from diagnose.cli.mcp_options import mcp
from diagnose.cli.other_tools import completion, doctor
from diagnose.cli.script_arguments import ScriptCommand
from diagnose.cli.trace_options import trace
from diagnose.cli.watch_options import watch
from diagnose.model.limits import OVERLAPPED

__all__ = ["cli"]

CHANGES, RUNS = "Change", "Trial"
HELP_ALL = "Show the help of all commands with all options, and exit."
ALIASES = dict.fromkeys(("profile", "run", "record"), "trace")
GONE = {
    "monitor": "nvidia-smi dmon or nvitop",
    "serve": "the HTML reports that --html FILE writes, from the disk or by any server of static files",
}


@click.group(
    cls=Group,
    aliases=ALIASES,
    gone=GONE,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    examples=[
        "diagnose trace train.py --epochs 3",
        "diagnose analyze trace.json.gz --html report.html",
        "diagnose explain data-stall",
    ],
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.option("--help-all", is_flag=True, is_eager=True, expose_value=False, callback=show_all_help, help=HELP_ALL)
def cli() -> None:
    """Find out why a PyTorch training step is slow, on which line, and what to change.

    diagnose COMMAND --help describes a command.
    """


@click.command(
    cls=ScriptCommand,
    short_help="Measure each prescribed change by running the script.",
    context_settings={"allow_interspersed_args": False},
    examples=[
        "diagnose prove train.py --epochs 3",
        "diagnose prove --yes --budget 5m --apply load-in-workers,autocast train.py",
        "diagnose prove capture/",
    ],
)
@shared.module_option(RUNS)
@needless_flag("--auto", because="without --apply every change is tried that can be applied from outside")
@option(
    "--apply",
    "ids",
    group=RUNS,
    metavar="ID,…",
    help="Try only these changes. [default: every one that can be applied from outside]",
)
@option(
    "--budget",
    group=RUNS,
    default="10m",
    show_default=True,
    metavar="TIME",
    help="End all runs and recordings within TIME: 90s, 10m or 1h.",
)
@option(
    "--cwd-mode",
    group=RUNS,
    type=click.Choice(["copy", "same"]),
    metavar="MODE",
    default="copy",
    show_default=True,
    help="copy: run in a copy of the working folder, which reads files outside it; same: in the folder itself, whose "
    "files runs may overwrite.",
)
@option(
    "--writable",
    group=RUNS,
    multiple=True,
    is_consent=True,
    metavar="PATH",
    help="Let runs write to PATH, a file or folder that exists outside the copy; repeatable.",
)
@option(
    "--network",
    group=RUNS,
    is_flag=True,
    is_consent=True,
    help="Let runs use the network, experiment trackers included. [default: this machine's loopback only]",
)
@option(
    "--launcher",
    group=RUNS,
    default="",
    is_consent=True,
    metavar="COMMAND",
    help="Start the ranks with COMMAND, such as 'torchrun --nproc-per-node 2'.",
)
@shared.step_on_option(RUNS)
@renamed_option(
    "--keep-runs",
    before="--keep",
    group=RUNS,
    metavar="FOLDER",
    help="Keep the capture and the output of every run in FOLDER, which is new or empty.",
)
@option(
    "--write-patch",
    group=RUNS,
    metavar="FILE",
    help="Write the changes that helped to FILE, a diff of the script for git apply.",
)
@option(
    "--yes",
    group=RUNS,
    is_flag=True,
    is_consent=True,
    help="Run the script repeatedly without asking for confirmation.",
)
@option(
    "--trust-command",
    group=RUNS,
    is_flag=True,
    is_consent=True,
    help="With --yes, also run a command that a capture recorded.",
)
@shared.report_options
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def prove(ids: str | None, auto: bool, **asked: Any) -> int:  # what click read, typed by ProveRequest
    """Run SCRIPT with each prescribed change and without it, in turns, and measure both.

    The script is run unmodified, many times, each time for some dozens of steps; step time, losses and memory are
    compared. SCRIPT may be a capture folder, whose recorded command is run then. Options go before SCRIPT.
    """
    from diagnose.cli.prove import ProveRequest, prove_and_answer
    from diagnose.errors import UsageError

    if auto and ids:
        raise UsageError("--auto and --apply exclude each other; use one of them.")
    return prove_and_answer(ProveRequest(apply=_names(ids or ""), **asked))


@click.command(
    "what-if",
    cls=Command,
    short_help="Predict the step time after changes.",
    examples=[
        "diagnose what-if trace.json.gz",
        "diagnose what-if capture/ --apply load-in-workers,autocast",
        "diagnose what-if trace.json.gz --scale 'gemm=0.5' --json",
    ],
)
@option("--apply", "ids", group=CHANGES, metavar="ID,…", default="", help="Apply these changes, in this order.")
@option(
    "--without",
    "rules",
    group=CHANGES,
    multiple=True,
    metavar="RULE",
    help="Remove all idle time of this rule; repeatable.",
)
@option(
    "--no-sync",
    "places",
    group=CHANGES,
    multiple=True,
    metavar="FILE:LINE",
    help="Remove the wait for the device at this line; repeatable.",
)
@renamed_option(
    "--loader-workers",
    before="--workers",
    group=CHANGES,
    type=click.IntRange(min=1),
    metavar="N",
    help="Load batches in N worker processes.",
)
@option(
    "--bucket-mb",
    group=CHANGES,
    type=click.FloatRange(min=0, min_open=True),
    metavar="MB",
    help="Reduce gradients in buckets of MB megabytes.",
)
@option(
    "--overlap",
    group=CHANGES,
    multiple=True,
    type=click.Choice(OVERLAPPED),
    metavar="COLLECTIVE",
    help=f"Overlap these collectives with computation: {', '.join(OVERLAPPED)}; repeatable.",
)
@option(
    "--scale",
    "scales",
    group=CHANGES,
    multiple=True,
    metavar="PATTERN=FACTOR",
    help="Multiply the time of kernels whose name matches PATTERN by FACTOR; repeatable.",
)
@option(
    "--memory",
    group=CHANGES,
    metavar="SIZE",
    help="List what to checkpoint so that the step's peak memory is at most SIZE, such as 20GB or 20GiB.",
)
@shared.page_options
@click.argument("path")
def what_if(path: str, **asked: Any) -> None:  # lists of texts
    """Predict the step time of a recording after changes, applied one after the other.

    The steady steps of one rank are replayed as a dependency graph. Without a change the critical path is shown. Of a
    job, --bucket-mb, --overlap and --without straggler replay all ranks.
    """
    from diagnose.cli.what_if import WhatIfOptions, predict_and_answer

    predict_and_answer(path, WhatIfOptions(apply=_names(asked.pop("ids")), **asked))


@click.command(
    cls=Command,
    short_help="Describe a rule or a change.",
    examples=[
        "diagnose explain",
        "diagnose explain data-stall",
        "diagnose explain load-in-workers --json",
    ],
)
@shared.result_options
@click.argument("name", required=False, metavar="[RULE|CHANGE]")
def explain(name: str | None, **asked: Any) -> None:  # what click read, typed by ExplainRequest
    """Describe a rule or a change; without a name, list all of them.

    A rule's page states what it looks for, why it costs time, what to do, and how sure it is. A change's page states
    what it may alter in the results and how prove measures it.
    """
    from diagnose.cli.explain import ExplainRequest, explain_and_answer

    explain_and_answer(ExplainRequest(name=name, **asked))


for each in (trace, analyze, explain, prove, what_if, compare, gate, watch, doctor, completion, mcp, *FORMER):
    cli.add_command(each)


def _names(text: str) -> tuple[str, ...]:
    """Split a list of names at its commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())
