"""Options behind a script belong to the script; where one has a name of diagnose's own, a hint states that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import click

from diagnose.cli.help import Command
from diagnose.model.launched import launched
from diagnose.text.progress import Progress

__all__ = ["ScriptCommand", "shared_names"]

_BEFORE = "diagnose.before_script"
HELP = ("-h", "--help")  # every script of argparse has these


Split: TypeAlias = Callable[[Mapping[str, Any]], tuple[str, Sequence[str]]]
"""From what click read: the script, and what is passed to it."""


def _script_and_args(params: Mapping[str, Any]) -> tuple[str, Sequence[str]]:
    return params.get("script") or "", params.get("args") or ()


class ScriptCommand(Command):
    """A command whose arguments end with a script and what is passed to it."""

    def __init__(self, *args: Any, split: Split = _script_and_args, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.split = split

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments, and keep those before the script's own."""
        given = list(args)
        rest = super().parse_args(ctx, args)
        ctx.meta[_BEFORE] = given[: len(given) - len(self.split(ctx.params)[1])]
        return rest

    def invoke(self, ctx: click.Context) -> Any:  # what the command returns
        """Give the hint, then run the command."""
        if "--" not in ctx.meta[_BEFORE] and launched().rank == 0:
            self._hint(ctx)
        return super().invoke(ctx)

    def _hint(self, ctx: click.Context) -> None:
        options = {name for option in self.params if isinstance(option, click.Option) for name in option.opts}
        script, args = self.split(ctx.params)
        if not (ctx.params["module"] or _is_script(Path(script))):
            return
        names = shared_names(args, options, "" if ctx.params["module"] else script)
        if names:
            one = len(names) == 1
            Progress(quiet=ctx.params["quiet"]).report(
                f"{', '.join(names)} after the script {'goes' if one else 'go'} to the script; "
                f"put {'it' if one else 'them'} before {script} to set diagnose's own"
            )


def shared_names(args: Sequence[str], options: set[str], script: str) -> list[str]:
    """Return the options among ``args`` that diagnose has too and the script does not mention, in their order.

    Those behind ``--`` are left out. ``script`` is a path, or empty where the source is not at hand.
    """
    before = args[: args.index("--")] if "--" in args else args
    names = dict.fromkeys(arg.partition("=")[0] for arg in before if arg.startswith("-"))
    shared = [name for name in names if name in options and name not in HELP]
    source = _source(script) if shared else ""
    return [name for name in shared if f'"{name}"' not in source and f"'{name}'" not in source]


def _is_script(path: Path) -> bool:
    """Return whether a path is meant as a script, rather than as a trace, a report or a capture."""
    return (path / "__main__.py").is_file() if path.is_dir() else path.suffix in {".py", ""}


def _source(script: str) -> str:
    try:
        return Path(script).read_text(encoding="utf-8", errors="replace") if script else ""
    except (OSError, ValueError):  # a wrong path is answered by the command itself
        return ""
