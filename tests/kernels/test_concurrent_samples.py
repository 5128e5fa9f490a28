import os
import pickle
import threading
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, random_split

from diagnose.kernels.background_loader import BackgroundLoader
from diagnose.kernels.concurrent_samples import ConcurrentSamples
from diagnose.kernels.loader_tuning import Settings, tune_loader

TOGETHER = 4
LOCK = threading.Lock()


class Stored(Dataset):
    """Waits for its storage."""

    classes = ("a", "b")

    def __init__(self, num=24, seconds=0.0, fail_at=(), draws=False):
        self.num, self.seconds, self.fail_at, self.draws = num, seconds, fail_at, draws
        self.epoch = None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.num

    def __getitem__(self, index):
        if index in self.fail_at:
            raise OSError(f"sample {index} is gone")
        time.sleep(self.seconds)
        return torch.rand(2) if self.draws else torch.full((2,), float(index))


class Meeting(Stored):
    """From the second batch on a sample is only given once as many are asked for as there are threads."""

    def __init__(self):
        super().__init__(3 * TOGETHER)
        self.met = None  # neither a copy nor a worker process could be given one

    def __getitem__(self, index):
        if index >= TOGETHER:
            with LOCK:
                self.met = self.met or threading.Barrier(TOGETHER)
            self.met.wait(30)
        return torch.tensor((index, os.getpid()))


def batches(loader):
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [1, 5, 8])
def test_same_samples_in_the_same_order(workers, size):
    torch.manual_seed(0)
    plain = batches(DataLoader(Stored(), batch_size=size, shuffle=True))
    torch.manual_seed(0)
    samples = ConcurrentSamples(Stored(seconds=0.001), threads=4)
    assert batches(DataLoader(samples, batch_size=size, shuffle=True, num_workers=workers)) == plain


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_of_a_batch_are_loaded_at_the_same_time(workers):
    samples = ConcurrentSamples(Meeting(), threads=TOGETHER)
    if workers:  # this process has its threads before the worker is forked; the worker makes some of its own
        for _ in range(2):
            samples.__getitems__(list(range(TOGETHER)))
    seen = [pair for batch in DataLoader(samples, batch_size=TOGETHER, num_workers=workers) for pair in batch.tolist()]
    assert [index for index, _ in seen] == list(range(12))
    assert ({pid for _, pid in seen} == {os.getpid()}) is not bool(workers)


@pytest.mark.parametrize(("fail_at", "earliest"), [((9,), 9), ((15, 10), 10)])
def test_the_earliest_error_arrives_where_a_plain_loop_meets_it(fail_at, earliest):
    seen = []
    loader = DataLoader(ConcurrentSamples(Stored(fail_at=fail_at), threads=8), batch_size=8)
    with pytest.raises(OSError, match=f"sample {earliest} is gone"):
        seen.extend(loader)
    assert len(seen) == 1


def test_of_two_errors_at_once_the_earlier_sample_s_arrives():
    failed = threading.Event()

    class Fails(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            if index == 5:
                failed.set()
                raise OSError("of sample 5")
            if index == 4:
                assert failed.wait(30)
                raise OSError("of sample 4, later")
            return index

    samples = ConcurrentSamples(Fails(), threads=2)
    assert samples.__getitems__([0, 1]) == [0, 1]
    with pytest.raises(OSError, match="of sample 4, later"):
        samples.__getitems__([4, 5])


def test_random_draws_stay_in_order_and_are_warned_of():
    torch.manual_seed(1)
    plain = batches(DataLoader(Stored(draws=True), batch_size=4))
    torch.manual_seed(1)
    loader = DataLoader(ConcurrentSamples(Stored(draws=True)), batch_size=4)
    with pytest.warns(UserWarning, match="its own generator"):
        assert batches(loader) == plain


def test_the_dataset_shows_through():
    samples = ConcurrentSamples(Stored())
    samples.set_epoch(3)
    assert (len(samples), samples.classes, samples.dataset.epoch) == (24, ("a", "b"), 3)
    assert samples[5].tolist() == [5.0, 5.0]
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = samples.nothing_like_it


def test_a_copy_that_was_sent_works():
    samples = ConcurrentSamples(Stored(), threads=3)
    for _ in range(2):
        samples.__getitems__([0, 1, 2])
    again = pickle.loads(pickle.dumps(samples))
    assert [s[0].item() for _ in range(2) for s in again.__getitems__([4, 5])] == [4, 5, 4, 5]


def test_beside_the_step_on_a_thread():
    plain = batches(DataLoader(Stored(), batch_size=4))
    assert batches(BackgroundLoader(DataLoader(ConcurrentSamples(Stored()), batch_size=4))) == plain


class Whole(Stored):
    def __getitems__(self, indices):
        return [self[i] for i in indices]


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(3)


@pytest.mark.parametrize(
    ("dataset", "threads", "error", "match"),
    [
        (Stored(), 1, ValueError, "threads >= 2, not 1; use the dataset itself"),
        (Whole(), 8, TypeError, "Whole, which gives whole batches"),
        (Subset(Whole(), [0]), 8, TypeError, "Whole, which gives whole batches"),
        (Stream(), 8, TypeError, r"not the stream Stream; .* workers through diagnose\.kernels\.ShardedStream"),
    ],
)
def test_refuses_what_it_cannot_serve(dataset, threads, error, match):
    with pytest.raises(error, match=match):
        ConcurrentSamples(dataset, threads=threads)


@pytest.mark.parametrize("part", [lambda d: Subset(d, range(4, 12)), lambda d: random_split(d, [16, 8])[0]])
def test_parts_of_a_dataset_are_loaded_at_the_same_time(part):
    chosen = part(Stored())
    plain = batches(DataLoader(chosen, batch_size=4))
    samples = ConcurrentSamples(Subset(chosen, range(8)), threads=4)
    assert batches(DataLoader(samples, batch_size=4)) == plain[:2]
    met = ConcurrentSamples(Subset(Meeting(), range(12)), threads=TOGETHER)
    assert [i for batch in DataLoader(met, batch_size=TOGETHER) for i, _ in batch.tolist()] == list(range(12))


def test_the_tuner_tries_threads_on_a_part_of_a_dataset(timed_as):
    timed_as(load=0.064, step=0.005, together=lambda settings: 0.07 / settings.threads)
    plain = DataLoader(Subset(Stored(96), range(80)), batch_size=16)
    tuning = tune_loader(plain, lambda batch: None, seconds=0.01, sample_threads=8)
    assert tuning.settings.threads == 8, str(tuning)
    assert batches(tuning.loader) == batches(plain)


def test_the_tuner_tries_threads_where_it_may_and_keeps_the_samples(timed_as):
    timed_as(load=0.064, step=0.005, together=lambda settings: 0.07 / settings.threads)
    plain = DataLoader(Stored(96), batch_size=16)
    tuning = tune_loader(plain, lambda batch: None, seconds=0.01, sample_threads=8)
    assert tuning.settings.threads == 8, str(tuning)
    assert "8 threads" in str(tuning)
    assert batches(tuning.loader) == batches(plain)


@pytest.mark.parametrize("dataset", [Whole(64), Stored(64, draws=True)])
def test_the_tuner_leaves_threads_out_where_they_cannot_be(timed_as, dataset):
    timed_as(load=0.01, step=0.0, together=lambda settings: 0.01 / settings.threads)
    plain = DataLoader(dataset, batch_size=8)
    tuning = tune_loader(plain, seconds=0.01, sample_threads=4, other_draws=True)
    assert not [t for t in tuning.trials if t.settings.threads > 1], str(tuning)
    assert tuning.settings.threads == Settings().threads
