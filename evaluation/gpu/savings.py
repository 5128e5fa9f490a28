"""Compares what diagnose says of the captures in fixtures/traces with what repairing each script saved on that device.

Prints a Markdown table. The step of the script and of its repaired form were measured without a profiler, by
gpu/pairs.py; what is claimed is the step without the cause of the dominant finding, and the range of its first
change. Below stands how many of the savings lie within the range of the change that the repaired form is.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from range_scoring import RangeRow, Saving, stated_range, summary, table  # a sibling of this folder

from diagnose.model.diagnosis import Diagnosis
from diagnose.pipeline.run import analyze_paths

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "traces"
MAX_ERROR_SHARE = 0.1  # of the step
REPAIRED_BY = {"fp32_matmul-planted": "allow-tf32"}  # where that is not the first change


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


def range_rows() -> list[RangeRow]:
    """Return what repairing each script saved beside the stated range of the change that the repaired form is.

    Two times of the planted script are known, of a run by itself and beside its recording: a saving lies between what
    both show. Nothing is stated of a change for what comes in some steps only, or where nothing was repaired.
    """
    told = json.loads((FOLDER / "expected.json").read_text("utf-8"))["captures"]
    found = (_range_row(name, expected["steps_ms"]) for name, expected in told.items() if expected["steps_ms"])
    return [row for row in found if row is not None]


def _range_row(name: str, steps_ms: tuple[float, float]) -> RangeRow | None:
    diagnosis = analyze_paths([FOLDER / name])
    planted, repaired = steps_ms
    of_answer = [p for p in diagnosis.prescriptions if p.rule == diagnosis.dominant and p.mean_step_ns is None]
    wanted = REPAIRED_BY.get(name)
    mine = next((p for p in of_answer if wanted in (None, p.id)), None)
    if mine is None or mine.predicted_step_ns is None:
        return None
    plain_ms = [ns / 1e6 for ns in diagnosis.source.unprofiled_step_ns]
    shares = [1 - repaired / ms for ms in (planted, statistics.median(plain_ms) if plain_ms else planted)]
    measured = Saving(shares[0], min(shares), max(shares))
    return RangeRow(name, mine.id, "repaired", planted, stated_range(diagnosis, mine), measured)


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
    ranges = range_rows()
    print()
    print(summary(ranges))
    print()
    print(table(ranges))


if __name__ == "__main__":
    main()
