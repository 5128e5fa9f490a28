"""Every command that answers from files, in a process of its own: what tests have imported already hides no import.

tests/conftest.py imports diagnose.api, which binds the reports to diagnoses; the commands must do without it.
"""

import json
from pathlib import Path

import pytest

CAPTURES = Path(__file__).parents[2] / "fixtures" / "captures"
ONE, OTHER = CAPTURES / "slow_dataset", CAPTURES / "gc_every_step"


@pytest.mark.parametrize(
    ("arguments", "codes"),
    [
        (("analyze", "--json", "--quiet", "--html", "report.html", ONE), (0,)),
        (("compare", "--json", ONE, OTHER), (0,)),
        (("gate", "--quiet", "--junit", "gate.xml", ONE, OTHER), (0, 3, 4, 7)),
        (("what-if", "--json", "--without", "data-stall", ONE), (0,)),
    ],
    ids=lambda value: value[0] if isinstance(value[0], str) else "",
)
def test_a_command_of_files_needs_nothing_imported_before(diagnose, tmp_path, arguments, codes):
    done = diagnose(*arguments)
    assert done.returncode in codes, done.stderr
    assert "Traceback" not in done.stderr
    if "--json" in arguments:
        assert isinstance(json.loads(done.stdout), dict)
    for name in {"report.html", "gate.xml"} & set(arguments):
        assert (tmp_path / name).stat().st_size > 0
