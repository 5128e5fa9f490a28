"""A standard input that was closed before the command began: one sentence, whichever command would read it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("analyze", "-"), "Standard input is closed. Pipe a trace into it"),
        (("prove", "train.py"), "--yes"),
    ],
)
def test_a_closed_standard_input_is_one_sentence(tmp_path, args, sentence):
    (tmp_path / "train.py").write_text("x = 1\n")
    command = 'exec "$@" <&-'
    run = ["sh", "-c", command, "sh", sys.executable, "-m", "diagnose", *args]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert done.stdout == ""
    errors = [line for line in done.stderr.splitlines() if line.startswith("diagnose: error: ")]
    assert len(errors) == 1, done.stderr
    assert sentence in errors[0]
    assert "internal error" not in done.stderr
    assert "Traceback" not in done.stderr
