"""Checks that need several ranks: they run once, in real gloo processes, and each is a test of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
SECONDS = 600  # for all checks; a collective gives up long before


class Checks:
    """Runs the asked checks in one process, which forks the ranks, the first time that one of them is wanted."""

    def __init__(self, folder, asked):
        self.folder, self.asked, self.failure = folder, asked, None

    def outcomes(self, num_ranks):
        """Return the folder of the checks of so many ranks, and the exit codes of these or what was printed."""
        if self.failure is None:
            self.failure = self._run()
        found = self.folder / f"{num_ranks}" / "codes.json"
        return found.parent, json.loads(found.read_text()) if found.exists() else [self.failure]

    def _run(self):
        names = {}
        for file, name, num_ranks in sorted(self.asked):
            names.setdefault(num_ranks, {}).setdefault(str(FOLDER / f"{file}.py"), []).append(name)
        log = self.folder / "log"
        with log.open("wb") as printed:
            worker = subprocess.Popen(
                [sys.executable, str(FOLDER / "worker.py"), str(self.folder), json.dumps(names)],
                stdout=printed,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        try:
            worker.wait(SECONDS)
        except subprocess.TimeoutExpired:
            return "did not end in time"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        return log.read_text()[-3000:]


@pytest.fixture(scope="session")
def checks(tmp_path_factory, request):
    """Return the object that runs checks on several ranks: those that this session asks about."""
    asked = [item.callspec.params for item in request.session.items if "assert_check" in item.fixturenames]
    return Checks(tmp_path_factory.mktemp("ranks"), {(p["file"], p["name"], p["num_ranks"]) for p in asked})


@pytest.fixture
def assert_check(checks):
    """Return the function that fails unless a check passed on every rank."""

    def passed(file, name, num_ranks):
        shared, codes = checks.outcomes(num_ranks)
        for rank in range(num_ranks):
            result = shared / f"rank{rank}" / f"{file}.{name}.json"
            written = shared / f"log{rank}"
            log = written.read_text(encoding="utf-8", errors="replace")[-3000:] if written.exists() else ""
            assert result.exists(), f"rank {rank} never finished {name}; exit codes {codes}\n{log}"
            text = json.loads(result.read_text(encoding="utf-8"))
            assert not text, f"rank {rank} of {num_ranks}:\n{text}"
        assert codes == [0] * num_ranks, f"exit codes {codes}\n{log}"

    return passed
