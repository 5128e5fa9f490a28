"""The command lines of ``diagnose export`` and ``diagnose doctor``; nothing heavy is imported here."""

from __future__ import annotations

from typing import Any

import click

from diagnose.cli.help import Command, Decorator, option
from diagnose.cli.options import one_thread, result_options, rule_options

__all__ = ["completion", "doctor", "export"]

FORMS, OUTPUT = "Form", "Output"


def _form(name: str, text: str) -> Decorator:
    return option(name, group=FORMS, metavar="FILE", help=text)


@click.command(
    cls=Command,
    short_help="Write a diagnosis in the forms of other tools.",
    examples=[
        "diagnose export capture/ --perfetto causes.json",
        "diagnose export trace.json.gz --markdown issue.md --kernels kernels.csv",
    ],
)
@_form("--perfetto", "Write the steady steps for ui.perfetto.dev: causes of idle time, queue depth and findings added.")
@_form("--speedscope", "Write the host's time for speedscope.app.")
@_form("--collapsed", "Write the host's self times as collapsed stacks, for flame graphs.")
@_form("--findings", "Write a table of the findings: .csv or .parquet.")
@_form("--kernels", "Write a table of the kernels: .csv or .parquet.")
@option(
    "--tensorboard",
    group=FORMS,
    metavar="FOLDER",
    help="Write a log folder for TensorBoard: what its profiler plugin reads right, and times of each step by cause.",
)
@_form("--markdown", "Write the answer as Markdown, for an issue or a pull request.")
@rule_options
@option("--force", group=OUTPUT, is_flag=True, is_consent=True, help="Overwrite existing files.")
@option("-q", "--quiet", group=OUTPUT, is_flag=True, help="Show no progress.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
def export(paths: tuple[str, ...], **asked: Any) -> None:  # what click read, typed by ExportRequest
    """Diagnose a recording and write it for Perfetto, speedscope, flame graphs, tables or an issue.

    PATH is what diagnose analyze takes.
    """
    one_thread()
    from diagnose.cli.export import ExportRequest
    from diagnose.cli.export import export as write

    write(paths, ExportRequest(**asked))


@click.command(
    cls=Command,
    short_help="Check what a recording on this machine would lack.",
    examples=["diagnose doctor", "diagnose doctor --json"],
)
@result_options
def doctor(**asked: Any) -> int:  # what click read, typed by ResultRequest
    """Check torch, the GPU, its profiler, NVML, Triton, compilers, Linux and container limits.

    For each that is limited it states what a recording would lack, and the fix. The exit code is 1 where no recording
    is possible, else 0.
    """
    from diagnose.cli.doctor import examine_and_answer
    from diagnose.cli.output import ResultRequest

    return examine_and_answer(ResultRequest(**asked))


@click.command(
    cls=Command,
    short_help="Print what a shell needs to complete diagnose.",
    examples=[
        "diagnose completion bash",
        "diagnose completion zsh",
    ],
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell; have the shell source it.

    In bash: eval "$(diagnose completion bash)" in ~/.bashrc; in zsh the same in ~/.zshrc; in fish: diagnose completion
    fish > ~/.config/fish/completions/diagnose.fish.
    """
    from diagnose.cli.completion import print_completion

    group = context.find_root().command
    assert isinstance(group, click.Group)
    print_completion(group, shell)
