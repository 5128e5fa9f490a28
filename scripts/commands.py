"""Writes docs/commands.md from the commands' own help; with --check it only states whether the page is current."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from diagnose.cli.commands import cli
from diagnose.cli.help import ALL, COMMANDS, Command

PAGE = Path(__file__).resolve().parents[1] / "docs" / "commands.md"
HEAD = """# Commands and options

Made by `scripts/commands` from what `diagnose COMMAND --help-all` prints; `--help` leaves out what few need. How to use
the commands one after the other: [using diagnose](usage.md).

An option has one meaning in all commands:

- `--json` is a switch and takes no file name: JSON, and nothing else, is printed to standard output.
- `-o FILE`, `--output FILE` also writes the result to a file; the suffix is the format. Both can be given.
- `--force` overwrites existing files. Without it an existing file is an error, found before the work begins.
- `-q`, `--quiet` shows no progress. Progress goes to standard error, never to standard output.
- `--apply ID,…` names changes by their ids, which `diagnose explain` lists.
- Where a command runs a script, its options go before the script, and everything after it is passed to the script.
  Where an option after the script has the name of one of the command's, and the script does not mention it, one line
  on standard error states that it goes to the script. After `--` there is no such line.

`profile`, `run` and `record` are other names of `trace`. Former names still work, with a line on standard error that
names the new one: `summarize` (`analyze --partial`), `reduce` (`analyze --merge`), `export` (`analyze --export`),
`history` (`watch --list`). How long a deprecated name stays: [versions](versioning.md#deprecation).
"""


def main() -> int:
    """Write the page, or compare it."""
    page = "\n".join(_page())
    if "--check" in sys.argv[1:]:
        if PAGE.read_text(encoding="utf-8") == page:
            return 0
        print("commands: docs/commands.md is out of date; run scripts/commands.", file=sys.stderr)
        return 1
    PAGE.write_text(page, encoding="utf-8")
    return 0


def _page() -> Iterator[str]:
    yield HEAD
    section = COMMANDS
    for name, command in cli.commands.items():
        if command.hidden:
            continue
        assert isinstance(command, Command)
        if command.section != section:
            section = command.section
            yield f"## {section}\n\nFor shells and coding agents, described in [integrations](integrations.md).\n"
        yield from _section(name, command)


def _section(name: str, command: Command) -> Iterator[str]:
    with click.Context(command, info_name=f"diagnose {name}", **command.context_settings) as context:
        context.meta[ALL] = True
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        groups = command.option_groups(context)
    yield f"## diagnose {name}\n"
    first, *others = (command.help or "").split("\n\n")
    yield f"{' '.join(first.split())}\n\n    {usage}\n"
    yield from (f"{' '.join(text.split())}\n" for text in others)
    for group, records in groups.items():
        rows = [(spelled, text) for spelled, text in records if "--help" not in spelled]
        if rows:
            yield f"| {group.lower()} option | |\n|---|---|"
            yield from (f"| `{spelled}` | {_cell(text)} |" for spelled, text in rows)
            yield ""
    yield "".join(f"    {example}\n" for example in command.examples)


def _cell(text: str) -> str:
    """Return a description as a cell of a table; ranges of numbers are left to the help."""
    text = re.sub(r"; [^][;]*[<>][^][;]*\]$", "]", text)
    return re.sub(r"\s*\[[^][;]*[<>][^][;]*\]$", "", text).replace("|", "\\|").replace("  [", " [")


if __name__ == "__main__":
    sys.exit(main())
