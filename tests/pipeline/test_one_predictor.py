"""A change has one prediction: on its card, in the waterfall, in what-if, and beside a trial."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from diagnose.model.events import Device
from diagnose.pipeline import what_if
from diagnose.pipeline.rank import analyze_rank
from diagnose.pipeline.run import analyze_paths
from diagnose.pipeline.what_if import WhatIfRequest, run_what_if
from diagnose.trace_reader import open_captures
from diagnose.trials.candidates import candidates

CAPTURES = sorted((Path(__file__).parents[2] / "fixtures" / "captures").iterdir())
TRACES = CAPTURES[0].parents[1] / "traces"
A100 = Device(0, "NVIDIA A100-SXM4-40GB", 40 << 30, 108, (8, 0))


@pytest.fixture
def agree(monkeypatch):
    """Return a function that compares all predictions of a capture, and returns how many there are."""

    def check(capture, *, first_only=False):
        d = analyze_rank(capture, draw=False)
        monkeypatch.setattr(what_if, "open_captures", lambda _paths: [capture])
        predicted = [p for p in d.prescriptions if p.predicted_step_ns is not None]
        for p in predicted[:1] if first_only else predicted:
            assert p.predicted_step_ns == pytest.approx(d.step_ns - sum(p.saves_ns) / 2)
            result = run_what_if("trace.json", WhatIfRequest(apply=(p.id,)))
            assert result.baseline_ns == d.step_ns
            assert result.after_ns == pytest.approx(p.predicted_step_ns)
            assert result.forecasts[-1].low_ns == pytest.approx(d.step_ns - p.saves_ns[1])
            assert result.forecasts[-1].high_ns == pytest.approx(d.step_ns - p.saves_ns[0])
        cards = {p.id: p.predicted_step_ns for p in predicted}
        for candidate in candidates(d, ()):
            if candidate.predicted_ratio is None:
                assert cards.get(candidate.id) is None
                continue
            assert candidate.predicted_ratio * d.step_ns == pytest.approx(cards[candidate.id])
        if d.waterfall is not None:
            first = d.waterfall.forecasts[1]
            assert first.step_ns == pytest.approx(cards[first.ids[0]])
        return len(predicted)

    return check


@pytest.mark.parametrize("folder", CAPTURES, ids=lambda path: path.name)
def test_of_captures(folder, agree):
    assert agree(open_captures([folder])[0]) > 0


@pytest.mark.parametrize("name", ["item_every_step", "one_environment", "checkpoint_often"])
def test_of_steps_without_the_profiler_and_of_the_run(name):
    """Recording made the steps of two of them longer; in the third a few steps are long."""
    folder = TRACES / f"{name}-planted"
    d = analyze_paths([folder])
    assert d.prescriptions
    for p in d.prescriptions:
        result = run_what_if(folder, WhatIfRequest(apply=(p.id,)))
        assert result.baseline_ns == d.step_ns
        last = result.forecasts[-1]
        assert (d.step_ns - last.high_ns, d.step_ns - last.low_ns) == pytest.approx(p.saves_ns)
    assert d.recorded_step_ns > 1.2 * d.step_ns or d.prescriptions[0].mean_step_ns == d.step_ns


def test_of_a_step_with_an_end_that_is_cut(recording, agree):
    """Loading, launches, a sync and float32 products: models of their own, shares, and savings beyond their cause."""
    r = recording(devices=[A100])
    for number in range(6):
        at = number * 4000
        r.step(number + 1, at, at + 4000)
        r.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 900)
        for i in range(20):
            r.op("aten::relu", at + 900 + i * 100, at + 1000 + i * 100)
            r.kernel("relu", at + 995 + i * 100, at + 1005 + i * 100, launched=(at + 985 + i * 100, at + 990 + i * 100))
        r.op("aten::mm", at + 2900, at + 2910, shapes="[[2000, 1950], [1950, 2000]]", types='["float", "float"]')
        r.kernel("ampere_sgemm_128x64_nn", at + 2915, at + 3715, launched=(at + 2901, at + 2905))
        r.op("aten::item", at + 2920, at + 3720)
        r.runtime("cudaStreamSynchronize", at + 2925, at + 3718)
    assert agree(r.capture()) >= 3


def test_of_recorded_traces(recorded, extent, agree):
    for name in recorded.of(extent)[:: 1 if extent == "all" else 3]:
        agree(recorded.captures[name], first_only=True)


def test_a_trial_is_predicted_to_take_the_share_of_the_step_that_the_card_leaves():
    """A card shows 8 of 12 ms."""
    d = analyze_rank(open_captures([CAPTURES[0]])[0], draw=False)
    p = replace(d.prescriptions[0], id="schedule-gc", predicted_step_ns=8e6)
    assert candidates(replace(d, prescriptions=(p,), step_ns=12e6), ())[0].predicted_ratio == pytest.approx(2 / 3)
