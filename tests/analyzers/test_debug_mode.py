"""debug-mode: what autograd's anomaly detection costs. Times in µs.

In `late` the device is idle from 300 to 700, and the launch that ends this begins at 690.
"""

import pytest

PARTS = ("aten::isnan", "aten::_is_any_true", "aten::item")


def checked(late, names=PARTS):
    """Fill the gap with a function of the backward pass and the check of its gradient."""
    late.op("autograd::engine::evaluate_function: MmBackward0", 300, 400)
    for number, name in enumerate(names):
        late.op(name, 410 + 30 * number, 435 + 30 * number)
    return late


def test_idle_under_the_checks_is_theirs(late):
    checked(late)
    assert late.booked() == {"debug-mode": 400_000}
    finding = late.find("debug-mode")
    assert finding.title.startswith("Anomaly detection is on")
    assert finding.evidence[1] == "1 check a step, each read back by the host: 0.1 ms of the step."


def test_a_read_of_one_value_is_no_check(late):
    checked(late, names=("aten::sum", "aten::any", "aten::item"))
    assert "debug-mode" not in late.booked()


def test_a_script_that_looks_at_few_gradients_checks_none(late):
    for number in range(3):
        late.op("autograd::engine::evaluate_function: AddBackward0", 600 + 10 * number, 605 + 10 * number)
    checked(late)
    assert "debug-mode" not in late.booked()


def test_without_a_device_the_checks_alone_are_its_time(recording):
    made = recording()
    made.step(1, 0, 1000)
    checked(made)
    assert made.booked()["debug-mode"] == 75_000


def test_turning_it_off_is_prescribed(late):
    (prescription,) = checked(late).prescribe("debug-mode")
    assert (prescription.id, prescription.safety) == ("no-debug-checks", "same numbers")
    assert prescription.title == "Leave autograd's anomaly detection off"
    assert prescription.saves_ns[1] == pytest.approx(0.36e6, rel=0.15)


def test_blocking_launches_are_named_by_the_setting(late):
    late.with_info(flags={"cuda_launch_blocking": True})
    assert late.find("debug-mode").title == "CUDA_LAUNCH_BLOCKING is set: each launch waits for its kernel"
    assert late.prescribe("debug-mode")[0].title == "Remove CUDA_LAUNCH_BLOCKING from the environment"


def test_without_a_device_so_is_recording_a_stack_for_each_function(recording):
    made = recording(devices=())
    made.step(1, 0, 1000)
    made.op("aten::mul", 0, 100, sequence=4)
    made.op("aten::detach", 100, 130, sequence=5)  # leaves no function behind: the next one has the same number
    made.op("aten::linear", 130, 170, sequence=5)
    made.op("aten::sum", 170, 200, sequence=7)
    checked(made)
    made.with_info(stack_ns=30_000)
    assert made.booked()["debug-mode"] == 75_000 + 30_000 + 40_000  # of two functions no more than the operator takes
    assert made.find("debug-mode").evidence[-1] == "Recording the stacks of operators takes 70.0 µs of the step."


def test_the_line_that_turns_it_on_comes_first_and_is_edited(late):
    line = "torch.autograd.set_detect_anomaly(True)"
    call = {
        "name": "set_detect_anomaly", "file": "train.py", "first": 3, "lines": ["import torch", line],
        "begin": [4, 0], "end": [4, len(line)], "parameters": ["mode", "check_nan"],
    }  # fmt: skip
    checked(late).with_info(flags={"anomaly": call})
    place = late.find("debug-mode").where[0]
    assert (place.file, place.line, place.code) == ("train.py", 4, line)
    (prescription,) = late.prescribe("debug-mode")
    assert "+torch.autograd.set_detect_anomaly(False)" in prescription.diff
    assert not prescription.needs
