"""gc-pause: idle inside runs of Python's garbage collector on a thread that matters."""

import pytest


def test_a_collection_before_the_late_launch(late):
    late.gc(350, 650)
    assert late.booked() == {"gc-pause": 300_000, "python-stall": 90_000, "launch-bound": 10_000}
    finding = late.find("gc-pause")
    assert (finding.lost_ns, finding.count) == (300_000, 1)
    assert finding.examples[0].after == "relu"


def test_the_remedy_schedules_collections(late):
    late.gc(350, 650)
    (p,) = late.prescribe("gc-pause")
    assert (p.id, p.remedy) == ("schedule-gc", "diagnose.kernels.gc_schedule")
    assert p.title == "Freeze long-lived objects with gc.freeze() and collect garbage every N steps"
    assert "scheduled_gc" in p.after
    assert p.saves_ns == (pytest.approx(285_000), 300_000)
    assert p.predicted_step_ns == pytest.approx(1_000_000 - 292_500)


def test_a_collection_while_the_device_is_busy_costs_nothing(late):
    late.gc(10, 290)
    assert "gc-pause" not in late.booked()


def test_a_collection_on_a_thread_that_launches_nothing_costs_nothing(late):
    late.gc(350, 650, thread="monitor")
    assert "gc-pause" not in late.booked()


def test_it_comes_before_the_loader_in_which_it_ran(late):
    late.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 300, 690)
    late.gc(350, 650)
    assert late.booked() == {"gc-pause": 300_000, "data-stall": 90_000, "launch-bound": 10_000}


def test_a_collection_does_not_delay_what_is_queued_already(queued):
    r = queued()
    r.gc(300, 700)
    assert r.booked() == {"unexplained-device": 400_000}


def test_without_a_device_the_collection_itself_is_the_loss(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 1000)
    r.gc(200, 500)
    assert r.booked() == {"gc-pause": 300_000, "operators": 700_000}
    answer = r.diagnosis()
    assert (answer.verdict, answer.dominant) == ("no-gpu", "gc-pause")
    assert answer.findings[0].evidence[0].startswith("1 interval of the training thread in 1 step: 300 µs of each step")
