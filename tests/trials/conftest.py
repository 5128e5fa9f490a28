"""A user's home that runs of trials are started from."""

import pytest

from diagnose.trials.guard import why_not_isolated
from diagnose.trials.runs import Command, Runner


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    """Let backups, which a system without Landlock makes before a run, go to the test's folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def isolated():
    if why_not_isolated():
        pytest.skip(f"this system cannot isolate a run: {why_not_isolated()}")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Return a user's home with keys, results, caches, and hidden links and variables that lead out of it."""
    found = tmp_path / "home"
    for name in (
        ".ssh/key",
        ".local/share/best.pt",
        ".cache/torch/weights.pt",
        ".cache/other/x",
        ".models/key",
        "project/x",
    ):
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).write_text("mine")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("mine")
    (found / ".datasets").symlink_to("../data")
    (found / ".root").symlink_to("/")
    (found / "tmp").mkdir()
    (found / "tmp" / "x").write_text("mine")
    for name, value in {"HOME": "", "TMPDIR": "tmp", "XDG_DATA_HOME": ".local/share", "HF_HOME": ".models"}.items():
        monkeypatch.setenv(name, str(found / value))
    return found


@pytest.fixture
def run_at_home(tmp_path, home):
    """Return a function that runs the text of a script once; it returns the runner, the result and what was printed."""

    def once(text, **options):
        (home / "project" / "train.py").write_text(text)
        runner = Runner(Command(("train.py",), home / "project"), tmp_path / "runs", **options)
        result = runner.time((), timeout_s=60)
        return runner, result, runner.last_log.read_text()

    return once
