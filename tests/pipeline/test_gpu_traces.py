"""Captures of the bundled scripts on an H100, cut to a few steps: the answer, and what it claims to save."""

import json
from pathlib import Path

import pytest

from diagnose.pipeline.run import analyze_paths

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"
EXPECTED = json.loads((TRACES / "expected.json").read_text("utf-8"))["captures"]
EVERY_DAY = {"checkpoint_all-planted", "fp32_matmul-planted", "healthy-planted", "ddp_one_bucket-planted"}
WITHIN = 0.2  # of the step; the steps of other runs of the same script on this machine differ by up to a tenth


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in EVERY_DAY else pytest.mark.full) for n in sorted(EXPECTED)]
)
def test_what_a_recording_of_a_gpu_answers(name):
    expected = EXPECTED[name]
    found = analyze_paths([TRACES / name])
    assert found.verdict == expected["verdict"]
    assert (found.dominant or "none") in expected["rules"]
    if expected["steps_ms"]:
        planted, repaired = expected["steps_ms"]
        first = next((f for f in found.findings if f.rule == found.dominant), None)
        claimed = 0.0 if first is None else first.share or first.gain_ns / found.step_ns
        # The planted step is known of a run by itself and of its recording, of which few steps are kept.
        shares = sorted(max(0.0, 1 - repaired / step_ms) for step_ms in (planted, found.step_ns / 1e6))
        assert shares[0] - WITHIN <= claimed <= shares[1] + WITHIN


def test_products_in_tf32_save_what_they_saved():
    planted, repaired = EXPECTED["fp32_matmul-planted"]["steps_ms"]
    found = analyze_paths([TRACES / "fp32_matmul-planted"])
    change = next(p for p in found.prescriptions if p.id == "allow-tf32")
    low, high = (ns / found.step_ns for ns in change.saves_ns)
    assert low <= 1 - repaired / planted <= high
