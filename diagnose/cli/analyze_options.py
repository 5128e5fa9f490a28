"""The command lines of ``diagnose analyze``, ``summarize`` and ``reduce``; nothing heavy is imported here."""

from __future__ import annotations

from typing import Any

import click

from diagnose.cli import options as shared
from diagnose.cli.help import Command, option

__all__ = ["analyze", "reduce", "summarize"]


@click.command(
    cls=Command,
    short_help="Diagnose traces or captures that exist already.",
    examples=[
        "diagnose analyze trace.json.gz",
        "diagnose analyze capture/ --html report.html",
        "diagnose analyze s3://bucket/run/ --cluster tcp://host:8786",
    ],
)
@shared.worker_options
@shared.keep_option
@option(
    "--cross-check",
    type=click.Choice(["hta"]),
    metavar="TOOL",
    group="Output",
    help="Add the figures of Holistic Trace Analysis (hta) and what explains each difference.",
)
@shared.report_options
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
def analyze(paths: tuple[str, ...], **asked: Any) -> None:  # what click read, typed by JobRequest
    """Diagnose recorded traces: capture folders, or files and folders of torch.profiler.

    A PATH is a trace (.json, .gz, .zst, .zip), a tar or folder of them, a quoted pattern, a URL such as
    s3://bucket/run/, or - for standard input. Several are the ranks of one run. Neither a GPU nor the script is needed.
    """
    shared.one_thread()
    from diagnose.cli.job import JobRequest, analyze_and_answer

    analyze_and_answer(paths, JobRequest(**asked))


@click.command(
    cls=Command,
    short_help="Write summaries of ranks, for job arrays.",
    examples=[
        "diagnose summarize run/rank$I.json.gz -o sums/$I.ranks",
        "diagnose summarize capture/ -o job.parquet",
    ],
)
@shared.worker_options
@shared.summary_options
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
def summarize(paths: tuple[str, ...], **asked: Any) -> None:  # what click read, typed by SummaryRequest
    """Write what the comparison of ranks needs of each, some kilobytes a rank, to one file.

    PATHs are those of analyze. Run it where the traces are, one call for each or for some, and diagnose reduce on all
    its files afterwards.
    """
    shared.one_thread()
    from diagnose.cli.job import SummaryRequest, summarize

    summarize(paths, SummaryRequest(**asked))


@click.command(
    cls=Command,
    short_help="Merge summaries of ranks and diagnose the job.",
    examples=["diagnose reduce sums/ --html report.html", "diagnose reduce sums/ --keep job.parquet"],
)
@shared.worker_options
@shared.keep_option
@shared.report_options
@click.argument("paths", nargs=-1, required=True, metavar="FILE...")
def reduce(paths: tuple[str, ...], **asked: Any) -> None:  # what click read, typed by JobRequest
    """Diagnose a job by files that summarize or --keep wrote, or folders of them.

    The late, the median and the fastest rank are examined in full where their traces are still under the same paths.
    --keep merges the files into one, so files can be merged in several levels.
    """
    shared.one_thread()
    from diagnose.cli.job import JobRequest, reduce_and_answer

    reduce_and_answer(paths, JobRequest(**asked))
