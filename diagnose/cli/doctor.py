"""``diagnose doctor``: what a recording on this machine would lack."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from diagnose.capture.requirements import Check, check_machine
from diagnose.cli.output import ResultRequest, answer_text, plan_text

MARKS = {"ok": "ok", "limited": "LIMITED", "missing": "MISSING", "unused": "-"}


def examine_and_answer(request: ResultRequest) -> int:
    """Print the checks; return 1 where no recording is possible.

    Raises:
        OutputError: the file cannot be written.
    """
    files = plan_text(request)
    checks = list(check_machine())
    data = {"schema_version": 1, "checks": [check.to_dict() for check in checks]}
    answer_text(lambda: "\n".join(_lines(checks)), lambda: json.dumps(data, indent=2), request, files)
    return int(any(check.status == "missing" for check in checks))


def _lines(checks: Sequence[Check]) -> Iterator[str]:
    width = max(len(check.name) for check in checks)
    for check in checks:
        yield f"{check.name:<{width}}  {MARKS[check.status]:<7}  {check.found}"
        for text in (check.lacks, check.fix):
            if text:
                yield f"{'':<{width}}           {text}"
