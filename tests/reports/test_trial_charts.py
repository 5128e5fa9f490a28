"""The charts of the trials: a reader can add up where each mark stands."""

import math
import re
from dataclasses import replace

import pytest

from diagnose.answer.cards import verdict
from diagnose.model.diagnosis import Trial
from diagnose.reports.charts import loss_chart, trial_chart, trial_name
from diagnose.reports.json import to_dict

FAST = Trial(
    "load-in-workers", (20.0, 20.0), (10.0, 10.0), 2.0, (1.6, 2.5), "identical", predicted_ms=12.0, noise=0.05,
    losses=((4.0, 2.0, 1.0), (4.0, 2.0, 1.0)),
)  # fmt: skip
SLOW = replace(FAST, id="autocast", step_ms=(25.0,), speed_up=0.8, interval=(0.75, 0.9), predicted_ms=None, noise=0.02)
FAILED = Trial("compile-model", (), (), 1.0, (0.0, 0.0), "unknown", failure="It crashed.")


@pytest.fixture
def drawn(forms):
    return lambda *trials: str(trial_chart(replace(forms["gaps"], trials=trials)) or "")


@pytest.fixture
def losses(forms):
    return lambda *trials: str(loss_chart(replace(forms["gaps"], trials=trials)) or "")


def test_a_speed_up_stands_within_its_interval_and_beside_the_one_predicted(drawn):
    chart = drawn(FAST, FAILED, SLOW)
    assert "load-in-workers 2.00 × (1.60 to 2.50), faster for certain" in chart
    assert "autocast 0.80 × (0.75 to 0.90), slower for certain" in chart
    assert chart.count("<title>predicted 1.67 ×</title>") == 1
    assert "compile-model" not in chart
    left, right = map(float, re.findall(r'<rect x="([\d.]+)" y="22.0" width="([\d.]+)"', chart)[0])
    one = float(re.search(r'<polyline points="([\d.]+),22.0 ', chart)[1])
    assert left + right / 2 == pytest.approx(one, abs=0.2)  # the noise of 5 % lies around 1 ×


def test_only_a_gain_with_the_same_losses_is_one():
    assert verdict(FAST) == "gain"
    assert verdict(replace(FAST, numerics="drifted")) == "drifted"
    assert verdict(replace(FAST, interval=(0.9, 1.1))) == "even"
    assert verdict(SLOW) == "loss"


def test_losses_are_overlaid(losses):
    chart = losses(replace(FAST, losses=((4.0, 2.0, 1.0), (4.0, 2.5, math.nan))), SLOW)
    assert chart.count("without a change") == 1  # since it is the same for both
    assert "load-in-workers: identical" in chart
    lines = re.findall(r'points="([^"]+)"', chart)
    assert len(lines) == 2 * 3  # the curves, and their samples in the legend
    assert [len(line.split()) for line in lines[::2]] == [3, 2, 3]  # what is no number is left out


def test_losses_that_fall_far_have_a_logarithmic_axis(losses):
    def marks(*values):
        return re.findall(r">([\d.e+-]+)</text>", losses(replace(FAST, losses=(values, values))))

    assert marks(100.0, 10.0, 1.0)[:3] == ["1", "10", "100"]
    assert "1.5" in marks(2.3, 1.0, 0.5)
    assert "50" in marks(100.0, 1.0, -1.0)


def test_without_a_measured_trial_or_a_loss_nothing_is_drawn(drawn, losses):
    assert drawn(FAILED) == ""
    assert losses(replace(FAST, losses=((), ()))) == ""


def test_what_was_run_has_a_name():
    assert [trial_name(replace(FAST, kind=kind)) for kind in ("single", "combination", "without")] == [
        "load-in-workers", "together", "together, without load-in-workers",
    ]  # fmt: skip


def test_the_json_keeps_a_hundred_losses_to_the_last_bit(forms):
    curve = tuple(1 / (3 + i) for i in range(150))
    written = to_dict(replace(forms["gaps"], trials=(replace(FAST, losses=(curve, curve)),)))["trials"][0]
    assert written["losses"] == [list(curve[:100])] * 2
