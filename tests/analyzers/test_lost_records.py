"""lost-records: launches without a task, and idle in which the host waits for a device that seems to do nothing."""

import pytest


def lose(r, *, launch=(310, 315), wait=(320, 680)):
    """Launch something that the file has no task of, and wait for it."""
    r.runtime("cudaLaunchKernel", *launch)
    r.runtime("cudaDeviceSynchronize", *wait)
    return r


def test_idle_while_the_host_waits_for_missing_work_is_not_real(late):
    lose(late)
    assert late.booked() == {"lost-records": 360_000, "launch-bound": 40_000}
    finding = late.find("lost-records")
    assert finding.lost_ns == 360_000
    assert finding.confidence == "medium"
    assert "50.0 % of the launches in the window have no device task in the file." in finding.evidence
    assert finding.examples[0].before == "gemm"


def test_it_is_said_in_trust_and_leads_to_another_capture(late):
    answer = lose(late).diagnosis()
    assert answer.dominant == "lost-records"
    said = [note.text for note in answer.trust if note.rule == "lost-records"]
    assert said == ["1 launches (50.0 %) have no device task in the file: some device work is missing."]
    (again,) = late.prescribe("lost-records")
    assert (again.id, again.saves_ns, again.predicted_step_ns) == ("capture-complete-records", (0.0, 0.0), None)


@pytest.mark.parametrize(("others", "booked"), [(998, 0), (997, 360_000)])
def test_one_launch_in_a_thousand_is_not_enough(late, others, booked):
    lose(late)  # with the launch of `relu` there are `others` + 2 launches in the window
    for i in range(others):
        late.kernel("tiny", 900, 1000, launched=(700 + i * 0.1, 700 + i * 0.1 + 0.05))
    assert late.booked().get("lost-records", 0) == booked
    assert (late.find("lost-records") is not None) == bool(booked)


def test_missing_tasks_alone_book_nothing(late):
    late.runtime("cudaLaunchKernel", 310, 315)
    late.op("aten::mm", 300, 690)
    assert late.booked() == {"launch-bound": 400_000}


def test_a_call_that_returns_as_the_device_drains_is_a_plain_sync(late):
    late.runtime("cudaLaunchKernel", -8, -5)  # before the window
    late.runtime("cudaLaunchKernel", 100, 105)
    late.runtime("cudaDeviceSynchronize", 120, 350)
    late.op("aten::mm", 350, 690)
    assert "lost-records" not in late.booked()
    assert late.booked() == {"host-sync": 400_000}


def test_a_complete_file_has_no_such_note(late):
    assert [note for note in late.diagnosis().trust if note.rule == "lost-records"] == []


@pytest.mark.parametrize(("hole", "rule"), [(999, "unexplained-device"), (1000, "lost-records")])
def test_a_long_hole_before_a_queued_graph_lacks_nodes(recording, hole, rule):
    r = recording()
    r.step(1, 0, 10_000)
    r.kernel("gemm", 0, 1000, launched=(-20, -15))
    node = r.kernel("node", 1000 + hole, 10_000)
    r.runtime("cudaGraphLaunch", 100, 110, launches=node)
    assert r.booked() == {rule: hole * 1000}


def test_the_holes_beside_graphs_are_counted(recording):
    r = recording()
    r.step(1, 0, 10_000)
    nodes = [r.kernel("node", at, at + 100) for at in (5, 2005, 4005)]
    r.runtime("cudaGraphLaunch", 1, 2, launches=nodes)
    r.kernel("gemm", 4105, 10_000, launched=(10, 20))
    finding = r.find("lost-records")
    assert finding.lost_ns == 3_800_000
    assert finding.evidence[1].startswith("2 holes of 1 ms or more next to tasks of CUDA graphs")


def test_a_graph_that_was_launched_late_waited_for_the_host(recording):
    r = recording()
    r.step(1, 0, 10_000)
    r.kernel("gemm", 0, 1000, launched=(-20, -15))
    node = r.kernel("node", 5000, 10_000)
    r.runtime("cudaGraphLaunch", 4980, 4990, launches=node)
    assert "lost-records" not in r.booked()
