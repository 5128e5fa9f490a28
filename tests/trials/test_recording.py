"""What is said of a script that could not be traced before the trials."""

from types import SimpleNamespace

import pytest

from diagnose.errors import CaptureError
from diagnose.text.progress import Progress
from diagnose.trials.measuring import TrialResult
from diagnose.trials.runs import Command, Runner, record

NOT_FOUND = "import os, sys\nif os.getcwd() != {cwd!r}:\n    print('data not found')\n    sys.exit(1)\n"
OFFER = "It ran in a copy of the working folder; if it works in the original folder, run it there with --cwd-mode same"


def failing(failure, *, cwd_mode="copy", wall_s=1.0):
    """Return as much of a runner as is asked, whose runs fail."""
    run = TrialResult(failure=failure, wall_s=wall_s)
    return SimpleNamespace(
        cwd_mode=cwd_mode, last_log=None, command=SimpleNamespace(text="python train.py"), trace=lambda *_, **__: run
    )


def sentence(runner, tmp_path, ids=()):
    with pytest.raises(CaptureError) as caught:
        record(runner, ids, tmp_path / "runs" / "capture", 60, Progress(quiet=True))
    return str(caught.value)


@pytest.mark.parametrize(
    "failure",
    [
        "No step was captured: the script exited with code 1 before its first steps were over.",
        "The script raised FileNotFoundError: data.bin.",
        "The run was killed by signal 9.",
        "No step was captured: the script finished after 0 steps.",
    ],
)
def test_whatever_fails_in_the_copy_is_offered_the_working_folder_itself(failure, tmp_path):
    assert sentence(failing(failure), tmp_path).startswith(f"{failure} {OFFER}")
    assert sentence(failing(failure, cwd_mode="same"), tmp_path) == failure


def test_nothing_is_offered_to_a_run_that_was_cut_off_or_had_changes(tmp_path):
    assert OFFER not in sentence(failing("It took longer.", wall_s=60.0), tmp_path)
    assert OFFER not in sentence(failing("The script raised ValueError."), tmp_path, ["autocast"])


def test_a_script_that_misses_its_data_in_the_copy_and_exits_is_offered_it(tmp_path, capsys):
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(NOT_FOUND.format(cwd=str(project)))
    runner = Runner(Command(("train.py",), project), tmp_path / "runs")
    try:
        assert OFFER in sentence(runner, tmp_path)
    finally:
        runner.close()
    assert "data not found" in capsys.readouterr().err
