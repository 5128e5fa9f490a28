"""The command: gathers what was asked for, calls one function, and turns every error into a sentence and an exit code.

Nothing heavy is imported here: ``diagnose --help`` has to answer at once.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from diagnose.cli.commands import cli
from diagnose.errors import DEBUG, DiagnoseError, InputError, OutputError, is_debugging
from diagnose.model.files import DISK_ERRORS, cannot_write, printable
from diagnose.text.plain_text import clean, one_line

__all__ = ["INTERNAL_ERROR", "INTERRUPTED", "cli", "main", "run"]

INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h: a fault of diagnose itself, never of the input
INTERRUPTED = 130  # as a shell shows SIGINT
COLLECT_AFTER = 200_000  # new objects: a start makes many that stay, and walking them takes a tenth of its time


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; no exception but SystemExit leaves this function."""
    try:
        arguments = None if argv is None else list(argv)
        return int(cli.main(args=arguments, prog_name="diagnose", standalone_mode=False) or 0)
    except click.exceptions.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        _show_usage(error)
        return error.exit_code
    except DiagnoseError as error:
        _complain(str(error), error)
        return error.exit_code
    except Exception as error:  # the promise is a sentence, whatever went wrong
        return _unforeseen(error)


def main() -> NoReturn:
    """Run the command and leave the process."""
    gc.set_threshold(COLLECT_AFTER)
    code = run()
    gc.freeze()  # the last collection would walk all that the process is about to drop
    sys.exit(code)


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
    click.echo(f"diagnose: error: {one_line(error.format_message())}", err=True)


def _unforeseen(error: Exception) -> int:
    """Explain what no other place did: a full disk, a path that the system refuses, or a fault of our own."""
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        try:
            sys.stdout.flush()  # drop what it still holds if that is what cannot be written
        except OSError:  # the interpreter would fail once more at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        full = cannot_write(error.filename or "standard output or a temporary file", error)
        _complain(str(full), full)
        return OutputError.exit_code
    if isinstance(error, OSError) and error.filename is not None:  # a path that the system refuses, as one too long
        _complain(f"{printable(error.filename)} cannot be used ({error.strerror}). Check the path.", error)
        return InputError.exit_code
    text = " ".join(str(error).split())
    _complain(
        f"internal error: {type(error).__name__}{': ' if text else ''}{text}. "
        f"Please report it with the output of the same command under {DEBUG}=1.",
        error,
    )
    return INTERNAL_ERROR
