"""Which tests run, in which process and in which order: conftest.py at the root and tests/scheduling.py."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.scheduling import DURATIONS, SHARED, idle_s, seconds_of, sorted_units, unit_of

TESTS = Path(__file__).parents[1]


def test_files_that_share_a_fixture_are_a_unit():
    assert unit_of("capture/test_steps.py") == unit_of("capture/test_privacy.py") == "captured"
    assert unit_of("analyzers/test_kernel_rules.py") == unit_of("pipeline/test_invariants.py") == "recorded"
    assert unit_of("reports/test_pages.py") == unit_of("reports/test_browser.py") == "browser"
    assert unit_of("text/test_masking.py") == "text/test_masking.py"


def test_a_shared_fixture_is_of_a_session():
    conftests = "".join(path.read_text() for path in (TESTS.parent / "conftest.py", *TESTS.rglob("conftest.py")))
    for name in SHARED:
        assert re.search(rf'@pytest.fixture\(scope="session"\)\ndef {name}\(', conftests), name


def test_what_took_longest_comes_first():
    units = ["text/test_masking.py", "recorded", "e2e/test_prove.py"]
    took = [seconds_of(unit) for unit in sorted_units(units)]
    assert took == sorted(took, reverse=True)
    assert took[0] > 10
    assert sorted_units(units, "text/test_masking.py".__eq__)[0] == "text/test_masking.py"


def test_durations_are_of_files_that_are_there():
    assert [name for name in json.loads(DURATIONS.read_text()) if not (TESTS / name).is_file()] == []


@pytest.mark.parametrize(
    ("units", "took"),
    [
        ([[5.0], [3.0], [1.0]], (6.0, 3.0)),  # the third is handed out at once, with the first
        ([[1.0] * 4, [1.0] * 4, [1.0, 1.0]], (6.0, 2.0)),  # the first process has two tests left as soon as the second
        ([[1.0], [1.0], [1.0], [6.0]], (7.0, 5.0)),  # one long file at the end
    ],
)
def test_a_schedule_ends_with_its_last_process(units, took):
    assert idle_s(units, 2) == took


class Item:
    """A test of a file, with marks."""

    def __init__(self, name, *marks):
        self.path, self.marks = TESTS / name, marks

    def get_closest_marker(self, name):
        return name if name in self.marks else None


def config(**options):
    known = {"markexpr": "", "full_of": [], "full_pick": 0, "pick_seed": "0"} | options
    return SimpleNamespace(args=["tests"], getoption=lambda name: known[name.removeprefix("--").replace("-", "_")])


@pytest.fixture
def everyday(request):
    """Return the function of the conftest at the root that leaves tests out."""
    plugins = request.config.pluginmanager.get_plugins()
    return next(plugin._everyday for plugin in plugins if hasattr(plugin, "_everyday"))


def test_full_tests_are_added_by_folder_and_by_number(everyday):
    plain, slow = Item("text/a.py"), Item("text/a.py", "slow")
    mutants, timed = Item("fuzz/b.py", "full"), Item("fuzz/b.py", "full", "timing")
    others = [Item(f"e2e/{name}.py", "full") for name in "cdef"]
    items = [plain, mutants, timed, slow, *others]
    assert everyday(config(), items) == [plain, slow]
    assert everyday(config(markexpr="full"), items) == [plain, mutants, slow, *others]
    assert everyday(config(full_of=["fuzz"]), items) == [plain, mutants, slow]
    drawn = everyday(config(full_of=["fuzz"], full_pick=3), items)
    assert drawn[:3] == [plain, mutants, slow]
    assert len(drawn) == 6
    assert everyday(config(full_of=["fuzz"], full_pick=3), items) == drawn
