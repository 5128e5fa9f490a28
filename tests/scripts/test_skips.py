"""What CI makes of a run's skipped tests, and of results that were never written."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "skips.py"
NO_RESULTS = "results.xml holds no results: pytest ended before it wrote them, so skipped tests are not known\n"


@pytest.fixture
def judged(tmp_path):
    def judged(text=None):
        path = tmp_path / "results.xml"
        if text is not None:
            path.write_text(text)
        done = subprocess.run([sys.executable, SCRIPT, path], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    return judged


def results(reason):
    skipped = f'<skipped message="{reason}"/>' if reason else ""
    return f'<testsuites><testsuite><testcase classname="a" name="b">{skipped}</testcase></testsuite></testsuites>'


@pytest.mark.parametrize("reason", ["", "needs a GPU", "no CUDA device"])
def test_only_a_missing_gpu_excuses_a_skip(judged, reason):
    assert judged(results(reason)) == (0, "no wanted test was skipped\n", "")


def test_any_other_skip_is_named(judged):
    assert judged(results("no compiler")) == (1, "skipped, but should have run:\na.b: no compiler\n", "")


@pytest.mark.parametrize("text", [None, "", "<testsuites><testsuite>"])
def test_results_that_pytest_did_not_write_are_one_sentence(judged, text):
    assert judged(text) == (1, NO_RESULTS, "")
