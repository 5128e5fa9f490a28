"""Runs that are alive at once, as ``diagnose prove`` has them: each in a copy of its own, and none is left."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from diagnose.trials.by_turns import NoTurnsError, by_turns
from diagnose.trials.candidates import Candidate
from diagnose.trials.guard import why_not_isolated
from diagnose.trials.runs import Command, Runner
from diagnose.trials.turn_process import start_all

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the kernel's name for a peer, and /proc"),
    pytest.mark.slow,
    pytest.mark.timeout(150),
]

PATIENCE_S = 120

# Every process of it writes to the same names, has a port of its own choice and a helper in a group of its own.
SCRIPT = textwrap.dedent("""
    import os, socket, subprocess, sys, tempfile
    from pathlib import Path
    import torch

    helper = subprocess.Popen(["sleep", "300"], start_new_session=True)
    with open(PIDS, "a") as pids:
        pids.write(f"{os.getpid()} {helper.pid}\\n")
    own = str(os.getpid())
    Path("best.pt").write_text(own)
    Path(tempfile.gettempdir(), "lock").touch(exist_ok=False)
    Path.home().joinpath("state").write_text(own)
    if ISOLATED:
        server = socket.create_server(("127.0.0.1", 29512))
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        assert Path("best.pt").read_text() == own == Path.home().joinpath("state").read_text()
""")


@pytest.fixture
def project(tmp_path):
    """Return the folder of the script, and a function that writes it for some steps."""
    folder = tmp_path / "project"
    for each in (folder, tmp_path / "runs"):
        each.mkdir()
    (folder / "best.pt").write_text("mine")

    def write(steps=10_000_000):
        names = {"PIDS": repr(str(tmp_path / "runs" / "pids")), "ISOLATED": str(not why_not_isolated())}
        text = SCRIPT.replace("STEPS", str(steps))
        for name, value in names.items():
            text = text.replace(name, value)
        (folder / "train.py").write_text(text)
        return folder

    return write


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(true):
    limit = time.monotonic() + PATIENCE_S
    while not true() and time.monotonic() < limit:
        time.sleep(0.05)
    return true()


def pids_of(folder):
    return (folder / "pids").read_text().split()


def test_each_has_a_copy_a_home_and_temporary_files_of_its_own(project, tmp_path):
    runner = Runner(Command(("train.py",), project()), tmp_path / "runs")
    forms = {number: runner.live(number, ids, timeout_s=PATIENCE_S) for number, ids in enumerate([(), (), ("sham",)])}
    try:
        assert start_all(forms) == {}
        for _ in range(3):
            for form in forms.values():
                assert form.block(0.02).step_ns
        results = [form.end() for form in forms.values()]
        again = runner.live(1, (), timeout_s=PATIENCE_S)  # in a copy that was used before
        forms[3] = again
        assert start_all({3: again}) == {}
        results.append(again.end())
    finally:
        for form in forms.values():
            form.kill()
        runner.close()
    assert [run.failure for run in results[:3]] == ["", "", ""]
    assert all(run.losses for run in results)
    assert len(pids_of(tmp_path / "runs")) == 8
    assert not any(map(is_alive, pids_of(tmp_path / "runs")))
    assert runner.changed == ""
    assert (tmp_path / "project" / "best.pt").read_text() == "mine"
    assert sorted(path.name for path in (tmp_path / "project").iterdir()) == ["best.pt", "train.py"]
    assert not [path for path in (tmp_path / "runs").iterdir() if path.name.startswith("cwd")]
    assert str(tmp_path / "runs" / "cwd") not in "".join(
        path.read_text() for path in (tmp_path / "runs").glob("run-*/output.log")
    )


def test_a_script_without_turns_left_is_measured_in_sequence(project, tmp_path):
    runner = Runner(Command(("train.py",), project(steps=40)), tmp_path / "runs")
    said = []
    try:
        with pytest.raises(NoTurnsError, match="follow one another"):
            by_turns(runner, [Candidate("sham", "Sham")], 600.0, said.append)
    finally:
        runner.close()
    assert not any(map(is_alive, pids_of(tmp_path / "runs")))


PROVES = """
    import signal
    from pathlib import Path
    from diagnose.trials.by_turns import NoTurnsError, by_turns
    from diagnose.trials.candidates import Candidate
    from diagnose.trials.limits import limits_of
    from diagnose.trials.launch import EndedBySignal, ended_by_signals, run_folder
    from diagnose.trials.runs import Command, Runner

    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job ignores
    try:
        with ended_by_signals(), run_folder() as private:
            limits = limits_of(private, private, [Path({runs!r})])
            runner = Runner(Command(("train.py",), Path({project!r})), private, private=private, limits=limits)
            result = by_turns(runner, [Candidate("sham", "Sham")], 600.0, lambda text: print(text, flush=True))
            print(result.interrupted, [trial.id for trial in result.trials])
    except EndedBySignal as ended:
        raise SystemExit(ended.exit_code)
"""


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.full),
        (signal.SIGKILL, -9),
        pytest.param(signal.SIGINT, 0, marks=pytest.mark.full),
    ],
)
def test_a_prove_that_is_ended_leaves_no_live_run_and_no_folder(project, tmp_path, number, code):
    folder, temporary = project(), tmp_path / "tmp"
    temporary.mkdir()
    text = textwrap.dedent(PROVES).format(runs=str(tmp_path / "runs"), project=str(folder))
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen([sys.executable, "-c", text], env=environment, stdout=subprocess.PIPE, text=True) as proving:
        assert "and with sham" in proving.stdout.readline()
        assert "of 1 decided" in proving.stdout.readline()  # three forms are alive, of which two are stopped
        assert sum(map(is_alive, pids_of(tmp_path / "runs"))) == 6
        proving.send_signal(number)
        said = proving.stdout.read()
        assert proving.wait(PATIENCE_S) == code
    assert ("True ['sham']" in said) == (number == signal.SIGINT)  # what is known then is the result
    assert wait_until(lambda: not any(map(is_alive, pids_of(tmp_path / "runs"))))
    assert wait_until(lambda: list(temporary.iterdir()) == [])
    assert (folder / "best.pt").read_text() == "mine"
