"""Checks that need several ranks: a file of them runs once in real gloo processes, and each is a test of its own."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
SECONDS = 120  # for all checks of a file


class Checks:
    """Runs the checks of a file the first time that one is asked about."""

    def __init__(self, folder):
        self.folder, self.reports = folder, {}

    def outcomes(self, file, num_ranks):
        key = (file, num_ranks)
        if key not in self.reports:
            self.reports[key] = self._run(file, num_ranks)
        return self.reports[key]

    def _run(self, file, num_ranks):
        shared = self.folder / f"{file}-{num_ranks}"
        shared.mkdir()
        logs = [(shared / f"log{rank}").open("wb") for rank in range(num_ranks)]
        ranks = [
            subprocess.Popen(
                [
                    sys.executable,
                    str(FOLDER / "worker.py"),
                    str(FOLDER / f"{file}.py"),
                    f"{rank}",
                    f"{num_ranks}",
                    shared,
                ],
                stdout=logs[rank],
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for rank in range(num_ranks)
        ]
        try:
            end = time.monotonic() + SECONDS
            codes = [rank.wait(max(0.1, end - time.monotonic())) for rank in ranks]
        except subprocess.TimeoutExpired:
            codes = ["did not end in time"] * num_ranks
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
            for log in logs:
                log.close()
        return shared, codes


@pytest.fixture(scope="session")
def checks(tmp_path_factory):
    """Return the object that runs files of checks on several ranks."""
    return Checks(tmp_path_factory.mktemp("ranks"))


@pytest.fixture
def assert_check(checks):
    """Return the function that fails unless a check passed on every rank."""

    def passed(file, name, num_ranks):
        shared, codes = checks.outcomes(file, num_ranks)
        for rank in range(num_ranks):
            result = shared / f"rank{rank}" / f"{name}.json"
            log = (shared / f"log{rank}").read_text(encoding="utf-8", errors="replace")[-3000:]
            assert result.exists(), f"rank {rank} never finished {name}; exit codes {codes}\n{log}"
            text = json.loads(result.read_text(encoding="utf-8"))
            assert not text, f"rank {rank} of {num_ranks}:\n{text}"
        assert codes == [0] * num_ranks, f"exit codes {codes}\n{log}"

    return passed
