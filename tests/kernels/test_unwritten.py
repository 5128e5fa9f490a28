"""A process that could not write a checkpoint prints why and does not end with exit code 0."""

import io
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

from diagnose.kernels import _unwritten

WITH_TORCH = """
import atexit, sys
atexit.register(print, "registered before")
import torch
from diagnose.kernels.saving import BackgroundSaver
saver = BackgroundSaver()
atexit.register(print, "registered after")
saver.save({"w": torch.zeros(3)}, "missing/model.pt")
"""
FAILS = """
import atexit, sys
atexit.register(print, "registered before")
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from diagnose.kernels._unwritten import forget, watch
atexit.register(print, "registered after")
writing = ThreadPoolExecutor(1).submit(Path("missing/model.pt").touch)
watch(writing, Path("missing/model.pt"))
"""


def ended(source, cwd):
    """Run a script; return its exit code and what it printed."""
    (cwd / "train.py").write_text(source)
    command = [sys.executable, "train.py"]
    run = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=120)
    return run.returncode, run.stdout, run.stderr


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 120),
        ("del writing", 120),
        ("sys.exit(0)", 120),
        ("raise SystemExit", 120),
        ("try: sys.exit(3)\nexcept SystemExit as error: assert error.code == 3", 120),
        ("sys.exit(3)", 3),
        ("sys.exit('a reason')", 1),
        ("raise ValueError('its own')", 1),
        ("writing.result()", 1),
        ("atexit.register(writing.result)", 120),
    ],
)
def test_what_cannot_be_written_is_no_success(end, code, tmp_path):
    found, printed, error = ended(FAILS + end, tmp_path)
    assert found == code, error
    assert printed == "registered after\nregistered before\n"
    assert "missing/model.pt" in error


def test_the_sentence_names_the_file_and_why(tmp_path):
    found, _, error = ended(WITH_TORCH, tmp_path)
    assert found == 120
    (line,) = error.splitlines()
    assert line.startswith(f"BackgroundSaver could not write {tmp_path}/missing/model.pt: FileNotFoundError: ")


def test_what_was_raised_is_not_reported_again(tmp_path):
    caught = "try: saver.wait()\nexcept OSError: print('caught')\n"
    assert ended(WITH_TORCH + caught, tmp_path) == (0, "caught\nregistered after\nregistered before\n", "")


def test_functions_at_exit_find_the_file(tmp_path):
    source = (
        WITH_TORCH.replace("missing/model.pt", "model.pt").replace("torch.zeros(3)", "torch.zeros(1 << 22)")
        + "import os; atexit.register(lambda: print(os.path.exists('model.pt')))"
    )
    assert ended(source, tmp_path) == (0, "True\nregistered after\nregistered before\n", "")


PROCESSES = """
import multiprocessing, sys, threading, torch
from torch.utils.data import DataLoader
from diagnose.kernels.saving import BackgroundSaver

class Held:
    def __deepcopy__(self, _):
        return self

    def __reduce__(self):
        assert go_on.wait(100)
        return (int, ())

def fails(name):
    BackgroundSaver().save({}, name)

if __name__ == "__main__":
    go_on = threading.Event()
    with BackgroundSaver() as saver:
        saver.save(Held(), "held.pt")  # is on its way while processes are forked
        for _ in DataLoader(range(2), num_workers=1, multiprocessing_context="fork"): pass
        child = multiprocessing.get_context("fork").Process(target=saver.save, args=({}, "of_child.pt"))
        child.start(); child.join(); assert child.exitcode == 0
        go_on.set()
    for method in ("fork", "spawn"):
        child = multiprocessing.get_context(method).Process(target=fails, args=("missing/model.pt",))
        child.start(); child.join(); print(child.exitcode)
    torch.load("of_child.pt"); torch.load("held.pt", weights_only=False)
"""


def test_processes_that_it_starts_wait_for_their_own_files_only(tmp_path):
    code, printed, error = ended(PROCESSES, tmp_path)
    assert (code, printed) == (0, "1\n1\n"), error
    assert error.count("BackgroundSaver could not write") == 2


def test_a_file_that_is_not_waited_for_to_its_end_is_no_success(monkeypatch, capsys):
    class Interrupted(Future):
        def exception(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stderr", io.StringIO())
    _unwritten.watch(Interrupted(), Path("model.pt"))
    _unwritten._report()
    assert sys.stderr.getvalue() == "BackgroundSaver could not write model.pt: KeyboardInterrupt\n"
    sys.stderr.flush()
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    with pytest.raises(OSError, match="could not be written"):
        sys.stderr.flush()
