"""Work on many ranks, also in processes that die."""

from __future__ import annotations

import os
import threading
from functools import partial

import pytest

from diagnose.errors import DEBUG
from diagnose.pipeline.executors import Processes
from tests.pipeline import working


def run(work, ranks, num_workers):
    with Processes(num_workers) as processes:
        return dict(processes.run(work, ranks))


@pytest.mark.parametrize(("num_workers", "num_threads"), [(1, 1), (2, 1), (2, 2)])
def test_every_rank_gives_its_result(ranks, num_workers, num_threads, monkeypatch):
    monkeypatch.setattr(threading, "active_count", lambda: num_threads)  # beside threads nothing is forked
    found = run(working.size_of, ranks, num_workers)
    assert {i: outcome.data for i, outcome in found.items()} == {i: b"%d" % i for i in range(5)}


def test_processes_stay_from_one_kind_of_work_to_the_next(ranks):
    with Processes(2) as processes:
        found = {outcome.data for _ in range(3) for _, outcome in processes.run(working.process_of, ranks)}
    assert len(found) <= 2
    assert str(os.getpid()).encode() not in found


def test_what_a_process_that_died_was_working_on_is_done_again(ranks, tmp_path):
    (tmp_path / "marks").mkdir()
    found = run(partial(working.dying, tmp_path / "marks", 2), ranks, 2)
    assert {i: outcome.data for i, outcome in found.items()} == {i: b"%d" % i for i in range(5)}
    assert len(list((tmp_path / "marks").iterdir())) == 2


def test_a_rank_that_ends_every_process_is_named_and_the_others_are_done(ranks, tmp_path):
    (tmp_path / "marks").mkdir()
    found = run(partial(working.dying, tmp_path / "marks", 99), ranks, 2)
    assert found.pop(2).failure == (
        "deadly ended its process 2 times, and was left out. Memory may be short: give --workers less."
    )
    assert {i: outcome.data for i, outcome in found.items()} == {i: b"%d" % i for i in (0, 1, 3, 4)}


def test_a_fault_of_the_program_is_named(ranks, monkeypatch):
    monkeypatch.delenv(DEBUG, raising=False)
    (outcome,) = run(working.faulty, ranks[:1], 1).values()
    assert outcome.failure == "a could not be analysed (ZeroDivisionError: a fault), and was left out."
