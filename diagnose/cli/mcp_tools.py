"""The tools of ``diagnose mcp``: what each takes, the command that answers it, its JSON, and what may be read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

import msgspec
from msgspec import Meta

from diagnose.errors import InputError, UsageError
from diagnose.model.files import printable
from diagnose.pipeline.query import MAX_ROWS, SCHEMA
from diagnose.reports.json import schema as schema_of_diagnosis
from diagnose.text.plain_text import one_line

Locate: TypeAlias = Callable[[str], str]  # from a path as it was given to one that may be read

Recording = Annotated[
    str, Meta(description="A trace of torch.profiler (.json, .gz, .zst), a capture folder, or a folder of traces.")
]


_TABLES = "; ".join(f"{table}({columns})" for table, columns in SCHEMA.items())
OPTIONS = {"workers": "--loader-workers"}  # of another name than the argument


class Arguments(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What every tool's arguments have."""

    def command(self, locate: Locate) -> list[str]:
        """Return the words of the command.

        Raises:
            InputError: a path may not be read.
        """
        raise NotImplementedError


class Analyze(Arguments, frozen=True):
    """Diagnose a recording."""

    paths: Annotated[list[Recording], Meta(min_length=1, description="One recording, or the ranks of one run.")]
    select: Annotated[list[str], Meta(description="Ids of rules: show findings of these only.")] = []
    ignore: Annotated[list[str], Meta(description="Ids of rules: leave out their findings.")] = []

    def command(self, locate: Locate) -> list[str]:
        """Return the words of ``diagnose analyze``."""
        return ["analyze", *_options(self, "select", "ignore"), *_files(map(locate, self.paths))]


class WhatIf(Arguments, frozen=True):
    """Predict the step time after changes."""

    path: Recording
    apply: Annotated[list[str], Meta(description="Ids of prescriptions of analyze, in this order.")] = []
    without: Annotated[list[str], Meta(description="Ids of rules whose idle time is removed.")] = []
    workers: Annotated[int, Meta(ge=1, description="Load batches in so many worker processes.")] | None = None
    bucket_mb: Annotated[float, Meta(gt=0, description="Reduce gradients in buckets of this size, MB.")] | None = None
    overlap: Annotated[list[str], Meta(description="Collectives of all ranks to overlap with computation.")] = []
    scale: Annotated[list[str], Meta(description="PATTERN=FACTOR: the time of kernels of that name.")] = []
    memory: Annotated[str, Meta(description="List what to checkpoint for a peak of this size: 20GB.")] | None = None

    def command(self, locate: Locate) -> list[str]:
        """Return the words of ``diagnose what-if``."""
        options = "apply", "without", "overlap", "scale", "workers", "bucket_mb", "memory"
        return ["what-if", *_options(self, *options), *_files([locate(self.path)])]


class Compare(Arguments, frozen=True):
    """Compare two sets of runs."""

    before: Annotated[list[Recording], Meta(min_length=1, description="Runs before; a report in JSON is one too.")]
    after: Annotated[list[Recording], Meta(min_length=1, description="Runs after.")]
    tolerance: Annotated[str, Meta(description="A smaller difference does not count.")] = "5%"
    allow_differences: Annotated[bool, Meta(description="Compare unlike set-ups all the same.")] = False

    def command(self, locate: Locate) -> list[str]:
        """Return the words of ``diagnose compare``."""
        words = [f"--before={locate(path)}" for path in self.before]
        words += _options(self, "tolerance", "allow_differences")
        return ["compare", *words, *_files(map(locate, self.after))]


class Explain(Arguments, frozen=True):
    """Describe a rule or a change."""

    name: Annotated[str, Meta(description="The id of a rule or a change; without one all are listed.")] = ""

    def command(self, locate: Locate) -> list[str]:
        """Return the words of ``diagnose explain``."""
        del locate  # no path is given
        return ["explain", *(["--", self.name] if self.name else [])]


class Query(Arguments, frozen=True):
    """Ask what was recorded, in SQL."""

    paths: Annotated[list[Recording], Meta(min_length=1, description="One recording, or the ranks of one run.")]
    sql: Annotated[str, Meta(description=f"A query that only reads, in {_TABLES}; at most {MAX_ROWS} rows come back.")]

    def command(self, locate: Locate) -> list[str]:
        """Return the words of ``diagnose analyze --query``."""
        return ["analyze", f"--query={self.sql}", *_files(map(locate, self.paths))]


class Runs(Arguments, frozen=True):
    """What runs a script, after the user has agreed."""

    agreed: ClassVar[tuple[str, ...]] = ()  # options of the command once that is so

    script: Annotated[str, Meta(description="A Python file. It is run after the user has agreed.")]
    args: Annotated[list[str], Meta(description="What is passed to the script.")] = []

    def question(self, folder: str) -> str:
        """Return what the user is asked."""
        raise NotImplementedError

    def _script(self, locate: Locate) -> str:
        """Return the script's path.

        Raises:
            UsageError: the script is a folder, whose recorded command nobody would have seen.
        """
        script = locate(self.script)
        if Path(script).is_dir():
            raise UsageError(
                f"{one_line(self.script)} is a folder: pass the Python file and its arguments, which source.command of "
                "the analysed capture holds."
            )
        return script


class Trace(Runs, frozen=True):
    """Record a few steps of a script and diagnose them."""

    quick: Annotated[bool, Meta(description="Record one short window without stacks.")] = False

    def command(self, locate: Locate) -> list[str]:
        """Return the words of ``diagnose trace``, which runs in a copy of the working folder."""
        return ["trace", "--copy", *_options(self, "quick"), *_files([self._script(locate)]), *self.args]

    def question(self, folder: str) -> str:
        """Return what the user is asked."""
        return f"Run this script in a copy of {folder}, to record a few steps?"


class Prove(Runs, frozen=True):
    """Measure changes by running a script."""

    agreed: ClassVar[tuple[str, ...]] = ("--yes",)

    apply: Annotated[list[str], Meta(description="Ids of the changes to try; without any, all that can be.")] = []
    budget: Annotated[str, Meta(description="End all runs within this time: 90s, 10m or 1h.")] = "10m"

    def command(self, locate: Locate) -> list[str]:
        """Return the words of ``diagnose prove``, without those of the user's consent."""
        return ["prove", *_options(self, "budget", "apply"), *_files([self._script(locate)]), *self.args]

    def question(self, folder: str) -> str:
        """Return what the user is asked."""
        budget = one_line(self.budget)
        return f"Run this script repeatedly for up to {budget}, in a copy of {folder}, to measure changes?"


class Tool(msgspec.Struct, frozen=True):
    """One tool as it is listed."""

    arguments: type[Arguments]
    title: str
    description: str
    output: Callable[[], dict[str, Any]]  # the schema of its JSON


def _loose(*required: str) -> Callable[[], dict[str, Any]]:
    return lambda: {"type": "object", "required": list(required)}


TOOLS: Mapping[str, Tool] = {
    "analyze": Tool(
        Analyze,
        "Diagnose a recording",
        "Find what holds a recorded PyTorch step back: verdict, idle time by cause, findings with evidence and lines, "
        "and changes with code and predicted savings.",
        schema_of_diagnosis,
    ),
    "what_if": Tool(
        WhatIf,
        "Predict a step",
        "Replay a recorded step as a dependency graph with changes, one after the other, and predict its time. Without "
        "a change it gives the critical path.",
        _loose("forecasts", "replay", "critical_path"),
    ),
    "compare": Tool(
        Compare,
        "Compare runs",
        "Decide whether the step became slower or faster between two sets of recordings or JSON reports, and where.",
        _loose("before", "after", "outcome", "ratio", "interval"),
    ),
    "explain": Tool(
        Explain,
        "Explain a rule or a change",
        "Describe a rule or a change by its id: what it looks for, why it costs, what to do, how sure it is.",
        _loose("schema_version"),
    ),
    "query": Tool(
        Query,
        "Query a recording",
        "Answer a question in SQL about single events: operators, kernels, copies, calls, annotations, Python "
        "functions, by step, thread and stream.",
        _loose("columns", "rows", "is_cut"),
    ),
    "trace": Tool(
        Trace,
        "Record and diagnose a script",
        "Run a training script until its steps are steady, record a few, and diagnose them as analyze does. The user "
        "is asked before it runs.",
        schema_of_diagnosis,
    ),
    "prove": Tool(
        Prove,
        "Measure changes",
        "Run a training script with each prescribed change and without it, taking turns, in a copy of the working "
        "folder, and measure step time, losses and memory. Takes minutes. The user is asked before anything runs.",
        schema_of_diagnosis,
    ),
}


def checked(tool: Tool, arguments: Mapping[str, Any]) -> Arguments:
    """Return the arguments of a call.

    Raises:
        UsageError: one is missing, unknown or of another type.
    """
    try:
        return msgspec.convert(arguments, tool.arguments)
    except msgspec.ValidationError as error:
        raise UsageError(f"Invalid arguments: {one_line(str(error))}. See the tool's input schema.") from None


def _options(arguments: Arguments, *names: str) -> list[str]:
    """Return arguments as options of the command: a list as one for each, but for the changes of ``--apply``."""
    words = []
    for name in names:
        option, value = OPTIONS.get(name, f"--{name.replace('_', '-')}"), getattr(arguments, name)
        if isinstance(value, bool):
            words += [option] * value
        else:
            values = value if isinstance(value, list) and name != "apply" else [value]
            words += [f"{option}={','.join(each) if name == 'apply' else each}" for each in values if each]
    return words


def _files(paths: Any) -> list[str]:
    """Return paths as arguments that no option is mistaken for."""
    return ["--", *map(os.fspath, paths)]


@dataclass(frozen=True, slots=True)
class Roots:
    """Folders below which may be read, links followed."""

    folders: tuple[Path, ...]

    @classmethod
    def of(cls, names: Sequence[str]) -> Roots:
        """Return the folders of ``--root``, else the working folder.

        Raises:
            UsageError: one of them is no folder.
        """
        for name in names:
            if not Path(name).is_dir():
                raise UsageError(f"Invalid --root {printable(name)}: use an existing folder.")
        return cls(tuple(Path(name).resolve() for name in names or (".",)))

    def path(self, name: str) -> str:
        """Return what to read in the place of ``name``: an existing path without links, relative where it can be.

        Raises:
            InputError: it does not exist, or it or a link in it leads elsewhere.
        """
        try:
            found = Path(name).resolve(strict=True)
            entries = list(os.scandir(found)) if found.is_dir() else []
            links = [Path(entry.path).resolve() for entry in entries if entry.is_symlink()]
        except (OSError, ValueError, RuntimeError):  # RuntimeError: links in a circle
            raise InputError(
                f"{printable(name)} cannot be read: give the path of a file or folder that exists here."
            ) from None
        for path in (found, *links):
            if not any(path.is_relative_to(folder) for folder in self.folders):
                where = " and ".join(map(printable, self.folders))
                raise InputError(
                    f"{printable(name)} leads out of {where} and is not read; the server reads elsewhere with "
                    "diagnose mcp --root FOLDER."
                )
        here = Path.cwd().resolve()
        return str(found.relative_to(here)) if found.is_relative_to(here) else str(found)
