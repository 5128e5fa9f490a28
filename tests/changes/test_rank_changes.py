"""What is prescribed where ranks wait for each other: one change for each kind of reason."""

import pytest

from diagnose.changes.common.prescribe import prescribe
from diagnose.model.diagnosis import Finding
from diagnose.tables.program import Program


def prescribed(**facts):
    finding = Finding("straggler", "", 4e6, facts={"late_rank": None, "is_exchange": False, "cause": "", **facts})
    return prescribe(finding, 40e6, Program(trains=True, is_ddp=True))


def test_a_slow_group_on_one_host_is_measured_there():
    (change,) = prescribed(kind="slow-group", members=[2, 3], hosts=["node7"])
    assert change.id == "check-links"
    assert change.title == "Check the links of the slow group on node7: measure it against another one"
    assert change.after.startswith("all_reduce_perf -b 8M -e 256M -f 2 -g 2 ")
    assert "nvidia-smi nvlink --status" in change.after
    assert "ibstat" not in change.after
    assert change.predicted_step_ns == pytest.approx(38e6)  # between nothing and all of the 4 ms


def test_a_slow_group_between_hosts_is_measured_over_their_network():
    (change,) = prescribed(kind="slow-group", members=[0, 1, 2, 3], hosts=["a", "b"])
    assert change.after.startswith("mpirun -H a,b -N 2 all_reduce_perf -b 8M -e 256M -f 2 -g 1 ")
    assert "ibstat" in change.after
    assert "nvlink" not in change.after


def test_before_a_late_begin_lies_what_has_to_move():
    (change,) = prescribed(kind="late-begin", begins_late_rank=7)
    assert (change.id, "rank == 7" in change.before) == ("begin-together", True)
    assert "diagnose trace --skip 50" in change.after


@pytest.mark.parametrize(
    ("cause", "contained"),
    [
        ("gc-pause", "scheduled_gc"),
        ("python-stall", "writer.submit(torch.save"),
        ("off-cpu", "sched_setaffinity"),
        ("data-stall", "prefetch_factor"),
        ("", "scheduled_gc"),
    ],
)
def test_pauses_that_wander_are_met_by_their_cause(cause, contained):
    (change,) = prescribed(kind="turns", cause=cause, begins_late_rank=None)
    assert change.id == "align-pauses"
    assert contained in change.after


def test_turns_behind_a_late_begin_get_both_and_each_its_share_of_the_waiting():
    changes = prescribed(kind="turns", cause="", begins_late_rank=7, begin_share=0.75)
    assert [(c.id, c.saves_ns) for c in changes] == [("align-pauses", (0, 1e6)), ("begin-together", (0, 3e6))]


def test_a_late_rank_gets_its_share_of_the_work_evened_out():
    assert [c.id for c in prescribed(kind="late", late_rank=1, cause="data-stall")] == ["even-out-ranks"]


@pytest.mark.parametrize(("cause", "ranks", "most"), [("more-work", 2, 2e6), ("compute-backward", 4, 3e6)])
def test_work_that_is_evened_out_goes_to_the_others(cause, ranks, most):
    (change,) = prescribed(kind="late", late_rank=1, cause=cause, num_ranks=ranks)
    assert change.title == "Give rank 1 as much work as the others: samples, and their lengths"
    assert change.saves_ns == (0, most)
    assert "scheduled_gc" not in change.after


@pytest.mark.parametrize(
    ("cause", "contained", "missing"),
    [
        ("slower-device", "nvidia-smi -q -d CLOCK", "taskset"),
        ("slower-host", "taskset -cp PID", "nvidia-smi"),
        ("slower-rank", "nvidia-smi -q -d CLOCK", "DistributedSampler"),
    ],
)
def test_a_rank_on_which_all_takes_longer_gets_no_other_work_but_a_look_at_its_clocks(cause, contained, missing):
    (change,) = prescribed(kind="late", late_rank=1, cause=cause, hosts=["node7"])
    assert change.id == "check-slow-rank"
    assert change.title == "Find out why everything takes longer on rank 1: its clocks, and what else runs there"
    assert change.after.startswith("# on node7, where rank 1 runs")
    assert contained in change.after
    assert missing not in change.after


def test_one_kernel_that_is_slower_is_a_matter_of_the_work():
    assert [c.id for c in prescribed(kind="late", late_rank=1, cause="slower-kernel")] == ["even-out-ranks"]
