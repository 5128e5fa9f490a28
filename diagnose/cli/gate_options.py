"""The command lines of ``diagnose compare`` and ``diagnose gate``; nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from diagnose.cli.help import Command, Decorator, option
from diagnose.cli.options import module_option, page_options, rule_options
from diagnose.cli.script_arguments import ScriptCommand

__all__ = ["compare", "gate"]

RUNS, GATE = "Comparison", "Gate"


def _tolerance() -> Decorator:
    return option(
        "--tolerance",
        group=RUNS,
        default="5%",
        show_default=True,
        metavar="SHARE",
        help="Count a difference of up to SHARE of the step as none: 5% or 0.05.",
    )


def _allow_differences() -> Decorator:
    return option(
        "--allow-differences",
        group=RUNS,
        is_flag=True,
        help="Compare although device, batch size or other conditions differ.",
    )


@click.command(
    cls=Command,
    short_help="Compare two recordings, or the runs of two versions.",
    examples=[
        "diagnose compare before/ after/",
        "diagnose compare --before run1 --before run2 --before run3 new1 new2 new3",
        "diagnose compare baseline.json trace.json.gz --json",
    ],
)
@option("--before", group=RUNS, multiple=True, metavar="PATH", help="A run of the earlier side; repeatable.")
@_tolerance()
@_allow_differences()
@rule_options
@page_options
@click.argument("paths", nargs=-1, metavar="BEFORE AFTER...")
def compare(before: tuple[str, ...], paths: tuple[str, ...], **asked: Any) -> None:  # typed by the request
    """Compare captures, traces or JSON reports: step time, its parts, causes and kernels.

    Runs of one script differ, so give two or more runs of each side; with --before every PATH is a run of the later
    side. The exit code is 0 for every result: slower, faster, the same, undecided or not comparable.
    """
    from diagnose.cli.gate import CompareRequest, compare_and_answer

    before, after = _sides(before, paths, "BEFORE", "AFTER")
    compare_and_answer(CompareRequest(before=before, after=after, **asked))


def _sides(
    named: Sequence[str], paths: Sequence[str], first: str, second: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the runs of both sides: the first argument is the earlier one where no option names it."""
    earlier, later = (named, paths) if named else (paths[:1], paths[1:])
    if not earlier or not later:
        raise click.UsageError(f"Missing argument '{second if earlier else first}'.")
    return tuple(earlier), tuple(later)


def _target(params: Mapping[str, Any]) -> tuple[str, Sequence[str]]:
    """Return TARGET, and what is given after it."""
    rest = params["paths"][0 if params["baseline"] else 1 :]
    return (rest[0], rest[1:]) if rest else ("", ())


@click.command(
    cls=ScriptCommand,
    split=_target,
    short_help="Fail where the step is slower than a baseline.",
    context_settings={"allow_interspersed_args": False},
    examples=[
        "diagnose gate --update baseline.json train.py --epochs 1",
        "diagnose gate --tolerance 5% --junit gate.xml baseline.json train.py",
        "diagnose gate baseline.json run1 run2 run3",
    ],
)
@option("--baseline", group=RUNS, multiple=True, metavar="PATH", help="A run of the baseline; repeatable.")
@_tolerance()
@_allow_differences()
@module_option(GATE)
@option("--runs", group=GATE, type=click.IntRange(1, 100), metavar="N", help="Trace the script N times.  [default: 3]")
@option("--update", group=GATE, is_flag=True, help="Replace the baseline by all runs of TARGET, and pass.")
@option("--junit", group=GATE, metavar="FILE", help="Write a JUnit report to FILE.")
@option("--sarif", group=GATE, metavar="FILE", help="Write a SARIF 2.1.0 log to FILE.")
@rule_options
@page_options
@click.argument("paths", nargs=-1, type=click.UNPROCESSED, metavar="BASELINE TARGET [ARGS]...")
def gate(baseline: tuple[str, ...], paths: tuple[str, ...], **asked: Any) -> int:  # typed by the request
    """Fail where the step became slower than in BASELINE, by more than the tolerance and the spread of equal runs.

    TARGET is a script, which is traced three times, or captures, traces or reports, one of each run. BASELINE is a
    file that --update wrote from several runs, or a single run; with --baseline there is no argument BASELINE.
    Options go before both.

    Exit codes: 0 passed, or undecided because there are too few runs or they are too uneven; 3 slower; 7 not
    comparable, as another device or batch size was used.
    """
    from diagnose.cli.gate import GateRequest, gate_and_answer

    baseline, rest = _sides(baseline, paths, "BASELINE", "TARGET")
    return gate_and_answer(GateRequest(baseline=baseline, target=rest[0], args=rest[1:], **asked))
