"""What is prescribed where ranks wait for each other: one change for each kind of reason."""

import pytest

from diagnose.changes.common.prescribe import prescribe
from diagnose.model.diagnosis import Finding
from diagnose.tables.program import Program


def prescribed(**facts):
    finding = Finding("straggler", "", 4e6, facts={"late_rank": None, "is_exchange": False, "cause": "", **facts})
    return prescribe(finding, 40e6, Program(trains=True, is_ddp=True))


def test_a_slow_group_is_measured_against_another_one():
    (change,) = prescribed(kind="slow-group", members=[2, 3], hosts=["node7"])
    assert change.id == "check-links"
    assert change.after.startswith("all_reduce_perf -b 8M -e 256M -f 2 -g 2 ")
    assert change.predicted_step_ns == pytest.approx(38e6)  # between nothing and all of the 4 ms


def test_before_a_late_begin_lies_what_has_to_move():
    (change,) = prescribed(kind="late-begin", begins_late_rank=7)
    assert (change.id, "rank == 7" in change.before) == ("begin-together", True)
    assert "diagnose trace --skip 50" in change.after


def test_pauses_that_wander_are_aligned_and_ranks_get_cores():
    (change,) = prescribed(kind="turns", cause="gc-pause", begins_late_rank=None)
    assert change.id == "align-pauses"
    assert "scheduled_gc" in change.after
    assert "sched_setaffinity" in change.after


def test_turns_behind_a_late_begin_get_both_and_each_its_share_of_the_waiting():
    changes = prescribed(kind="turns", cause="", begins_late_rank=7, begin_share=0.75, turns_share=0.25)
    assert [(c.id, c.saves_ns) for c in changes] == [("align-pauses", (0, 1e6)), ("begin-together", (0, 3e6))]


def test_a_late_rank_gets_its_share_of_the_work_evened_out():
    assert [c.id for c in prescribed(kind="late", late_rank=1, cause="data-stall")] == ["even-out-ranks"]


@pytest.mark.parametrize(("cause", "ranks", "most"), [("more-work", 2, 2e6), ("compute-backward", 4, 3e6)])
def test_work_that_is_evened_out_goes_to_the_others(cause, ranks, most):
    (change,) = prescribed(kind="late", late_rank=1, cause=cause, others_share=1 - 1 / ranks)
    assert change.title == "Give rank 1 as much work as the others: samples, and their lengths"
    assert change.saves_ns == (0, most)
    assert "scheduled_gc" not in change.after


@pytest.mark.parametrize("cause", ["slower-device", "slower-host", "slower-rank", "no-core"])
def test_a_rank_on_which_all_takes_longer_gets_no_other_work_but_a_look_at_its_clocks(cause):
    (change,) = prescribed(kind="late", late_rank=1, cause=cause, hosts=["node7"])
    assert change.id == "check-slow-rank"
    assert change.title == "Find out why everything takes longer on rank 1: its clocks, and what else runs there"
    assert "nvidia-smi -q -d CLOCK" in change.after
    assert "taskset -cp PID" in change.after


def test_one_kernel_that_is_slower_is_a_matter_of_the_work():
    assert [c.id for c in prescribed(kind="late", late_rank=1, cause="slower-kernel")] == ["even-out-ranks"]
