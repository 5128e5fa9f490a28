"""load-in-process: batches that workers have ready cost more to take than to make. Times in µs."""

import pytest
from torch.utils.data import DataLoader

from diagnose.changes import CHANGES

WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
QUICK = {"processes": 4.0, "user_ms_per_sample": 0.002, "system_ms_per_sample": 0.0005}  # of 32 80 µs


def taking(recording, *, ready=0.97, counters=QUICK, waited=700, share=0.0, **loader):
    """Return two steps of 1000 µs that wait for a batch, of a loader with four workers and batches of 32 samples."""
    r = recording(devices=())
    for step in (0, 1):
        r.step(step + 1, 1000 * step, 1000 * step + 1000)
        r.op("aten::mm", 1000 * step, 1000 * (step + 1) - waited)
        r.annotation(WORKERS, 1000 * (step + 1) - waited, 1000 * (step + 1))
    known = {"num_workers": 4, "batch_size": 32, "workers_busy": 0.02, "batches_ready": ready, "counters": counters}
    r.with_info(flags={"cores": 2, "num_threads": 2}, loader={**known, **loader}, sampler={"ready_share": share})
    return r


def advised(r):
    return next((p for p in r.prescribe("data-stall") if p.id == "load-in-process"), None)


def test_what_making_them_takes_is_left_at_best_and_nothing_is_certain(recording, presentable):
    found = advised(taking(recording))
    presentable(found)
    assert found.saves_ns == (0.0, pytest.approx(700_000 - 40_000))  # half of what a worker computes is sending
    assert "num_workers=0" in found.after
    assert found.safety == "same numbers unless samples draw random numbers"


def test_a_core_that_workers_had_is_the_steps_again(recording):
    assert advised(taking(recording, share=0.2)).saves_ns[1] == pytest.approx(660_000 + 200_000)


def test_the_core_counts_with_what_taking_a_batch_takes(recording):
    slow = QUICK | {"user_ms_per_sample": 0.0175}  # 576 µs to make a batch, more than three quarters of 700
    assert advised(taking(recording, counters=slow)) is None
    assert advised(taking(recording, counters=slow, share=0.2)) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"ready": 0.7},  # workers are late
        {"ready": None},
        {"counters": QUICK | {"user_ms_per_sample": 0.02}},  # 640 µs to make one
        {"counters": QUICK | {"disk_mb_per_s": 4.0, "read_mb_per_s": 9.0}},
        {"counters": {}, "workers_busy": 0.2},  # of four workers 800 µs a step
        {"counters": {}, "workers_busy": None},
        {"sampler": "_InfiniteConstantSampler"},  # each worker runs through an IterableDataset
    ],
)
def test_it_is_left_where_workers_are_of_use_or_may_be(recording, change):
    assert advised(taking(recording, **change)) is None


def test_without_counters_the_workers_share_of_a_core_is_what_making_takes(recording):
    assert advised(taking(recording, counters={})).saves_ns[1] == pytest.approx(700_000 - 40_000)


def test_workers_that_were_kept_drew_one_seed_for_all_epochs(recording):
    safety = advised(taking(recording, persistent_workers=True)).safety
    assert safety.startswith("same numbers in the first epoch unless samples draw random numbers; without")


@pytest.mark.parametrize("more", [{}, {"persistent_workers": True, "prefetch_factor": 4, "timeout": 9}])
def test_a_trial_takes_the_workers_away_with_what_torch_refuses_without_them(patched, more):
    log = patched("load-in-process")
    loader = DataLoader(range(4), num_workers=2, multiprocessing_context="fork", **more)
    assert (loader.num_workers, loader.prefetch_factor, loader.timeout) == (0, None, 0)
    assert [batch.tolist() for batch in loader] == [[0], [1], [2], [3]]
    assert log.done == ["DataLoader: num_workers 2 to 0"]
    assert CHANGES["load-in-process"].numerics.own_draws


def test_a_loader_without_workers_is_left(patched):
    log = patched("load-in-process")
    DataLoader(range(4))
    assert not log.done
