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
SECONDS = 300  # for all checks of as many ranks; a collective gives up long before


class Checks:
    """Runs the asked checks, all that need as many ranks together, the first time that one of them is wanted."""

    def __init__(self, folder, asked):
        self.folder, self.asked, self.reports = folder, asked, {}

    def outcomes(self, num_ranks):
        if num_ranks not in self.reports:
            self.reports[num_ranks] = self._run(num_ranks)
        return self.reports[num_ranks]

    def _run(self, num_ranks):
        shared = self.folder / f"{num_ranks}"
        shared.mkdir()
        names = {}
        for file, name, needed in sorted(self.asked):
            if needed == num_ranks:
                names.setdefault(str(FOLDER / f"{file}.py"), []).append(name)
        with (shared / "log").open("wb") as log:
            worker = subprocess.Popen(
                [sys.executable, str(FOLDER / "worker.py"), f"{num_ranks}", str(shared), json.dumps(names)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        try:
            worker.wait(SECONDS)
            found = shared / "codes.json"
            codes = json.loads(found.read_text()) if found.exists() else [(shared / "log").read_text()[-3000:]]
        except subprocess.TimeoutExpired:
            codes = ["did not end in time"] * num_ranks
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        return shared, codes


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
