"""more-workers: as many as keep up with the rest of the step, and what they save. Times in µs."""

import pytest

from diagnose.changes.common.prescribe import prescribe
from diagnose.model.diagnosis import Finding


def waiting(recording):
    """Return two steps of 1000 µs without a device, 700 of them a wait for workers."""
    r = recording(devices=())
    for step in (0, 1):
        r.step(step + 1, 1000 * step, 1000 * step + 1000)
        r.op("aten::mm", 1000 * step, 1000 * step + 300)
        r.annotation(
            "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 1000 * step + 300, 1000 * step + 1000
        )
    return r


@pytest.mark.parametrize(
    ("busy", "cpus", "workers", "least", "most"),
    [
        (0.1, 8, 4, 0.85, 1.0),
        (0.8, 8, 4, 0.85, 1.0),
        (0.8, 2, 2, 0.0, 0.9 * 5 / 7),  # two workers of 0.8 cores each leave the step none of its own
        (None, 8, 4, 0.0, 0.9),
    ],
)
def test_more_workers_save_most_where_they_find_cores(recording, busy, cpus, workers, least, most):
    r = waiting(recording)
    info = {} if busy is None else {"workers_busy": busy}
    r.with_info(flags={"cores": cpus}, loader={"num_workers": 1, **info})
    finding = r.find("data-stall")
    p = r.prescribe("data-stall")[0]
    # four workers deliver a batch every 250 us, and the rest of the step takes 300; two one every 500
    assert p.arguments == {"workers": workers}
    assert p.saves_ns == (pytest.approx(least * 700_000), pytest.approx(most * 700_000))
    assert ("The workers compute" in finding.evidence[1]) == (busy is not None)


@pytest.mark.parametrize(("ready", "advised"), [(0.5, True), (0.8, False), (1.0, False)])
def test_of_workers_whose_batches_are_ready_no_more_are_wanted(recording, ready, advised):
    r = waiting(recording)
    r.with_info(flags={"cores": 64}, loader={"num_workers": 4, "workers_busy": 0.01, "batches_ready": ready})
    finding = r.find("data-stall")
    assert ("have batches ready" in finding.title) is not advised
    assert f"{ready:.0%}".replace("%", " %") in finding.evidence[1]
    for_storage = {"more-workers", "concurrent-samples", "stage-locally", "pack-samples"}
    assert bool(for_storage & {p.id for p in r.prescribe("data-stall")}) is advised
    assert finding.facts["waits"] is advised


@pytest.mark.parametrize(
    ("cores", "wanted", "share"),
    [
        (None, "min(5 * loader.num_workers, os.cpu_count())", 1.0),
        (8, "min(5 * loader.num_workers, 8)", 1.0),
        (2, "min(2 * loader.num_workers, 2)", 0.5 / 0.8),  # a batch every 500 us at best
        (1, None, 0.0),
    ],
)
def test_of_workers_that_a_trace_does_not_show_as_many_times_as_keep_up(recording, cores, wanted, share):
    # Steps of 1000 us, 800 of them a wait for workers: five times as many deliver a batch every 200.
    r = recording()
    if cores:
        r.with_info(flags={"cores": cores})
    for step in (0, 1):
        at = 1000 * step
        r.step(step + 1, at, at + 1000)
        r.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at, at + 800)
        r.op("aten::relu", at + 800, at + 1000)
        r.kernel("relu", at + 810, at + 1000, launched=(at + 800, at + 805))
    lost = r.find("data-stall").lost_ns
    found = [p for p in r.prescribe("data-stall") if p.id == "more-workers"]
    assert [p.saves_ns for p in found] == [(0.0, pytest.approx(share * lost))] * bool(wanted)
    assert [f"num_workers={wanted}," in p.after for p in found] == [True] * bool(wanted)


def test_workers_that_wait_need_no_cores(recording):
    facts = {"single_process": False, "waiting_share": 1.0, "cores": 2}
    (p,) = [p for p in prescribe(Finding("data-stall", "", 800_000.0, facts=facts), 1e6) if p.id == "more-workers"]
    assert "num_workers=min(5 * loader.num_workers, 32)," in p.after
    assert p.saves_ns == (pytest.approx(0.85 * 800_000), pytest.approx(800_000))


def restarted(recording, *, persistent=False, cores=2, busy=0.9):
    """Return eight steps of 1000 µs in epochs of four: the first batch of each epoch is waited for 800, others 50."""
    r = recording(devices=())
    for step in range(8):
        at, wait = 1000 * step, 800 if step % 4 == 0 else 50
        r.step(step + 1, at, at + 1000)
        r.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at, at + wait)
        r.op("aten::mm", at + wait, at + 1000)
    loader = {"num_workers": 2, "num_batches": 4, "persistent_workers": persistent, "workers_busy": busy}
    r.with_info(flags={"cores": cores}, loader=loader)
    return r


def test_workers_that_each_epoch_starts_again_are_kept_and_not_multiplied(recording):
    for busy in (0.9, 0.01):  # of short lives most is starting, and no CPU time of a worker's
        changes = [p.id for p in restarted(recording, cores=8, busy=busy).prescribe("data-stall")]
        assert changes == ["keep-workers"]


def test_as_many_computing_workers_as_cores_are_enough(recording):
    changes = [p.id for p in restarted(recording, persistent=True).prescribe("data-stall")]
    assert "keep-workers" not in changes
    assert "more-workers" not in changes
