"""``diagnose compare`` and ``diagnose gate``: read both sides, or trace the later one, and answer."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from diagnose.cli.output import ResultRequest, answer_text, check_rules, chosen, plan_text
from diagnose.compare.compare import Comparison, compare
from diagnose.compare.format import as_json, as_text
from diagnose.compare.gate import EXIT_CODES, GateResult, evaluate_gate, junit, parse_tolerance
from diagnose.compare.setup import differences
from diagnose.compare.sides import Side, baseline_text, join_sides, open_side
from diagnose.errors import InputError, UsageError
from diagnose.model.files import check_distinct, check_file, printable, write_file
from diagnose.reports.language import ENGLISH, current, translated
from diagnose.text.plain_text import columns
from diagnose.text.progress import Progress


@dataclass(frozen=True, slots=True)
class SidesRequest(ResultRequest):
    """How two sides are compared."""

    tolerance: str = "5%"
    allow_differences: bool = False
    select: tuple[str, ...] = ()  # rules
    ignore: tuple[str, ...] = ()
    of_changes: ClassVar[bool] = False  # whether arguments and settings may be what is compared

    def check(self) -> None:
        """Check what was asked for before anything is read."""
        parse_tolerance(self.tolerance)
        check_rules(self.select, self.ignore)

    def compared(self, before: Side, after: Side) -> Comparison:
        """Return the comparison without the findings that options, or comments on either side, leave out."""
        comparison = compare(
            before,
            after,
            tolerance=parse_tolerance(self.tolerance),
            allow_differences=self.allow_differences,
            of_changes=self.of_changes,
        )
        ignored = [one for side in (before, after) for one in chosen(side.diagnosis, self.select, self.ignore).ignored]
        return comparison.without_findings(frozenset(one.finding.rule for one in ignored))


@dataclass(frozen=True, slots=True)
class CompareRequest(SidesRequest):
    """What ``diagnose compare`` was asked for."""

    before: Sequence[str] = ()
    after: Sequence[str] = ()
    of_changes: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class GateRequest(SidesRequest):
    """What ``diagnose gate`` was asked for; ``force`` is about the reports, ``update`` about the baseline."""

    baseline: Sequence[str] = ()
    target: str = ""
    args: Sequence[str] = ()  # of the script; further captures where the target is none
    module: bool = False
    runs: int | None = None  # how often the script is traced
    junit: str | None = None
    update: bool = False


def compare_and_answer(request: CompareRequest) -> None:
    """Print what differs between two sets of captures, traces or reports, and write it.

    Raises:
        UsageError: the tolerance is none, or the file to write is one of the runs.
        InputError: one of them cannot be read.
        OutputError: the file cannot be written.
    """
    request.check()
    files = plan_text(request, inputs=[*request.before, *request.after], has_page=True)
    before, after = (join_sides([open_side(path) for path in paths]) for paths in (request.before, request.after))
    found = request.compared(before, after)
    text, json = lambda: as_text(found, columns()), lambda: as_json(found)
    answer_text(text, json, request, files, page=lambda: _page(found))


def gate_and_answer(request: GateRequest) -> int:
    """Compare with the baseline, write what was asked for, and return the exit code of the verdict.

    Raises:
        UsageError: the request makes no sense.
        InputError: the baseline or a capture cannot be read, or the runs of a new baseline are not alike.
        CaptureError: the script could not be traced.
        OutputError: a report exists already, or a file cannot be written; mostly raised before the script runs.
    """
    request.check()
    files = _check_request(request)
    progress = request.progress
    missing = [path for path in request.baseline if not Path(path).exists()]
    if missing and request.update:
        with _candidate(request, progress) as side:
            _update(request, side, progress)
        return 0
    if missing:
        raise InputError(f"The baseline {printable(Path(missing[0]))} does not exist; create it with --update.")
    before = join_sides([open_side(path) for path in request.baseline])
    with _candidate(request, progress) as after:
        comparison = request.compared(before, after)
        result = evaluate_gate(comparison)
        answer_text(
            lambda: _text(result),
            lambda: as_json(comparison, {"gate": result.verdict}),
            request,
            files,
            page=lambda: _page(comparison, result),
        )
        if request.junit is not None:
            write_file(request.junit, junit(result), force=request.force)
            progress.report(f"wrote {printable(Path(request.junit))}")
        if request.update:
            _update(request, after, progress)
    return 0 if request.update else EXIT_CODES[result.verdict]


def _check_request(request: GateRequest) -> tuple[Path, ...]:
    """Return the file of ``--output``, after checking all that can be checked before a script runs."""
    named = {"--output": request.output, "--html": request.html, "--junit": request.junit}
    check_distinct(named, [*request.baseline, request.target, *_captures(request)])
    if request.junit is not None:
        check_file(Path(request.junit), force=request.force)
    if request.runs is not None and not _is_script(request):
        raise UsageError("--runs needs a script to trace; name several captures instead.")
    options = [name for name in _captures(request) if name.startswith("-")]
    if options:
        raise UsageError(
            f"Unexpected {options[0]} after {printable(Path(request.target))}, which is not a script; "
            "options go before BASELINE."
        )
    if request.update and len(request.baseline) > 1:
        raise UsageError("--update writes one baseline; give --baseline once.")
    if request.update:
        check_file(Path(request.baseline[0]), force=True)
    return plan_text(request, has_page=True)


def _page(comparison: Comparison, result: GateResult | None = None) -> str:
    from diagnose.compare.html import as_html  # the templates are loaded only where a page is asked for

    return as_html(comparison, result)


def _update(request: GateRequest, side: Side, progress: Progress) -> None:
    unlike = differences(side.setups[:1], side.setups[1:])
    if unlike:
        raise InputError(
            f"No baseline is written: the runs differ in their {unlike[0].what}. Record all of them alike."
        )
    write_file(request.baseline[0], baseline_text(side.diagnosis, side.runs), force=True)
    num_runs = f"{len(side.runs)} run{'s' if len(side.runs) != 1 else ''}"
    progress.report(f"wrote the baseline {printable(Path(request.baseline[0]))} ({num_runs})")


def _text(result: GateResult) -> str:
    text = result.text.removeprefix("Not comparable. ")
    verdict = translated(result.verdict.capitalize()) if current() != ENGLISH else result.verdict
    return "\n  ".join([f"{verdict}: {translated(text)}", *map(translated, result.changed)])


def _is_script(request: GateRequest) -> bool:
    path = Path(request.target)
    return request.module or (path.is_file() and path.suffix == ".py") or (path / "__main__.py").is_file()


def _captures(request: GateRequest) -> Sequence[str]:
    """Return the captures that stand behind the target; what stands behind a script belongs to the script."""
    return () if _is_script(request) else request.args


@contextlib.contextmanager
def _candidate(request: GateRequest, progress: Progress) -> Iterator[Side]:
    """Yield what is compared with the baseline: captures, traces or reports, or the script, traced now."""
    if not _is_script(request):
        yield join_sides([open_side(path) for path in (request.target, *request.args)])
        return
    # With fewer on each side hardly anything can be decided.
    num_runs = request.runs or 3
    with tempfile.TemporaryDirectory(prefix="diagnose-gate-") as folder:
        captures = [Path(folder) / f"run-{i + 1}" for i in range(num_runs)]
        for i, capture in enumerate(captures):
            progress.report(f"tracing {request.target}, run {i + 1} of {num_runs}")
            _trace(request, capture)
        yield join_sides([open_side(capture) for capture in captures])


def _trace(request: GateRequest, capture: Path) -> None:
    from diagnose.capture.options import CaptureOptions
    from diagnose.capture.process import launch
    from diagnose.capture.process.launch import CaptureRequest
    from diagnose.errors import CaptureError

    script = [*(["-m"] if request.module else []), request.target, *request.args]
    options = CaptureOptions(output=capture, quiet=request.quiet)
    capture_request = CaptureRequest(options, parent=os.getpid(), failure_file=-1, signal_file=-1)
    ended = launch.supervise(capture_request, script, stdout_to_stderr=True)
    if not (capture / "capture.json").is_file():
        raise CaptureError(
            ended.failure or f"No step of {request.target} was captured; it ended with exit code {ended.exit_code}."
        )
    sys.stdout.flush()
