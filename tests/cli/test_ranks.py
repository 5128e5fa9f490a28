"""Names of captures, the ranks that are recorded, and waiting for the captures of other ranks."""

import os
import re
import time
from itertools import count

import pytest

from diagnose.cli import ranks
from diagnose.cli.ranks import chosen_ranks
from diagnose.errors import UsageError
from diagnose.model.launched import Launched
from diagnose.text.progress import Progress

QUIET = Progress(quiet=True)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("0", {0}), ("0,1,8-15", {0, 1, *range(8, 16)}), (" 3 - 3 ".replace(" ", ""), {3}), ("2,2", {2})],
)
def test_the_ranks_that_are_recorded(text, ranks):
    assert chosen_ranks(text, 16) == ranks


@pytest.mark.parametrize(("text", "why"), [("", "give numbers"), ("5-2", "give numbers"), ("0,x", "give numbers"),
                                           ("0-16", "the job has ranks 0 to 15")])  # fmt: skip
def test_ranks_that_are_none(text, why):
    with pytest.raises(UsageError, match=why):
        chosen_ranks(text, 16)


def test_names_are_new_for_one_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = ranks.named_after("diagnose-capture", Launched())
    assert re.fullmatch(r"diagnose-capture-\d{8}-\d{6}", first)
    monkeypatch.setattr(time, "strftime", lambda _form: "always")
    (tmp_path / "diagnose-capture-always").mkdir()
    assert ranks.named_after("diagnose-capture", Launched()) == f"diagnose-capture-always-{os.getpid()}"


def test_names_are_the_same_in_all_ranks_of_a_node(monkeypatch):
    names = {ranks.named_after("c", Launched(rank, 2, 2)) for rank in (0, 1)}
    assert len(names) == 1
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert ranks.named_after("c", Launched(0, 2, 2)) == f"{names.pop()}-restart1"


def test_nothing_is_noted_when_all_ranks_are_there(tmp_path):
    for rank in (0, 1):
        (tmp_path / f"capture.rank{rank}.json").touch()
    assert ranks.wait_for_others(tmp_path, Launched(0, 2, 2), chosen=range(2), whole_world=True, progress=QUIET) == ()


def test_ranks_that_never_come_are_noted(tmp_path, monkeypatch):
    (tmp_path / "capture.rank0.json").touch()
    monkeypatch.setattr(time, "monotonic", count(step=1000).__next__)
    (note,) = ranks.wait_for_others(tmp_path, Launched(0, 2, 2), chosen=range(2), whole_world=True, progress=QUIET)
    assert note.startswith("The capture of rank 1 of 2 is missing")


def test_other_nodes_are_not_waited_for_without_a_shared_folder(tmp_path, monkeypatch):
    (tmp_path / "capture.rank0.json").touch()
    monkeypatch.setattr(time, "sleep", pytest.fail)
    (note,) = ranks.wait_for_others(tmp_path, Launched(0, 2, 1), chosen=range(2), whole_world=False, progress=QUIET)
    assert "a folder that all nodes share" in note


def test_a_folder_that_other_nodes_write_to_is_shared(tmp_path, monkeypatch):
    for rank in (0, 1):
        (tmp_path / f".rank{rank}.lock").touch()
    (tmp_path / "capture.rank0.json").touch()
    monkeypatch.setattr(time, "sleep", lambda _seconds: (tmp_path / "capture.rank1.json").touch())
    assert ranks.wait_for_others(
        tmp_path, Launched(0, 2, 1), chosen=range(2), whole_world=False, progress=QUIET
    ) == ()  # fmt: skip


def test_nodes_of_one_step_of_slurm_agree_on_a_name(monkeypatch):
    for name, value in (("SLURM_JOB_ID", "71"), ("SLURM_STEP_ID", "2"), ("SLURM_STEP_NUM_TASKS", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert ranks.named_after("c", Launched(1, 2, 1)) == "c-slurm-71-2"
