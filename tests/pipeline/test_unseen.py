"""What a recording does not hold: no rule that reads it is said to have looked, and no step is called healthy."""

from pathlib import Path

import pytest

from diagnose import analyzers
from diagnose.answer.screen import answer
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.words import english
from diagnose.pipeline.rank import analyze_rank
from diagnose.trace_reader.folders import open_captures
from tests.stripping import STRIPPED

FIXTURES = Path(__file__).parents[2] / "fixtures"
RECORDED = sorted(path for folder in ("traces", "captures") for path in (FIXTURES / folder).iterdir() if path.is_dir())
# What reads each: of these a rule may be blind, whatever its file imports besides.
READERS = {
    "shapes": {
        "at-roofline", "layout-copy", "misaligned-matmul",
        "scatter-atomics", "slow-fft-length", "slow-kernel", "unfused-attention",
        "unfused-elementwise", "uncached-generation",
    },
    "peak rates of the device": {"at-roofline", "misaligned-matmul", "scatter-atomics", "slow-kernel"},
    "garbage collections": {"gc-pause"},
    "samples of the threads": {"off-cpu"},
    "memory events": {"memory-fragmentation", "memory-headroom", "memory-pressure"},
    "NVML samples": {"device-contention", "shared-device", "throttled"},
    "steps of the whole run": {
        *("growing-steps", "lone-rank", "periodic-stall", "piled-hooks", "rollout-bound", "saved-view"),
    },
}  # fmt: skip


def assert_is_honest(full: Diagnosis, less: Diagnosis, missing: str) -> None:
    """Check what is said of a recording that lacks something against what the whole one shows."""
    found = {f.rule for f in less.findings}
    lost = {f.rule for f in full.findings if f.worth_ns >= 0.02 * full.step_ns} - found
    screen = answer(less)
    if missing == "device records":
        assert screen.record_again is not None or full.queue is None  # on a CPU nothing is missing
        return
    for rule in lost & {rule for rule, meta in analyzers.META.items() if meta.needs}:
        assert rule not in less.checked, f"{rule} is said to have looked without {missing}"
    if less.dominant is None and full.dominant is not None and missing != "steps of the whole run":
        first = f"{english(screen.headline)} {english(screen.checked)}"
        assert missing in english(screen.headline) or screen.record_again is not None, first
        assert missing in english(screen.checked or ""), first


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.name, marks=[pytest.mark.full] if i % 4 else []) for i, path in enumerate(RECORDED)],
)
def test_no_fixture_is_called_healthy_for_lack_of_a_record(path):
    capture = open_captures([path])[0]
    full = analyze_rank(capture, draw=False)
    for missing, without in STRIPPED.items():
        if (less := without(capture)) is not capture:
            assert_is_honest(full, analyze_rank(less, draw=False), missing)


def test_no_recorded_trace_is_called_healthy_for_lack_of_a_record(recorded, extent):
    for name in recorded.of(extent):
        full = recorded.diagnoses[name]
        for missing, without in STRIPPED.items():
            if (less := without(recorded.captures[name])) is not recorded.captures[name]:
                assert_is_honest(full, analyze_rank(less, draw=False), missing)


@pytest.mark.parametrize("missing", [name for name in STRIPPED if name != "device records"])
def test_a_rule_that_reads_what_is_missing_is_not_checked(recorded, missing):
    for name in ("hta_mlp_gp100", "edge_cpu_only_rank34", "tl_bert_small_h100"):
        d = analyze_rank(STRIPPED[missing](recorded.captures[name]), draw=False)
        readers = READERS.get(missing, set())
        assert not readers & set(d.checked)
        assert all(missing in d.not_checked[rule] for rule in readers if rule in d.not_checked)
        assert not set(d.checked) & set(d.not_checked)


def test_every_reader_is_listed():
    assert {record: {rule for rule, meta in analyzers.META.items() if record in meta.needs} for record in READERS} == (
        READERS
    )


def test_additions_at_indices_are_no_healthy_step_if_shapes_are_missing():
    """A kernel takes 92.8 % of the step; what it computes only shapes show."""
    capture = open_captures([FIXTURES / "traces" / "indexed_table-planted"])[0]
    assert analyze_rank(capture, draw=False).dominant == "scatter-atomics"
    d = analyze_rank(STRIPPED["shapes"](capture), draw=False)
    screen = answer(d)
    assert english(screen.headline).startswith("Nothing found without shapes: the GPU is busy 99.")
    assert d.unseen == {"shapes": 7}
    assert "could not run (missing: data flow, shapes, memory events)" in english(screen.checked)
    assert d.not_checked["scatter-atomics"] == "shapes"


def test_one_rank_of_several_has_not_looked_at_the_others(recorded):
    one = recorded.diagnoses["param_dlrm_v100_r0"]
    assert one.not_checked["straggler"] == "all ranks"
