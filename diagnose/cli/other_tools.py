"""The command lines of ``diagnose doctor`` and ``diagnose completion``; nothing heavy is imported here."""

from __future__ import annotations

from typing import Any

import click

from diagnose.cli.help import INTEGRATIONS, Command
from diagnose.cli.options import result_options

__all__ = ["completion", "doctor"]


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
    section=INTEGRATIONS,
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
