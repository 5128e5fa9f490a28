"""The charts of the trials: a reader can add up where each mark stands."""

import math
from dataclasses import replace

import pytest

from diagnose.model.diagnosis import Trial
from diagnose.reports.json import to_dict
from diagnose.reports.trial_charts import trial_data, trial_name, verdict

FAST = Trial(
    "load-in-workers", (20.0, 20.0), (10.0, 10.0), 2.0, (1.6, 2.5), "identical", predicted_ms=12.0, noise=0.05,
    losses=((4.0, 2.0, 1.0), (4.0, 2.0, 1.0)),
)  # fmt: skip
SLOW = replace(FAST, id="autocast", step_ms=(25.0,), speed_up=0.8, interval=(0.75, 0.9), predicted_ms=None, noise=0.02)
FAILED = Trial("compile-model", (), (), 1.0, (0.0, 0.0), "unknown", failure="It crashed.")


@pytest.fixture
def drawn(forms):
    return lambda *trials: trial_data(replace(forms["gaps"], trials=trials))


def test_a_step_stands_within_its_interval_and_beside_the_one_predicted(drawn):
    data = drawn(FAST, FAILED, SLOW)
    assert data["names"] == ["load-in-workers", "autocast"]
    assert (data["baseline"], data["noise"]) == (20.0, 0.05)
    gain, loss = data["groups"]
    assert gain["items"] == [(0, 10.0, 2.0, 2.5, 2.0)]  # from 8.0 to 12.5 ms
    assert loss["items"][0][:2] == (1, 25.0)
    assert data["predicted"] == [[0, 12.0]]


def test_only_a_gain_with_the_same_losses_is_one():
    assert verdict(FAST) == "gain"
    assert verdict(replace(FAST, numerics="drifted")) == "drifted"
    assert verdict(replace(FAST, interval=(0.9, 1.1))) == "even"
    assert verdict(SLOW) == "loss"


def test_losses_are_overlaid_and_their_distance_is_relative(drawn):
    losses = drawn(replace(FAST, losses=((4.0, 2.0, 1.0), (4.0, 2.5, math.nan))), SLOW)["losses"]
    assert losses["unchanged"] == [[4.0, 2.0, 1.0]]  # once, since it is the same for both
    assert losses["curves"][0]["y"] == [4.0, 2.5, None]
    assert losses["curves"][0]["distance"] == [None, 0.25, None]
    assert losses["curves"][1]["distance"] == [None, None, None]


def test_losses_that_fall_far_have_a_logarithmic_axis(drawn):
    def is_log(*values):
        return drawn(replace(FAST, losses=(values, values)))["losses"]["log"]

    assert is_log(100.0, 10.0, 1.0)
    assert not is_log(2.3, 1.0, 0.5)
    assert not is_log(100.0, 1.0, -1.0)


def test_without_a_measured_trial_or_a_loss_nothing_is_drawn(drawn):
    assert drawn(FAILED) is None
    assert drawn(replace(FAST, losses=((), ())))["losses"] is None


def test_what_was_run_has_a_name():
    assert [trial_name(replace(FAST, kind=kind)) for kind in ("single", "combination", "without")] == [
        "load-in-workers", "together", "together, without load-in-workers",
    ]  # fmt: skip


def test_the_json_keeps_a_hundred_losses_to_the_last_bit(forms):
    curve = tuple(1 / (3 + i) for i in range(150))
    written = to_dict(replace(forms["gaps"], trials=(replace(FAST, losses=(curve, curve)),)))["trials"][0]
    assert written["losses"] == [list(curve[:100])] * 2
