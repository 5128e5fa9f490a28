"""``diagnose completion``: what a shell sources to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from diagnose.cli.output import print_result
from diagnose.errors import UsageError

__all__ = ["SHELLS", "print_completion"]

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_DIAGNOSE_COMPLETE"


def print_completion(cli: click.Group, shell: str) -> None:
    """Print the script of a shell.

    Raises:
        UsageError: there is none for that shell.
    """
    found = get_completion_class(shell)
    if found is None:
        raise UsageError(f"Invalid shell {shell}: use one of {', '.join(SHELLS)}.")
    print_result(found(cli, {}, "diagnose", VARIABLE).source())
