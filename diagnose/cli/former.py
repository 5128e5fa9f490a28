"""Commands of before: each is another command's option by now, and works, hidden, with a line that names it."""

from __future__ import annotations

from typing import Any

import click

from diagnose.cli import options as shared
from diagnose.cli.help import Command, option
from diagnose.cli.watch_options import folder_option
from diagnose.model.limits import EXPORTS

__all__ = ["FORMER"]

OUTPUT = "Output"


class _Former(Command):
    """A command of before; ``now`` is what to type in its place."""

    def __init__(self, *args: Any, now: str, **kwargs: Any) -> None:  # as click's
        super().__init__(*args, hidden=True, **kwargs)
        self.now = now

    def invoke(self, ctx: click.Context) -> Any:  # what the command returns
        """Write the line, then run the command."""
        click.echo(f"diagnose: {self.name} is deprecated: use {self.now}", err=True)
        return super().invoke(ctx)


@click.command(cls=_Former, now="analyze --partial FILE")
@shared.worker_options
@shared.summary_options
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
def summarize(paths: tuple[str, ...], **asked: Any) -> None:  # what click read, typed by SummaryRequest
    """Write summaries of ranks to a file."""
    shared.one_thread()
    from diagnose.cli.job import SummaryRequest, summarize

    summarize(paths, SummaryRequest(**asked))


@click.command(cls=_Former, now="analyze --merge")
@shared.worker_options
@shared.keep_option
@shared.report_options
@click.argument("paths", nargs=-1, required=True, metavar="FILE...")
def reduce(paths: tuple[str, ...], **asked: Any) -> None:  # what click read, typed by JobRequest
    """Diagnose a job by files of summaries."""
    shared.one_thread()
    from diagnose.cli.job import JobRequest, merge_and_answer

    merge_and_answer(paths, JobRequest(**asked))


@click.command(cls=_Former, now="watch --list")
@folder_option
@shared.result_options
@click.argument("name", required=False)
def history(name: str | None, folder: str, **asked: Any) -> None:  # what click read, typed by HistoryRequest
    """List watched runs."""
    from diagnose.cli.watch import HistoryRequest, history_and_answer

    history_and_answer(HistoryRequest(name=name, folder=folder, **asked))


def _kinds(command: Any) -> Any:  # a function on its way to a command
    for kind in EXPORTS:
        command = option(f"--{kind}", group=OUTPUT, metavar="FILE")(command)
    return command


@click.command(cls=_Former, now="analyze --export KIND=FILE")
@_kinds
@shared.rule_options
@option("--force", group=OUTPUT, is_flag=True, is_consent=True)
@option("-q", "--quiet", group=OUTPUT, is_flag=True)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
def export(paths: tuple[str, ...], **asked: Any) -> None:  # what click read, typed by JobRequest
    """Write a diagnosis in the forms of other tools."""
    shared.one_thread()
    from diagnose.cli.job import JobRequest, analyze_and_answer
    from diagnose.errors import UsageError

    exports = tuple(f"{kind}={file}" for kind in EXPORTS if (file := asked.pop(kind)))
    if not exports:
        raise UsageError("Name at least one file to write, such as --perfetto trace.json or --markdown issue.md.")
    analyze_and_answer(paths, JobRequest(exports=exports, prints=False, **asked))


FORMER = (summarize, reduce, history, export)
