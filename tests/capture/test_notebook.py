"""Capturing a loop or a function from Python."""

import json
import sys

import pytest

from diagnose.capture import CaptureOptions, Tracer, capture_steps
from diagnose.capture import step_marker as marker
from diagnose.capture.process.run import nothing_captured
from diagnose.capture.process.script import Outcome
from diagnose.errors import CaptureError, UsageError

INTERRUPTED = Outcome("interrupted", 130, KeyboardInterrupt())


@pytest.fixture(scope="module")
def step_fn():
    import torch

    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        model(torch.randn(4, 8)).mean().backward()
        optimizer.step()

    return step


def info(folder):
    return json.loads((folder / "capture.json").read_text())


def test_a_function_is_called_until_enough_is_captured(step_fn, tmp_path):
    folder = capture_steps(step_fn, steps=4, output=tmp_path / "capture")
    found = info(folder)
    assert (found["found_steps_by"], found["ended"]) == ("marker", "finished")
    assert (len(found["light_ms"]), len(found["attribution_ms"])) == (4, 2)
    assert found["optimizer"]["class"] == "SGD"


def test_a_quick_capture_has_one_window_without_stacks(step_fn, tmp_path):
    found = info(capture_steps(step_fn, quick=True, steps=4, output=tmp_path / "capture"))
    assert (len(found["light_ms"]), found["attribution_ms"], found["attribution_file"]) == (4, [], "")


def test_a_loop_of_one_s_own(step_fn, tmp_path):
    with Tracer(CaptureOptions(output=tmp_path / "capture", steps=3, skip=2)) as tracer:
        for _ in range(60):
            step_fn()
            tracer.step()
    assert tracer.done
    assert len(info(tracer.folder)["light_ms"]) == 3


def test_a_loop_that_ends_in_its_first_recorded_step_is_not_said_to_end_before(step_fn, tmp_path):
    tracer = Tracer(CaptureOptions(output=tmp_path / "capture", steps=3, skip=2))
    tracer.__enter__()
    early, late = [], []
    while not late:
        step_fn()
        tracer.step()
        session = tracer._session
        (late if session.plan.has_begun else early).append(str(nothing_captured(session, INTERRUPTED)))
    num, began = len(early), "No step was captured: it was interrupted after"
    assert early[-1].startswith(f"{began} {num} steps, before the capture began.")
    assert late[0].startswith(f"{began} {num + 1} steps, during the capture, before a whole step was recorded.")
    with pytest.raises(
        CaptureError, match=rf"the loop ended after {num + 1} steps, during the capture, before a whole"
    ):
        tracer.__exit__(None, None, None)


def run_loop(tracer, step_fn, num_steps, *, fail_at=None):
    with tracer:
        for number in range(num_steps):
            step_fn()
            tracer.step()
            if number == fail_at:
                raise ZeroDivisionError


def test_too_few_steps(step_fn, tmp_path):
    tracer = Tracer(CaptureOptions(output=tmp_path / "capture"))
    with pytest.raises(CaptureError, match="skip"):
        run_loop(tracer, step_fn, 3)
    assert list(tmp_path.iterdir()) == []


def test_an_exception_goes_on_and_keeps_what_there_is(step_fn, tmp_path):
    tracer = Tracer(CaptureOptions(output=tmp_path / "capture", steps=4, skip=2))
    with pytest.raises(ZeroDivisionError):
        run_loop(tracer, step_fn, 60, fail_at=13)
    assert info(tracer.folder)["ended"] == "raised"
    assert info(tracer.folder)["light_ms"]


def test_nothing_stays_hooked(step_fn, tmp_path):
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

    before = (Optimizer.__init__, DataLoader.__iter__)
    capture_steps(step_fn, steps=2, skip=2, output=tmp_path / "capture")
    assert (Optimizer.__init__, DataLoader.__iter__) == before
    assert marker._listener is None
    marker.step()


def test_bounds(step_fn, tmp_path):
    for wrong in ({"steps": 0}, {"skip": -1}, {"max_mb": 0}, {"max_seconds": -1}):
        with pytest.raises(UsageError):
            capture_steps(step_fn, output=tmp_path / "capture", **wrong)
    with pytest.raises(CaptureError, match="--max-seconds 1e-06"):
        capture_steps(step_fn, steps=40, output=tmp_path / "capture", max_seconds=1e-6)


def test_importing_needs_no_torch():
    import subprocess

    code = "import sys, diagnose, diagnose.capture; diagnose.step(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
