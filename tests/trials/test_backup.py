"""What is saved of the user's files before runs that nothing restricts."""

import pytest

from diagnose.errors import OriginalsChangedError, UsageError
from diagnose.trials import limits
from diagnose.trials.copying import below

HARMS = """
import pathlib
top = pathlib.Path(TOP)
for name in ("best.pt", "notes.txt"):
    pathlib.Path(name).write_text("worse")
    (top / name).write_text("worse")
"""


@pytest.fixture
def unprotected(monkeypatch, tmp_path):
    monkeypatch.setattr(limits, "can_restrict", lambda: False)
    return tmp_path / "state" / "diagnose"


def test_without_protection_all_that_a_run_overwrote_is_in_a_folder_that_stays(run_at_home, home, unprotected):
    project = home / "project"
    for name in ("best.pt", "notes.txt"):
        (project / name).write_text(name)
    runner, _, _ = run_at_home(HARMS.replace("TOP", repr(str(project))))
    with pytest.raises(OriginalsChangedError):
        runner.time((), timeout_s=60)
    runner.close()
    (saved,) = unprotected.iterdir()
    assert f"What was there before is in {saved}." in runner.changed
    assert [below(saved, project / name).read_text() for name in ("best.pt", "notes.txt")] == ["best.pt", "notes.txt"]


def test_without_protection_a_backup_that_was_not_needed_is_removed(run_at_home, unprotected):
    runner, _, _ = run_at_home("print('harmless')")
    assert len(list(unprotected.iterdir())) == 1
    runner.close()
    assert list(unprotected.iterdir()) == []
    assert runner.changed == ""


def test_without_protection_what_an_interrupted_run_changed_stays_saved(run_at_home, home, unprotected):
    runner, _, _ = run_at_home("print('harmless')")
    (home / "project" / "train.py").write_text("other")
    runner.close()
    assert len(list(unprotected.iterdir())) == 1
    assert "What was there before is in" in runner.changed


def test_without_protection_more_than_can_be_backed_up_is_refused(run_at_home, home, unprotected):
    with (home / "project" / "weights.bin").open("wb") as file:
        file.truncate(5 << 30)  # a hole: it takes no space
    with pytest.raises(UsageError, match=r"hold 5\.4 GB; at most 4\.3 GB are backed up.*--cwd-mode same"):
        run_at_home("print('harmless')")
    assert list(unprotected.iterdir()) == []
