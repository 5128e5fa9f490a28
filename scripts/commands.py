"""Writes docs/commands.md from the commands' own help; with --check it only states whether the page is current."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

from diagnose.cli.commands import cli
from diagnose.cli.help import ALL, Command

MIN_COMMANDS = 5  # that have an option in the same words: it is then described once
PAGE = Path(__file__).resolve().parents[1] / "docs" / "commands.md"
HEAD = """# Commands and options

Made by `scripts/commands` from `diagnose COMMAND --help-all`; `--help` leaves out rare options. Which command do you
need? [From a symptom to a command](slow-training.md).

An option has one meaning in all commands. Options of diagnose go before a script. Everything after the script is passed
to it. Progress goes to standard error.

`profile`, `run` and `record` are other names of `trace`. Former names still work and print the new one: `summarize`
(`analyze --partial`), `reduce` (`analyze --merge`), `export` (`analyze --export`), `history` (`watch --list`).
How long a deprecated name stays: [versions](json.md#versions).
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
    commands = {name: c for name, c in cli.commands.items() if isinstance(c, Command) and not c.hidden}
    counts = Counter(row for command in commands.values() for rows in _options(command).values() for row in rows)
    common = [row for row, number in counts.items() if number >= MIN_COMMANDS]
    yield HEAD
    yield "## Common options\n"
    yield from _table("option", common)
    for name, command in commands.items():
        yield from _section(name, command, common)


def _options(command: Command) -> dict[str, list[tuple[str, str]]]:
    """Return the options as the help describes them, by their groups."""
    with click.Context(command, **command.context_settings) as context:
        context.meta[ALL] = True
        groups = command.option_groups(context)
    return {group: [row for row in rows if "--help" not in row[0]] for group, rows in groups.items()}


def _section(name: str, command: Command, common: list[tuple[str, str]]) -> Iterator[str]:
    with click.Context(command, info_name=f"diagnose {name}", **command.context_settings) as context:
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f"## diagnose {name}\n"
    first, *others = (command.help or "").split("\n\n")
    yield f"{' '.join(first.split())}\n\n    {usage}\n"
    yield from (f"{' '.join(text.split())}\n" for text in others)
    groups = _options(command)
    for group, rows in groups.items():
        yield from _table(f"{group.lower()} option", [row for row in rows if row not in common])
    shared = [f"`{spelled}`" for rows in groups.values() for spelled, text in rows if (spelled, text) in common]
    if shared:
        yield f"[Common](#common-options): {', '.join(shared)}.\n"
    yield "".join(f"    {example}\n" for example in command.examples)


def _table(head: str, rows: list[tuple[str, str]]) -> Iterator[str]:
    if rows:
        yield f"| {head} | |\n|---|---|"
        yield from (f"| `{spelled}` | {_cell(text)} |" for spelled, text in rows)
        yield ""


def _cell(text: str) -> str:
    """Return a description as a cell of a table; ranges of numbers are left to the help."""
    text = re.sub(r"; [^][;]*[<>][^][;]*\]$", "]", text)
    return re.sub(r"\s*\[[^][;]*[<>][^][;]*\]$", "", text).replace("|", "\\|").replace("  [", " [")


if __name__ == "__main__":
    sys.exit(main())
