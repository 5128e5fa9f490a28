"""The command lines of ``diagnose compare`` and ``diagnose gate``; nothing heavy is imported here."""

from __future__ import annotations

from typing import Any

import click

from diagnose.cli.help import Command, option
from diagnose.cli.options import module_option, result_options
from diagnose.cli.script_arguments import ScriptCommand

__all__ = ["compare", "gate"]

GATE = "Gate"


@click.command(
    cls=Command,
    short_help="Compare two recordings.",
    examples=[
        "diagnose compare before/ after/",
        "diagnose compare baseline.json trace.json.gz --json",
    ],
)
@result_options
@click.argument("before")
@click.argument("after")
def compare(before: str, after: str, **asked: Any) -> None:  # noqa: ANN401  # what click read, typed by ResultRequest
    """Compare two captures, traces or JSON reports: step time, its parts, causes and kernels."""
    from diagnose.cli.gate import compare_and_answer
    from diagnose.cli.output import ResultRequest

    compare_and_answer(before, after, ResultRequest(**asked))


@click.command(
    cls=ScriptCommand,
    short_help="Fail where the step is slower than a baseline.",
    context_settings={"allow_interspersed_args": False},
    examples=[
        "diagnose gate --update baseline.json train.py --epochs 1",
        "diagnose gate --tolerance 5% --junit gate.xml baseline.json train.py",
        "diagnose gate baseline.json capture/",
    ],
)
@module_option(GATE)
@option(
    "--tolerance",
    group=GATE,
    default="5%",
    show_default=True,
    metavar="SHARE",
    help="Accept a step that is slower by up to SHARE: 5% or 0.05.",
)
@option("--update", group=GATE, is_flag=True, help="Replace the baseline by this result; the gate passes.")
@option("--junit", group=GATE, metavar="FILE", help="Write a JUnit report to FILE.")
@option("--sarif", group=GATE, metavar="FILE", help="Write a SARIF 2.1.0 log to FILE.")
@result_options
@click.argument("baseline")
@click.argument("target")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def gate(**asked: Any) -> int:  # noqa: ANN401  # what click read, typed by GateRequest
    """Exit with code 3 where the step of TARGET is slower than that of BASELINE.

    BASELINE is a JSON report or a capture. TARGET is a script, which is traced first, or a capture, a trace or a
    report. Options go before BASELINE.
    """
    from diagnose.cli.gate import GateRequest, gate_and_answer

    return gate_and_answer(GateRequest(**asked))
