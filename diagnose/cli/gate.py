"""``diagnose compare`` and ``diagnose gate``: read both sides, or trace the later one, and answer."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from diagnose.cli.output import ResultRequest, answer_text, plan_text
from diagnose.compare.compare import compare
from diagnose.compare.format import as_json, as_text
from diagnose.compare.gate import FAILED, Judgement, judge, junit, parse_tolerance, sarif
from diagnose.compare.sides import Side, open_side
from diagnose.errors import InputError, UsageError
from diagnose.model.files import check_distinct, check_file, printable, write_file
from diagnose.progress import Progress

__all__ = ["GateRequest", "compare_and_answer", "gate_and_answer"]


@dataclass(frozen=True, slots=True)
class GateRequest(ResultRequest):
    """What ``diagnose gate`` was asked for; ``force`` is about the reports, ``update`` about the baseline."""

    baseline: str = ""
    target: str = ""
    args: Sequence[str] = ()
    module: bool = False
    tolerance: str = "5%"
    junit: str | None = None
    sarif: str | None = None
    update: bool = False


def compare_and_answer(before: str, after: str, request: ResultRequest) -> None:
    """Print what differs between two captures, traces or reports, and write it.

    Raises:
        UsageError: a file to write is one of the two.
        InputError: one of them cannot be read.
        OutputError: the file cannot be written.
    """
    files = plan_text(request, inputs=[before, after])
    comparison = compare(open_side(before), open_side(after))
    answer_text(lambda: as_text(comparison), lambda: as_json(comparison), request, files)


def gate_and_answer(request: GateRequest) -> int:
    """Compare with the baseline, write what was asked for, and return 0 or 3.

    Raises:
        UsageError: the request makes no sense.
        InputError: the baseline or the capture cannot be read.
        CaptureError: the script could not be traced.
        OutputError: a report exists already, or a file cannot be written; mostly raised before the script runs.
    """
    tolerance = parse_tolerance(request.tolerance)
    files = _check_files(request)
    progress = request.progress
    baseline = Path(request.baseline)
    if not baseline.exists() and request.update:
        with _later(request, progress) as side:
            return _first(baseline, side, progress)
    if not baseline.exists():
        raise InputError(f"The baseline {printable(baseline)} does not exist; create it with --update.")
    before = open_side(baseline)
    with _later(request, progress) as after:
        judgement = judge(compare(before, after), tolerance)
        answer_text(lambda: _text(judgement), lambda: as_json(judgement.comparison), request, files)
        _write(request, judgement, after, progress)
    return 0 if judgement.passed or request.update else FAILED


def _check_files(request: GateRequest) -> tuple[Path, ...]:
    """Return the file of ``--output``, after checking all that will be written."""
    named = {"--output": request.output, "--junit": request.junit, "--sarif": request.sarif}
    check_distinct(named, [request.baseline, request.target])
    for name in (request.junit, request.sarif):
        if name is not None:
            check_file(Path(name), force=request.force)
    if request.update:
        check_file(Path(request.baseline), force=True)
    return plan_text(request)


def _first(baseline: Path, side: Side, progress: Progress) -> int:
    write_file(baseline, _report(side), force=True)
    progress.say(f"wrote the baseline {printable(baseline)}")
    return 0


def _write(request: GateRequest, judgement: Judgement, after: Side, progress: Progress) -> None:
    for path, text in ((request.junit, junit(judgement)), (request.sarif, sarif(judgement))):
        if path is not None:
            write_file(path, text, force=request.force)
            progress.say(f"wrote {printable(path)}")
    if request.update:
        write_file(request.baseline, _report(after), force=True)
        progress.say(f"wrote the baseline {printable(request.baseline)}")


def _report(side: Side) -> str:
    from diagnose.reports import json  # only where a baseline is written

    return json.render(side.diagnosis) + "\n"


def _text(judgement: Judgement) -> str:
    word = "passed" if judgement.passed else "failed"
    changed = "".join(f"\n  {line}" for line in judgement.changed)
    return f"{word}: {judgement.text}{changed}"


@contextlib.contextmanager
def _later(request: GateRequest, progress: Progress) -> Iterator[Side]:
    """Yield what is compared with the baseline: a capture, a trace or a report, or the script, traced now."""
    path = Path(request.target)
    is_script = request.module or (path.is_file() and path.suffix == ".py") or (path / "__main__.py").is_file()
    if not is_script:
        if request.args:
            raise UsageError(
                f"Unexpected arguments after {printable(request.target)}, which is not a script; "
                "options go before BASELINE."
            )
        yield open_side(path)
        return
    with tempfile.TemporaryDirectory(prefix="diagnose-gate-") as folder:
        capture = Path(folder) / "capture"
        _trace(request, capture, progress)
        yield open_side(capture)


def _trace(request: GateRequest, capture: Path, progress: Progress) -> None:
    from diagnose.capture.options import CaptureOptions
    from diagnose.capture.process import launch
    from diagnose.capture.process.child import Order
    from diagnose.errors import CaptureError

    progress.say(f"tracing {request.target}")
    script = [*(["-m"] if request.module else []), request.target, *request.args]
    order = Order(CaptureOptions(output=capture), parent=os.getpid(), failure_file=-1, signal_file=-1)
    ended = launch.supervise(order, script, stdout_to_stderr=True)
    if not (capture / "capture.json").is_file():
        raise CaptureError(
            ended.failure or f"No step of {request.target} was captured; it ended with exit code {ended.exit_code}."
        )
    sys.stdout.flush()
