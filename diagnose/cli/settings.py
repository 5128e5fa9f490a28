"""Defaults of options from ``[tool.diagnose]`` of the project's pyproject.toml.

What is given on the command line comes first, then the environment (``DIAGNOSE_TRACE_STEPS=20``), then this table, then
the option's own default:

    [tool.diagnose]
    ignore = ["launch-bound"]

    [tool.diagnose.trace]
    steps = 20
    max-mb = 400

Rules to show and to leave out stand above the tables of commands, and are those of every command that shows findings;
so does ``lang``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from diagnose.cli.help import Group
from diagnose.errors import UsageError
from diagnose.model.files import printable
from diagnose.text.plain_text import one_line

ENVIRONMENT_PREFIX = "DIAGNOSE"
PROJECT = "pyproject.toml"
LANG = "lang"  # set for all commands at once; those without it ignore it
TABLE = "[tool.diagnose"  # a file without it is not parsed
# What a project may set: a table may come with somebody else's repository. All else is of one run: consent and what
# gives up a protection, what is started, connected to or listened on, what is read and written, and silence.
PROJECT_MAY_SET = {
    *("steps", "skip", "step-on", "max-seconds", "max-mb", "quick", "keep-going", "copy", "ranks"),
    *("apply", "budget", "runs", "tolerance", "name", "every", "slow", "windows", "window-mb"),
    *("workers", "no-cache"),
    *("select", "ignore", "lang", "verbose"),
}

SHARED = {"select", "ignore", LANG}  # options that all commands with findings have


def defaults_of(cli: Group, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the defaults of each command, by the names of click's parameters.

    The nearest pyproject.toml counts, of ``folder`` and those above it, that has the table.

    Raises:
        UsageError: the file or a name in the table makes no sense.
    """
    for above in (folder, *folder.parents):
        file = above / PROJECT
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue
        if TABLE in text:
            table = _parsed(text, file).get("tool", {}).get("diagnose")
            if table is not None:
                # The defaults of each command from the table and those below it.
                found: dict[str, dict[str, Any]] = {}
                for key in SHARED & set(table):
                    wanted = str if key == LANG else list
                    if not isinstance(table[key], wanted) or not all(isinstance(each, str) for each in table[key]):
                        example = '"zh"' if key == LANG else 'a list of rules such as ["launch-bound"]'
                        raise UsageError(f"Invalid {key} of [tool.diagnose] in {printable(file)}: use {example}.")
                    for name, command in cli.commands.items():
                        if any(parameter.name == key for parameter in command.params):
                            found.setdefault(name, {})[key] = table[key]
                for name in table.keys() - SHARED:
                    found.setdefault(name, {}).update(_of_command(cli, name, table[name], file))
                return found
    return {}


def _parsed(text: str, file: Path) -> dict[str, Any]:
    try:
        parser = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError:
        raise UsageError(
            f"{printable(file)} has settings of diagnose, which Python 3.10 reads with tomli only: pip install tomli."
        ) from None
    try:
        found: dict[str, Any] = parser.loads(text)
    except ValueError as error:
        raise UsageError(f"{printable(file)} cannot be read: {one_line(str(error))}. Mend the file.") from error
    return found


def _of_command(cli: Group, name: str, options: object, file: Path) -> dict[str, Any]:
    command = cli.commands.get(name)
    if command is None or not isinstance(options, Mapping):
        known = ", ".join(cli.commands)
        raise UsageError(f"{printable(file)}: [tool.diagnose] has no table '{one_line(name)}'; use one of {known}.")
    names = {
        opt.removeprefix("--"): str(parameter.name)
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for opt in parameter.opts
        if opt.startswith("--")
    }
    for key in options:
        if key not in names:
            known = ", ".join(sorted(PROJECT_MAY_SET & set(names)))
            remedy = f"use one of {known}" if known else "leave it out"
            raise UsageError(f"{printable(file)}: [tool.diagnose.{name}] has no '{one_line(key)}'; {remedy}.")
        if key not in PROJECT_MAY_SET:
            raise UsageError(
                f"{printable(file)}: [tool.diagnose.{name}] cannot set '{key}' for every run; type --{key}."
            )
    return {names[key]: value for key, value in options.items()}
