"""The gate of a CI job: fail where the step became slower than a baseline, beyond noise and tolerance."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from diagnose import __version__
from diagnose.compare.compare import Comparison
from diagnose.compare.format import sentence, what_changed
from diagnose.errors import UsageError

__all__ = ["FAILED", "Judgement", "judge", "junit", "parse_tolerance", "sarif"]

FAILED = 3  # the exit code of a gate that does not let through
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether the gate lets through, and why."""

    passed: bool
    text: str  # one sentence
    changed: tuple[str, ...]  # what grew or shrank, a sentence each
    comparison: Comparison
    tolerance: float


def judge(comparison: Comparison, tolerance: float) -> Judgement:
    """Fail where even the lower end of the ratio's interval is above 1 and its middle above the tolerance."""
    slower = comparison.is_slower and comparison.ratio > 1 + tolerance
    verdict = (
        f"The step is more than {tolerance:.0%} slower than the baseline."
        if slower
        else f"The step is within {tolerance:.0%} of the baseline, or its spread does not tell."
    )
    return Judgement(
        not slower, f"{verdict} {sentence(comparison)}", tuple(what_changed(comparison)), comparison, tolerance
    )


def parse_tolerance(text: str) -> float:
    """Read 5%, or 0.05.

    Raises:
        UsageError: it is neither, or not from 0 to 1000 %.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%?)", text.strip())
    value = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    if not 0 <= value <= 10:
        raise UsageError(f"--tolerance {text} is no share; give 5% or 0.05.")
    return value


def junit(judgement: Judgement) -> str:
    """Return a JUnit report with one test case."""
    step_s = judgement.comparison.after.diagnosis.step_ns / 1e9
    details = "\n".join(judgement.changed)
    failure = "" if judgement.passed else f"<failure message={quoteattr(judgement.text)}>{_escaped(details)}</failure>"
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<testsuites><testsuite name="diagnose gate" tests="1" failures="{int(not judgement.passed)}" errors="0" '
        f'skipped="0" time="{step_s:.6f}">'
        f'<testcase classname="diagnose.gate" name="step time" time="{step_s:.6f}">{failure}'
        f"<system-out>{_escaped(judgement.text)}</system-out></testcase></testsuite></testsuites>\n"
    )


def sarif(judgement: Judgement) -> str:
    """Return a SARIF 2.1.0 log: a result for the slower step at the most expensive place of each finding that grew."""
    results = [] if judgement.passed else [_result("step-time", judgement.text, None, None), *_of_findings(judgement)]
    rules = sorted({str(result["ruleId"]) for result in results})
    log = {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "diagnose",
                        "version": __version__,
                        "rules": [{"id": rule, "shortDescription": {"text": rule}} for rule in rules],
                    }
                },
                "results": results,
            }
        ],
    }
    return json.dumps(log, indent=2)


def _of_findings(judgement: Judgement) -> list[dict[str, object]]:
    places = {f.rule: f for f in judgement.comparison.after.diagnosis.findings}
    found = []
    for change in judgement.comparison.findings:
        finding = places.get(change.name)
        if finding is None or change.by_ns <= 0:
            continue
        where = next((w for w in finding.where if w.file), None)
        text = f"{finding.title}: {change.by_ns / 1e6:.2f} ms more per step than in the baseline."
        found.append(_result(change.name, text, where.file if where else None, where.line if where else None))
    return found


def _result(rule: str, text: str, file: str | None, line: int | None) -> dict[str, object]:
    result: dict[str, object] = {"ruleId": rule, "level": "error" if rule == "step-time" else "warning"}
    result["message"] = {"text": text}
    if file is not None:
        location: dict[str, object] = {"artifactLocation": {"uri": Path(file).as_posix().lstrip("/")}}
        if line is not None and line > 0:
            location["region"] = {"startLine": line}
        result["locations"] = [{"physicalLocation": location}]
    return result


def _escaped(text: str) -> str:
    """Return text as XML takes it: without markup and without control characters."""
    plain = re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", text)
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
