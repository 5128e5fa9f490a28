"""The options that several commands share: each has one spelling, one meaning and one description."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from diagnose.cli.help import Decorator, option
from diagnose.model.limits import LANGUAGES, STEP_SOURCES

OUTPUT, RANKS, RULES = "Output", "Ranks", "Rules"
JSON = "Print JSON instead of text."

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])


def one_thread() -> None:
    """Keep NumPy to one thread, before it is imported."""
    # No linear algebra happens here; the threads that NumPy would start for it cost more than reading a small trace.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def module_option(group: str) -> Decorator:
    """Return ``-m``: a module in the place of the script."""
    return option("-m", "module", group=group, is_flag=True, help="Run the script as a module, as python -m does.")


def step_on_option(group: str) -> Decorator:
    """Return ``--step-on``: what ends a step."""
    return option(
        "--step-on",
        group=group,
        type=click.Choice(STEP_SOURCES),
        metavar="WHAT",
        default="auto",
        help="What ends a step: auto, optimizer, dataloader, forward or marker (diagnose.step()).",
    )


def dataflow_option(group: str) -> Decorator:
    """Return ``--no-dataflow``: no step is recorded as a program."""
    return option(
        "--no-dataflow",
        "dataflow",
        group=group,
        is_flag=True,
        default=True,
        flag_value=False,
        help="Do not record which values two steps compute and use, and leave out what they show.",
    )


def result_options(command: _Decorated) -> _Decorated:
    """Give a command that prints a result the options of where it goes: ``--json``, ``--output``, ``--force``."""
    return _with(command, [_json(), _output(".json or .txt"), _force(), _quiet()])


def page_options(command: _Decorated) -> _Decorated:
    """Give a command that prints a result and makes a page of it the same options and ``--html``."""
    return _with(command, [_json(), _output(".html, .json or .txt"), _html(), lang_option(), _force(), _quiet()])


def report_options(command: _Decorated) -> _Decorated:
    """Give a command that makes a diagnosis the same options, and those of the HTML report."""
    page = [
        _html(),
        option("--open", "open_browser", group=OUTPUT, is_flag=True, help="Open the HTML report in a browser."),
        option("--verbose", group=OUTPUT, is_flag=True, help="Print the whole report: queue, all findings, kernels."),
        lang_option(),
    ]
    return _with(command, [_json(), _output(".html, .json or .txt"), *page, _force(), _quiet(), *_rules()])


def rule_options(command: _Decorated) -> _Decorated:
    """Give a command that shows findings the options of which ones."""
    return _with(command, _rules())


def _rules() -> list[Decorator]:
    texts = {"--select": "Show findings of these rules only", "--ignore": "Leave out findings of these rules"}
    return [
        option(name, group=RULES, multiple=True, metavar="RULE,…", help=f"{text}; repeatable.")
        for name, text in texts.items()
    ]


def worker_options(command: _Decorated) -> _Decorated:
    """Give a command that reads ranks the options of who reads them."""
    return _with(
        command,
        [
            option(
                "--workers",
                group=RANKS,
                type=click.IntRange(min=1),
                metavar="N",
                help="Read ranks in N processes.  [default: as many as cores, if there is enough to read]",
            ),
            option(
                "--cluster",
                group=RANKS,
                default="",
                metavar="ADDRESS",
                help="Read ranks on a Dask cluster: tcp://HOST:PORT, file:SCHEDULER.json, or slurm in an allocation.",
            ),
            option("--no-cache", group=RANKS, is_flag=True, help="Neither use nor keep earlier results."),
        ],
    )


def keep_option(command: _Decorated) -> _Decorated:
    """Give a command that compares ranks ``--keep``."""
    text = "Write the summaries of all ranks to FILE: .ranks."
    return _with(command, [option("--keep", group=OUTPUT, metavar="FILE", help=text)])


def _json() -> Decorator:
    return option("--json", "as_json", group=OUTPUT, is_flag=True, help=JSON)


def _html() -> Decorator:
    return option("--html", group=OUTPUT, metavar="FILE", help="Write an HTML page to FILE.")


def _output(suffixes: str, *, required: bool = False) -> Decorator:
    text = f"Write the result to FILE: {suffixes}."
    return option("-o", "--output", group=OUTPUT, metavar="FILE", required=required, help=text)


def lang_option() -> Decorator:
    """Give a command the language that it shows an answer in."""
    return option(
        "--lang",
        group=OUTPUT,
        type=click.Choice(LANGUAGES),
        default="en",
        envvar="DIAGNOSE_LANG",
        help="Show text and pages in English or Chinese; JSON stays the same.",
    )


def _force() -> Decorator:
    return option("--force", group=OUTPUT, is_flag=True, help="Overwrite existing files.")


def _quiet() -> Decorator:
    return option("-q", "--quiet", group=OUTPUT, is_flag=True, help="Show no progress.")


def _with(command: _Decorated, options: Sequence[Decorator]) -> _Decorated:
    for decorate in reversed(options):
        command = decorate(command)
    return command
