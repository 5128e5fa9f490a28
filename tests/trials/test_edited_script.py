"""Changes that no patch can make are made in the text that a trial runs; the user's file stays."""

import io
import sys

import pytest

from diagnose.changes.common.change import CannotApply, Log
from diagnose.errors import UsageError
from diagnose.trials.candidates import check_ids
from diagnose.trials.child import edited
from diagnose.trials.runs import Command, Runner

SCRIPT = """import torch

layer = torch.nn.Linear(2, 1)
batches = torch.utils.data.DataLoader(range(60))
total = 0.0
for _ in batches:
    loss = layer(torch.ones(1, 2)).square().mean()
    loss.backward()
    with torch.no_grad():
        layer.bias -= 0.1 * layer.bias.grad
    total += loss.item()
"""
AT = {"defer-sync": {"lines": [11], "device": "cpu"}}


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def opened(path):
    with io.open_code(str(path)) as file:
        return file.read().decode()


def test_whoever_opens_the_script_gets_it_with_the_change(script):
    log = Log()
    with edited([str(script)], ("defer-sync",), AT, log, module=False):
        text = opened(script)
        other = opened(__file__)
    assert "total = total + loss.detach()" in text
    assert "whoever_opens" in other
    assert script.read_text() == SCRIPT
    assert opened(script) == SCRIPT
    assert log.done == ["defer-sync, in the text of train.py"]


def test_what_cannot_be_made_is_the_trial_s_result(script):
    with (
        pytest.raises(CannotApply, match="defer-sync cannot be made: line 7 of the script"),
        edited([str(script)], ("defer-sync",), {"defer-sync": {"lines": [7]}}, Log(), module=False),
    ):
        pass
    with (
        pytest.raises(CannotApply, match="in the text of a script, and this is a module"),
        edited(["package"], ("defer-sync",), AT, Log(), module=True),
    ):
        pass


def test_other_changes_leave_the_text_alone(script):
    before = io.open_code
    with edited([str(script)], ("sham",), {}, Log(), module=False):
        assert io.open_code is before


def test_without_libcst_a_sentence(script, monkeypatch):
    monkeypatch.setitem(sys.modules, "libcst", None)
    with (
        pytest.raises(UsageError, match=r"pip install 'torch-diagnose\[patch\]'"),
        edited([str(script)], ("defer-sync",), AT, Log(), module=False),
    ):
        pass


def test_a_step_function_has_no_text():
    check_ids(["defer-sync"])
    with pytest.raises(UsageError, match="in the text of a script; run the script with diagnose prove"):
        check_ids(["defer-sync"], own_process=False)


def test_a_trial_runs_the_changed_text(script, tmp_path):
    (tmp_path / "runs").mkdir()
    runner = Runner(Command(("train.py",), tmp_path), tmp_path / "runs", cwd_mode="same", arguments=AT, timed=5)
    run = runner.time(("defer-sync",), timeout_s=120)
    assert (run.failure, run.applied) == ("", ("defer-sync, in the text of train.py",))
    assert len(run.step_ns) == 5
    assert script.read_text() == SCRIPT
