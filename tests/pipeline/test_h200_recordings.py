"""Six recordings of an H200, by authors who knew no tool, cut to a few steps: the cause, its line, what it saves."""

import json
from pathlib import Path

import pytest

from diagnose.pipeline.run import analyze_paths

FOLDER = Path(__file__).parents[2] / "evaluation" / "gpu" / "h200"
TRUTH = json.loads((FOLDER / "truth.json").read_text("utf-8"))
ANSWERS = {
    "docqa_finetune": ("work-on-nothing", "gather-labelled-rows"),
    "ecg_delineation": ("slow-fft-length", "fast-fft-length"),
    "grid_forager": ("scatter-atomics", "embedding-lookup"),
    "pixel_denoiser": ("unfused", "fused-norm"),
    "sr_x4": ("dead-work", "detach-inputs"),
    "taxon_reads": ("data-stall", "cheaper-line"),
}
WITHIN = 0.12  # of the step: a repair was timed in another run than the recording


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_the_cause_the_line_the_change_and_what_it_saves(name):
    rule, change = ANSWERS[name]
    found, truth = analyze_paths([FOLDER / "captures" / name]), TRUTH[name]
    first = found.findings[0]
    assert (found.dominant, first.rule) == (rule, rule)
    assert {place.line for place in first.where} & set(truth["lines"])
    fix = next(each for each in found.prescriptions if each.rule == rule)
    assert fix.id == change
    planted, repaired = truth["measured_ms"]["planted"], truth["measured_ms"]["repaired"]
    low, high = (ns / found.step_ns for ns in fix.saves_ns)
    assert low - WITHIN <= 1 - repaired / planted <= high + WITHIN
