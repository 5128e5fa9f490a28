"""``%load_ext diagnose`` and ``%%diagnose`` in a real shell of IPython."""

import pytest
from IPython.testing.globalipapp import start_ipython

import diagnose

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
SETUP = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
calls = 0
"""
STEP = """calls += 1
model(torch.ones(4, 8)).sum().backward()
optimizer.step()
"""


@pytest.fixture(scope="module")
def shell():
    found = start_ipython()
    found.run_line_magic("load_ext", "diagnose")
    found.run_cell(SETUP)
    return found


def test_the_cell_is_a_step_and_its_diagnosis_the_result(shell, tmp_path):
    page = tmp_path / "cell.html"
    diagnosis = shell.run_cell_magic("diagnose", f"--steps 3 --html {page}", STEP)
    assert isinstance(diagnosis, diagnose.Diagnosis)
    assert 1 <= diagnosis.steps <= 3  # load can make one unlike the others, which is then left out
    assert shell.user_ns["calls"] > 6  # some steps come before the recorded ones, in the notebook's own names
    assert page.exists()
    assert "<iframe" in diagnosis._repr_html_()


def test_a_wrong_option_is_one_sentence(shell):
    with pytest.raises(diagnose.UsageError, match=r"%%diagnose: argument --steps: invalid int value: 'x'"):
        shell.run_cell_magic("diagnose", "--steps x", STEP)


def test_the_package_shows_no_further_name(shell):
    assert dir(diagnose) == sorted(diagnose.__all__)
