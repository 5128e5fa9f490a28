"""The command line of ``diagnose analyze``; nothing heavy is imported here."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import click
from click.core import ParameterSource

from diagnose.cli import options as shared
from diagnose.cli.help import Command, option
from diagnose.errors import UsageError
from diagnose.model.limits import EXPORTS

__all__ = ["analyze"]

RANKS, OUTPUT = "Ranks", "Output"
# What goes with a diagnosis, and with one of recordings: of no use where summaries are written, or read.
ANSWER = ("merge", "keep", "as_json", "output", "html", "open_browser", "verbose", "select", "ignore")
RECORDINGS = ("exports", "cross_check")


@click.command(
    cls=Command,
    short_help="Diagnose traces or captures that exist already.",
    examples=[
        "diagnose analyze trace.json.gz",
        "diagnose analyze capture/ --html report.html",
        "diagnose analyze --export perfetto=causes.json trace.json.gz",
    ],
)
@option(
    "--partial",
    group=RANKS,
    metavar="FILE",
    help="Only write the summaries of these ranks to FILE, for --merge: .parquet or .ranks.",
)
@option(
    "--merge", group=RANKS, is_flag=True, help="PATHs are files of summaries, or folders of them: diagnose the job."
)
@shared.worker_options
@shared.keep_option
@option(
    "--export",
    "exports",
    group=OUTPUT,
    multiple=True,
    metavar="KIND=FILE",
    help=f"Write the answer for other tools: {', '.join(EXPORTS)}; repeatable.",
)
@option(
    "--cross-check",
    type=click.Choice(["hta"]),
    metavar="TOOL",
    group=OUTPUT,
    help="Add the figures of Holistic Trace Analysis (hta) and what explains each difference.",
)
@shared.report_options
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
def analyze(paths: tuple[str, ...], partial: str | None, merge: bool, **asked: Any) -> None:  # typed by JobRequest
    """Diagnose recorded traces: capture folders, or files and folders of torch.profiler.

    A PATH is a trace (.json, .gz, .zst, .zip), a tar or folder of them, a quoted pattern, a URL such as
    s3://bucket/run/, or - for standard input. Several are the ranks of one run. Neither a GPU nor the script is needed.
    """
    shared.one_thread()
    from diagnose.cli.job import JobRequest, SummaryRequest, analyze_and_answer, merge_and_answer, summarize

    if partial:
        _refuse("--partial", *ANSWER, *RECORDINGS)
        of_summaries = {field.name for field in fields(SummaryRequest)} - {"output"}
        summarize(paths, SummaryRequest(output=partial, **{name: asked[name] for name in of_summaries}))
    elif merge:
        _refuse("--merge", *RECORDINGS)
        merge_and_answer(paths, JobRequest(**asked))
    else:
        analyze_and_answer(paths, JobRequest(**asked))


def _refuse(option: str, *others: str) -> None:
    """Refuse options that were typed beside one that leaves them without a meaning; settings of a project may stay."""
    context = click.get_current_context()
    for parameter in context.command.params:
        if parameter.name in others and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE:
            other = max(parameter.opts, key=len)
            raise UsageError(f"{option} and {other} exclude each other; use one of them.")
