"""Compares what diagnose says of the captures in fixtures/traces with what repairing each script saved on that device.

Prints a Markdown table. The step of the script and of its repaired form were measured without a profiler, by
scripts/gpu/pairs.py; what is claimed is the step without the cause of the dominant finding, and the range of its first
change.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import NamedTuple

from diagnose.model.diagnosis import Diagnosis
from diagnose.pipeline.run import analyze_paths

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "traces"
MAX_ERROR_SHARE = 0.1  # of the step


class Row(NamedTuple):
    """One capture; savings are shares of the step."""

    name: str
    verdict: str
    dominant: str
    right: bool
    true: float | None  # what repairing saved
    claimed: float | None  # by the dominant finding
    low: float | None  # and by its first change
    high: float | None

    @property
    def error(self) -> float | None:
        """Return how far the claim is off."""
        return None if self.true is None or self.claimed is None else self.claimed - self.true


def rows() -> list[Row]:
    """Analyse every capture that is kept."""
    captures = json.loads((FOLDER / "expected.json").read_text("utf-8"))["captures"]
    return [_row(name, expected) for name, expected in captures.items()]


def _row(name: str, expected: dict[str, object]) -> Row:
    found = analyze_paths([FOLDER / name])
    dominant = found.dominant or "none"
    rules, steps = expected["rules"], expected["steps_ms"]
    assert isinstance(rules, list), "a list of rule ids"
    right = found.verdict == expected["verdict"] and dominant in rules
    true = None
    if isinstance(steps, list):
        true = max(0.0, 1 - steps[1] / steps[0])
    low, high = _first_change(found)
    return Row(name, found.verdict, dominant, right, true, _claimed(found), low, high)


def _claimed(found: Diagnosis) -> float:
    first = next((f for f in found.findings if f.rule == found.dominant), None)
    return first.gain_ns / found.step_ns if first and first.share is None else first.share or 0.0 if first else 0.0


def _first_change(found: Diagnosis) -> tuple[float | None, float | None]:
    mine = [p for p in found.prescriptions if p.rule == found.dominant]
    whole = any(f.share is not None for f in found.findings if f.rule == found.dominant)  # of the run, not of a step
    if not mine or whole:
        return None, None
    return mine[0].saves_ns[0] / found.step_ns, mine[0].saves_ns[1] / found.step_ns


def main() -> None:
    found = rows()
    print("| capture | verdict | answer | right | repairing saved | without its cause | first change |")
    print("|---|---|---|---|---|---|---|")
    for row in found:
        change = "–" if row.low is None else f"{row.low:.0%} to {row.high:.0%}"
        true, right = "–" if row.true is None else f"{row.true:.0%}", "yes" if row.right else "**no**"
        print(f"| {row.name} | {row.verdict} | {row.dominant} | {right} | {true} | {row.claimed:.0%} | {change} |")
    errors = [abs(row.error) for row in found if row.error is not None]
    near = sum(error <= MAX_ERROR_SHARE for error in errors)
    print()
    print(
        f"Right: {sum(row.right for row in found)} of {len(found)}. Of {len(errors)} savings {near} are within a tenth "
        f"of the step of what repairing saved; median error {statistics.median(errors):.1%} of the step, largest "
        f"{max(errors):.0%}."
    )


if __name__ == "__main__":
    main()
