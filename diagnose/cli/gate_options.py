"""The command lines of ``diagnose compare`` and ``diagnose gate``; nothing heavy is imported here."""

from __future__ import annotations

from typing import Any

import click

__all__ = ["compare", "gate"]


@click.command()
@click.option("--before", multiple=True, metavar="PATH", help="A run of the earlier side; may be repeated.")
@click.option("--tolerance", default="5%", show_default=True, metavar="SHARE", help="A smaller difference is none.")
@click.option("--allow-differences", is_flag=True, help="Compare although device, batch size or the like differ.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("paths", nargs=-1, metavar="BEFORE AFTER...")
def compare(before: tuple[str, ...], paths: tuple[str, ...], **asked: Any) -> None:  # typed by the request
    """Compare two captures, traces, or JSON reports: the step, its parts, causes and kernels.

    Runs of one script differ, so name two or more of each side; with --before every PATH is a run of the later one:

    \b
        diagnose compare --before run1 --before run2 --before run3 new1 new2 new3

    Always ends with exit code 0; the answer is slower, faster, the same, undecided or not comparable.
    """  # noqa: D301  # click's mark for lines that stay as they are
    from diagnose.cli.gate import CompareRequest, compare_and_answer

    before, after = _sides(before, paths, "BEFORE", "AFTER")
    compare_and_answer(CompareRequest(before, after, **asked))


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-m", "module", is_flag=True, help="TARGET is a module, as in python -m.")
@click.option("--baseline", multiple=True, metavar="PATH", help="A run of the baseline; may be repeated.")
@click.option("--runs", type=click.IntRange(1, 100), metavar="N", help="Trace the script N times.  [default: 3]")
@click.option("--tolerance", default="5%", show_default=True, metavar="SHARE", help="How much slower is still fine.")
@click.option("--allow-differences", is_flag=True, help="Compare although device, batch size or the like differ.")
@click.option("--junit", metavar="FILE", help="Write a JUnit report.")
@click.option("--sarif", metavar="FILE", help="Write a SARIF 2.1.0 log.")
@click.option("--update", is_flag=True, help="Write the baseline anew, with all runs of TARGET; nothing fails.")
@click.option("--force", is_flag=True, help="Overwrite reports that exist already.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@click.argument("paths", nargs=-1, type=click.UNPROCESSED, metavar="BASELINE TARGET [ARGS]...")
def gate(baseline: tuple[str, ...], paths: tuple[str, ...], **asked: Any) -> int:  # typed by the request
    """Fail when the step became slower than in BASELINE, beyond the tolerance and beyond how far equal runs differ.

    TARGET is a script, which is traced three times, or captures, traces or reports, one of each run. BASELINE is a
    file that --update wrote from several runs, or a single run; with --baseline there is no argument BASELINE.

    \b
        diagnose gate --update baseline.json train.py
        diagnose gate baseline.json train.py --epochs 1
        diagnose gate --baseline run1 --baseline run2 --baseline run3 new1 new2 new3

    Exit codes: 0 passed, or undecided because there are too few runs or they are too uneven; 3 slower; 7 not
    comparable, as another device or batch size was used.
    """  # noqa: D301  # click's mark for lines that stay as they are
    from diagnose.cli.gate import GateRequest, gate_and_answer

    baseline, rest = _sides(baseline, paths, "BASELINE", "TARGET")
    return gate_and_answer(GateRequest(baseline=baseline, target=rest[0], args=rest[1:], **asked))


def _sides(
    named: tuple[str, ...], paths: tuple[str, ...], first: str, second: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the runs of both sides: the first argument is the earlier one where no option names it."""
    earlier, later = (named, paths) if named else (paths[:1], paths[1:])
    if not earlier or not later:
        raise click.UsageError(f"Missing argument '{second if earlier else first}'.")
    return earlier, later
