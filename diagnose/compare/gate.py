"""The gate of a CI job: fail where the step became slower than a baseline, beyond noise and tolerance."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias
from xml.sax.saxutils import quoteattr

from diagnose.compare.compare import Comparison
from diagnose.compare.format import sentence, step_times, what_changed
from diagnose.errors import UsageError

GateVerdict: TypeAlias = Literal["passed", "failed", "undecided", "not comparable"]

EXIT_CODES: dict[GateVerdict, int] = {"passed": 0, "undecided": 0, "failed": 3, "not comparable": 7}


@dataclass(frozen=True, slots=True)
class GateResult:
    """Whether the gate lets through, and why."""

    verdict: GateVerdict
    text: str
    changed: tuple[str, ...]  # what grew or shrank, a sentence each; of a gate that failed
    comparison: Comparison

    @property
    def passed(self) -> bool:
        """Return whether nothing stands against the step: it passed, or nothing could be decided."""
        return EXIT_CODES[self.verdict] == 0


def evaluate_gate(comparison: Comparison) -> GateResult:
    """Fail a step that is slower for certain; what too few or too uneven runs leave open is undecided."""
    evaluation, tolerance = comparison.evaluation, comparison.tolerance
    verdict: GateVerdict = "undecided"
    if evaluation.outcome == "not comparable":
        verdict = "not comparable"
    elif evaluation.outcome == "slower":
        verdict = "failed"
    elif evaluation.excludes_slower(tolerance):
        verdict = "passed"
    more = {"failed": "more", "passed": "no more"}.get(verdict)
    text = (
        f"The step is {more} than {100 * tolerance:g} % slower than the baseline: {step_times(comparison)}"
        if more
        else sentence(comparison)
    )
    if verdict != "not comparable":  # there they are the reason
        text = " ".join([text, *(difference.sentence() for difference in comparison.differences)])
    changed = tuple(what_changed(comparison)) if verdict == "failed" else ()
    return GateResult(verdict, text, changed, comparison)


def parse_tolerance(text: str) -> float:
    """Read 5%, or 0.05.

    Raises:
        UsageError: it is neither, or not from 0 to 1000 %.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%?)", text.strip())
    value = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    if not 0 <= value <= 10:
        raise UsageError(f"Invalid --tolerance {text!r}: use 5% or 0.05.")
    return value


def junit(result: GateResult) -> str:
    """Return a JUnit report with one test case: passed, failed, an error where nothing is comparable, or skipped."""
    step_s = result.comparison.steps_ns[1] / 1e9
    element = {"failed": "failure", "not comparable": "error", "undecided": "skipped"}.get(result.verdict, "")
    details = _escaped("\n".join(result.changed))
    inner = f"<{element} message={quoteattr(_legal(result.text))}>{details}</{element}>" if element else ""
    counts = " ".join(
        f'{plural}="{int(element == singular)}"'
        for plural, singular in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))
    )
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<testsuites><testsuite name="diagnose gate" tests="1" {counts} time="{step_s:.6f}">'
        f'<testcase classname="diagnose.gate" name="step time" time="{step_s:.6f}">{inner}'
        f"<system-out>{_escaped(result.text)}</system-out></testcase></testsuite></testsuites>\n"
    )


def _escaped(text: str) -> str:
    return _legal(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _legal(text: str) -> str:
    """Return the characters that XML has."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", text)
