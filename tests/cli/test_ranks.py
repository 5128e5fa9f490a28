"""What the launcher's variables say, and waiting for the captures of other ranks."""

import os
import re

import pytest

from diagnose.cli import ranks
from diagnose.cli.ranks import Ranks
from diagnose.errors import UsageError
from diagnose.text.progress import Progress

QUIET = Progress(quiet=True)


def test_without_a_launcher_there_is_one_rank():
    assert ranks.current({}) == Ranks(0, 1, 1)


def test_the_launcher_says_which_rank_this_is():
    assert ranks.current({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}) == Ranks(3, 8, 4)


def test_a_rank_that_is_no_number_is_said():
    with pytest.raises(UsageError, match="RANK"):
        ranks.current({"RANK": "first"})


def test_names_are_new_for_one_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = ranks.named_after("diagnose-capture", Ranks())
    assert re.fullmatch(r"diagnose-capture-\d{8}-\d{6}", first)
    monkeypatch.setattr(ranks, "STAMP", "always")
    (tmp_path / "diagnose-capture-always").mkdir()
    assert ranks.named_after("diagnose-capture", Ranks()) == f"diagnose-capture-always-{os.getpid()}"


def test_names_are_the_same_in_all_ranks_of_a_node(monkeypatch):
    names = {ranks.named_after("c", Ranks(rank, 2, 2)) for rank in (0, 1)}
    assert len(names) == 1
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert ranks.named_after("c", Ranks(0, 2, 2)) == f"{names.pop()}-restart1"


def test_nothing_is_noted_when_all_ranks_are_there(tmp_path):
    for rank in (0, 1):
        (tmp_path / f"capture.rank{rank}.json").touch()
    assert ranks.wait_for_others(tmp_path, Ranks(0, 2, 2), whole_world=True, progress=QUIET) == ()


def test_ranks_that_never_come_are_noted(tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "WAIT_S", 0.0)
    (tmp_path / "capture.rank0.json").touch()
    (note,) = ranks.wait_for_others(tmp_path, Ranks(0, 2, 2), whole_world=True, progress=QUIET)
    assert note.startswith("The capture of rank 1 of 2 is missing")


def test_other_nodes_are_not_waited_for_without_a_shared_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "WAIT_S", 1e9)
    (tmp_path / "capture.rank0.json").touch()
    (note,) = ranks.wait_for_others(tmp_path, Ranks(0, 2, 1), whole_world=False, progress=QUIET)
    assert "a folder that all nodes share" in note
