"""The real command in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from diagnose.cli.main import run as run_command

Command = Callable[..., subprocess.CompletedProcess[str]]
LIMIT_S = 300
LAUNCHER = (sys.executable, "-m", "diagnose")
FEW_RUNS = (
    "from functools import partial\n"
    "from diagnose.trials import by_turns\n"
    "by_turns.TurnSchedule = partial(by_turns.TurnSchedule, rounds_s=4.0, long_s=1e9)\n"
    "from diagnose.cli.main import main\n"
    "main()"
)


@pytest.fixture
def diagnose(tmp_path: Path) -> Command:
    """Return a function that runs ``diagnose ARGS…`` in an empty folder and returns what came of it."""
    environment = {name: value for name, value in os.environ.items() if name not in {"RANK", "WORLD_SIZE"}}

    def run(*args: object, launcher: Sequence[str] = LAUNCHER, **options: object) -> subprocess.CompletedProcess[str]:
        command = [*launcher, *map(str, args)]
        settings = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "timeout": LIMIT_S}
        return subprocess.run(command, check=False, **(settings | options))

    return run


@pytest.fixture
def within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that does the same in the process of the tests: for what starting a process adds nothing to."""
    monkeypatch.chdir(tmp_path)

    def run(*args: object) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        code = run_command([str(arg) for arg in args])
        return subprocess.CompletedProcess(args, code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def few_runs() -> Sequence[str]:
    """Return what starts ``diagnose`` with trials of few rounds, however their times fall."""
    return (sys.executable, "-c", FEW_RUNS)


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a script."""

    def write(text: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write
