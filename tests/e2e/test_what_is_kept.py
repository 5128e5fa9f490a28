"""A script that fails after steps were captured: they are diagnosed, and the exit code stays the script's."""

import json
import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

LOOP = """
import os, pathlib, sys, torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({steps}):
    model(torch.randn(32, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step)
"""
SMALL = ("--skip", "2", "--steps", "4")


@pytest.mark.parametrize(
    ("end", "code", "ended"),
    [
        ("raise ValueError('too late')", 1, "raised"),
        pytest.param("sys.exit(9)", 9, "finished", marks=pytest.mark.full),
        pytest.param("os.kill(os.getpid(), 9)", 137, "killed", marks=pytest.mark.full),
        pytest.param("os._exit(11)", 11, "killed", marks=pytest.mark.full),
    ],
)
def test_what_was_captured_is_diagnosed(diagnose, script, tmp_path, end, code, ended):
    script(LOOP.format(steps=80) + end)
    done = diagnose("trace", "--keep-going", *SMALL, "--json", "-o", "report.json", "--capture", "capture", "train.py")
    assert (done.returncode, bool(done.stdout)) == (code, True), done.stderr
    diagnosis = json.loads(done.stdout)
    assert diagnosis == json.loads((tmp_path / "report.json").read_text())
    assert diagnosis["steps"] >= 1  # a machine under load can make the others unlike it
    assert "79\n" in done.stderr  # with --json the script's own output stands aside
    (folder,) = tmp_path.glob("capture*")
    info = json.loads((folder / "capture.json").read_text())
    assert (info["ended"], len(info["light_ms"])) == (ended, 4)


@pytest.mark.full  # every day: two interrupts, in tests/faults
def test_an_interrupt_keeps_what_was_captured(script, tmp_path):
    os.mkfifo(tmp_path / "ready")
    script(LOOP.format(steps=80) + "open('ready', 'w').close(); import signal; signal.pause()")
    command = [sys.executable, "-m", "diagnose", "trace", "--keep-going", *SMALL, "train.py"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    (tmp_path / "ready").open().close()  # waits for the script
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does
    shown, said = process.communicate(timeout=300)
    assert process.returncode == 130, said
    assert "CPU only  " in shown or "No diagnosis  " in shown
    assert "Traceback" not in said
    assert len(list(tmp_path.glob("diagnose-report-*.html"))) == 1
    assert len(list(tmp_path.glob("diagnose-capture-*/capture.json"))) == 1


def test_a_script_is_stopped_once_everything_is_captured(diagnose, script, tmp_path):
    script(LOOP.format(steps=100_000))
    done = diagnose("trace", *SMALL, "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0\n1\n")  # the script's own output stays where it was
    assert any(f"\n{pill}  " in done.stdout for pill in ("CPU only", "No diagnosis"))
    (page,) = tmp_path.glob("diagnose-report-*.html")
    (folder,) = tmp_path.glob("diagnose-capture-*")
    assert page.stem.removeprefix("diagnose-report") == folder.name.removeprefix("diagnose-capture")
    again = diagnose("analyze", folder.name, "--json", "--quiet")
    assert json.loads(again.stdout)["steps"] >= 1
    assert len(json.loads((folder / "capture.json").read_text())["light_ms"]) == 4


@pytest.mark.full
def test_steps_are_marked_by_hand_where_none_can_be_found(diagnose, script):
    script(
        "import diagnose, torch\nfor _ in range(100_000):\n    torch.ones(500, 500) @ torch.ones(500, 500)\n"
        "    diagnose.step()\n"
    )
    done = diagnose("trace", *SMALL, "--json", "--quiet", "train.py")
    assert done.returncode == 0, done.stderr
    diagnosis = json.loads(done.stdout)
    assert diagnosis["source"]["found_steps_by"] == "marker"
    assert any(operator["name"] == "aten::mm" for operator in diagnosis["operators"])
