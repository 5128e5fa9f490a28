"""Scripts that cannot be traced, through the real command: one sentence, the right exit code, nothing overwritten."""

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

LOOP = """
import sys, os, time, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps):
    for step in range(steps):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def sentences(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("diagnose: error: ")]


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("raise ValueError('no such data set')", 1, "raised ValueError before its first step"),
        ("import sys; sys.exit(7)", 7, "exited with code 7"),
        pytest.param("import sys; sys.exit('no data')", 1, "exited with code 1", marks=pytest.mark.full),
        ("import argparse; p = argparse.ArgumentParser(); p.add_argument('data'); p.parse_args()", 2, "arguments"),
        ("import os; os._exit(3)", 3, "ended with exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", 137, "was ended by SIGKILL"),
        ("x = 1", 5, "never imported torch"),
        ("x = (", 1, "raised SyntaxError"),
        # What these two end with every day, without the command around them: tests/capture/test_steps.py.
        pytest.param("import torch; torch.ones(2) + 1", 5, "diagnose.step()", marks=pytest.mark.full),
        pytest.param(LOOP + "train(3)", 5, "finished after", marks=pytest.mark.full),
        pytest.param(
            LOOP + "train(5); raise RuntimeError('lost')", 1, "raised RuntimeError after", marks=pytest.mark.full
        ),
    ],
)
def test_a_script_that_gives_no_step_is_one_sentence(diagnose, script, tmp_path, body, code, said):
    script(body)
    done = diagnose("trace", "train.py")
    assert done.returncode == code
    assert [said in line for line in sentences(done)] == [True], done.stderr
    assert done.stdout == ""
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith("__pycache__")] == ["train.py"]


def test_the_script_s_own_traceback_is_python_s(diagnose, script):
    path = script("def f():\n    raise ValueError('no such data set')\nf()\n")
    traced = diagnose("trace", "--quiet", path)
    plain = subprocess.run([sys.executable, path], check=False, capture_output=True, text=True, cwd=path.parent)
    shown = traced.stderr.splitlines()
    assert shown[: len(plain.stderr.splitlines())] == plain.stderr.splitlines()
    assert len(shown) == len(plain.stderr.splitlines()) + 1


def test_a_missing_module_is_one_sentence(diagnose):
    done = diagnose("trace", "-m", "there_is_no_such_module")
    assert done.returncode == 1
    assert len(sentences(done)) == 1
    assert "there_is_no_such_module" in done.stderr


def test_a_report_that_exists_is_refused_before_the_script_runs(diagnose, script, tmp_path):
    script("raise SystemExit('it ran')")
    (tmp_path / "report.html").write_text("mine")
    done = diagnose("trace", "--html", "report.html", "train.py")
    assert done.returncode == 6
    assert "it ran" not in done.stderr
    assert (tmp_path / "report.html").read_text() == "mine"


def test_a_capture_that_exists_is_refused_before_the_script_runs(diagnose, script, tmp_path):
    script("raise SystemExit('it ran')")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "notes.txt").write_text("mine")
    done = diagnose("trace", "--capture", "old", "train.py")
    assert done.returncode == 6
    assert "it ran" not in done.stderr
    forced = diagnose("trace", "--capture", "old", "--force", "train.py")
    assert forced.returncode == 1
    assert (tmp_path / "old" / "notes.txt").read_text() == "mine"


def test_arguments_and_streams_are_the_script_s(diagnose, script):
    script("import sys; print(sys.argv, sys.stdin.read()); print('warned', file=sys.stderr); sys.exit(4)")
    done = diagnose("trace", "--quiet", "train.py", "--json", "--", "-m", "x", input="typed")
    assert done.stdout == "['train.py', '--json', '--', '-m', 'x'] typed\n"
    assert done.stderr.splitlines()[0] == "warned"
    assert done.returncode == 4


def test_a_script_that_is_told_to_stop_ends_and_says_so(script, tmp_path):
    os.mkfifo(tmp_path / "ready")
    script("import signal; open('ready', 'w').close(); signal.pause()")
    command = [sys.executable, "-m", "diagnose", "trace", "train.py"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True, env=dict(os.environ)
    )
    (tmp_path / "ready").open().close()  # waits for the script
    process.send_signal(signal.SIGINT)
    _, shown = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Traceback" not in shown
    assert "interrupted" in shown
