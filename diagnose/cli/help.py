"""How ``--help`` reads: commands in the order of use, options in groups, examples as they are typed.

It fits a screen: what few need is shown by ``--help-all`` only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import click

from diagnose.errors import UsageError
from diagnose.text.commands import command_line
from diagnose.text.plain_text import one_line

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])

GENERAL = "General"  # the group of --help and --version
NO_BREAK = "\u2011"  # a hyphen that lines are not broken at: options and file names stay whole
ALL = "diagnose.all_options"  # in a context: options that few need are shown too
RARE = frozenset(
    {
        *("--skip", "--max-seconds", "--max-mb", "--no-dataflow", "--ranks"),  # trace
        *("--workers", "--cluster", "--no-cache", "--keep", "--cross-check"),  # analyze
        *("--cwd-mode", "--writable", "--network", "--launcher", "--trust-command", "--keep-runs"),  # prove
        *("--bucket-mb", "--overlap", "--memory"),  # what-if
        "--allow-differences",  # compare, gate
        *("--window-mb", "--prometheus"),  # watch
        *("--open", "--lang", "--select", "--ignore"),  # wherever an answer is shown
    }
)
"""Options that few need."""


class Decorator(Protocol):
    """What gives a command an option."""

    def __call__(self, command: _Decorated, /) -> _Decorated:
        """Return the command."""


class Option(click.Option):
    """An option that belongs to a group of the help page."""

    def __init__(self, *args: Any, group: str = GENERAL, **kwargs: Any) -> None:  # as click.Option
        kwargs.setdefault("show_default", bool(kwargs.get("default")) and not kwargs.get("is_flag", False))
        super().__init__(*args, **kwargs)
        self.group = group


def option(*names: str, group: str, **settings: Any) -> Decorator:  # as click.option
    """Give a command an option of a group."""
    return click.option(*names, cls=Option, group=group, **settings)


class _Page(click.Command):
    """A command whose help has groups of options and ends with examples."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:  # as click's
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)

    def option_groups(self, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
        """Return the name and the description of each option, by group, in the order of their declaration."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            is_shown = ctx.meta.get(ALL, False) or RARE.isdisjoint(parameter.opts)
            if isinstance(parameter, click.Option) and record is not None and is_shown:
                groups.setdefault(getattr(parameter, "group", GENERAL), []).append(record)
        return groups

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, with one column of names for all groups."""
        groups = self.option_groups(ctx)
        # The description of a longer option starts on the next line.
        names = [name for records in groups.values() for name, _ in records if len(name) <= 24]
        width = max(map(len, names), default=0)
        for group, records in groups.items():
            with formatter.section(f"{group} options"):
                rows = [(name.ljust(width), text.replace("-", NO_BREAK)) for name, text in records]
                formatter.write_dl(rows, col_max=width)
        formatter.buffer[:] = [text.replace(NO_BREAK, "-") for text in formatter.buffer]

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, a line each and never wrapped."""
        if self.examples:
            formatter.write("\nExamples:\n" + "".join(f"  {line}\n" for line in self.examples))


class Command(_Page):
    """A command of diagnose."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters; where few need some of them, ``--help-all`` is one."""
        params = super().get_params(ctx)
        has_rare = not all(RARE.isdisjoint(parameter.opts) for parameter in params)
        return [*params[:-1], _HELP_ALL, params[-1]] if has_rare else params


class Former(NamedTuple):
    """The command line that another name of a command stands for; ``now`` is what to type instead of a former name."""

    words: tuple[str, ...]
    now: str = ""
    renamed: Mapping[str, str] = {}  # former options, and how those that replace them begin

    def typed(self, args: Sequence[str]) -> list[str]:
        """Return the command line that the arguments stand for."""
        found, left = [*self.words], iter(args)
        for arg in left:
            name, equals, value = arg.partition("=")
            new = self.renamed.get(name)
            found.append(arg if new is None else new + (value if equals else next(left, "")))
        return found


class Group(_Page, click.Group):
    """The command without a sub-command; it lists them in the order in which they were added."""

    def __init__(self, *args: Any, former: Mapping[str, Former], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.former = former

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of a name; a script in its place is answered with the command that records it."""
        name = args[0]
        if name.endswith(".py") and not ctx.resilient_parsing:  # a shell that completes gets no errors
            again = command_line(["diagnose", "trace", *args])
            raise UsageError(f"{one_line(name)} is a script: record it with {again}.")
        if (former := self.former.get(name)) is not None:
            args = former.typed(args[1:])
            if former.now and not ctx.resilient_parsing:
                click.echo(f"diagnose: {name} is deprecated: use {former.now}", err=True)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; where there are none, show the help, with the exit code of wrong usage."""
        if not args:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the names in the order of use, which is that of their declaration."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, one on each line."""
        names = self.list_commands(ctx)
        width = max(map(len, names))
        with formatter.section("Commands"):
            rows = [(name.ljust(width), self.commands[name].get_short_help_str(60)) for name in names]
            formatter.write_dl(rows, col_max=width)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands first, then the options."""
        self.format_commands(ctx, formatter)
        super().format_options(ctx, formatter)


def show_all_help(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    """Print the help with all options, that of the group with the pages of all commands behind it, and exit."""
    if not wanted or ctx.resilient_parsing:
        return
    ctx.meta[ALL] = True
    click.echo(ctx.get_help())
    commands = ctx.command.commands if isinstance(ctx.command, click.Group) else {}
    for name, command in commands.items():
        with click.Context(command, info_name=name, parent=ctx, **command.context_settings) as inner:
            title = inner.command_path
            click.echo(f"\n\n{title}\n{'=' * len(title)}\n\n{command.get_help(inner)}")
    ctx.exit()


_HELP_ALL = Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_all_help,
    help="Show this message with all options, and exit.",
)
