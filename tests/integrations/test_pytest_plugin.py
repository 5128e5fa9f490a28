"""The fixture ``step_budget``, with a clock of the test's, and as pytest loads it from the installed package."""

import html
import subprocess
import sys

import pytest

from diagnose.integrations.pytest_plugin import StepBudget

torch = pytest.importorskip("torch")


class Clock:
    """Each step takes 10 ms."""

    now = 0.0

    def __call__(self):
        self.now += 0.010
        return self.now


@pytest.fixture
def step():
    layer = torch.nn.Linear(4, 4)
    return lambda: layer(torch.ones(2, 4)).sum().backward()


def test_a_step_within_its_budget_returns_its_time(tmp_path, step):
    assert StepBudget(tmp_path, Clock())(step, max_ms=10.5) == pytest.approx(10)
    assert list(tmp_path.iterdir()) == []


def test_a_step_above_its_budget_fails_with_a_diagnosis(tmp_path, step):
    with pytest.raises(pytest.fail.Exception) as failed:
        StepBudget(tmp_path, Clock())(step, max_ms=9.5)
    first, *rest = str(failed.value).splitlines()
    over, _, headline = first.partition(" budget of 9.5 ms. ")
    assert over == "A step takes 10 ms, above its"
    assert rest[-1] == f"Report: {tmp_path / 'step_budget.html'}"
    page = html.unescape((tmp_path / "step_budget.html").read_text(encoding="utf-8")).replace("\u00a0", " ")
    assert f"<h1>{headline}</h1>" in page


def test_pytest_has_the_fixture_wherever_diagnose_is_installed(tmp_path):
    command = [sys.executable, "-m", "pytest", "--fixtures", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    assert "step_budget -- " in shown
