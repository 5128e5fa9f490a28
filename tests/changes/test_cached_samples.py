"""The patch that keeps samples: once loaded they come from shared memory, and those that differ come as before."""

import random

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset

from diagnose.changes.patches.noted_samples import CachedSamples

LEFT = ["a DataLoader whose samples differ from load to load: nothing is kept of them"]


class Counted:
    """Samples that count how often each was loaded."""

    def __init__(self, draw=None, own=None):
        self.loads, self.draw, self.own = [0] * 6, draw, own

    def __len__(self):
        return 6

    def __getitem__(self, index):
        self.loads[index] += 1
        extra = self.draw() if self.draw else next(self.own) if self.own else 0.0
        return torch.full((2,), float(index) + extra)


def test_each_sample_is_loaded_in_the_first_epoch_only(patched):
    log, data = patched("cache-samples"), Counted()
    plain = [batch.tolist() for batch in DataLoader(Counted(), batch_size=2)]
    loader = DataLoader(data, batch_size=2)
    assert [[batch.tolist() for batch in loader] for _ in range(3)] == [plain] * 3
    assert data.loads == [3, 1, 1, 1, 1, 1]  # the first one shows whether it repeats itself
    log.settle()
    assert log.done == ["DataLoader: samples are kept in 1.1 GB of shared memory from their first load on"]
    assert loader.dataset.loads == data.loads  # attributes are the dataset's


def test_workers_share_what_they_keep(patched):
    patched("cache-samples")
    loader = DataLoader(Counted(), batch_size=2, num_workers=2, persistent_workers=True)
    plain = [batch.tolist() for batch in DataLoader(Counted(), batch_size=2)]
    assert [[batch.tolist() for batch in loader] for _ in range(2)] == [plain] * 2
    assert loader.dataset._kept.cache.counts().hits > 0


@pytest.mark.parametrize("draw", [lambda: float(torch.rand(())), random.random])
def test_samples_that_draw_come_as_before(patched, draw):
    def epochs():
        torch.manual_seed(0)
        random.seed(0)
        loader = DataLoader(Counted(draw), batch_size=2)
        return [[batch.tolist() for batch in loader] for _ in range(2)]

    plain = epochs()
    log = patched("cache-samples")
    assert epochs() == plain
    log.settle()
    assert (log.done, log.refused) == ([], LEFT)


def test_samples_that_do_not_repeat_themselves_are_not_kept(patched):
    log = patched("cache-samples")
    numbers = iter(range(100))
    loader = DataLoader(Counted(own=numbers), batch_size=2)
    epochs = [[batch.tolist() for batch in loader] for _ in range(2)]
    assert epochs[0] != epochs[1]
    log.settle()
    assert log.refused == LEFT


def test_streams_and_whole_batches_are_left(patched):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(4))

    log = patched("cache-samples")
    assert [batch.tolist() for batch in DataLoader(Stream(), batch_size=4)] == [[0, 1, 2, 3]]
    assert "stream has no samples to come back to" in log.refused[0]
    assert len(DataLoader(Subset(Counted(), [1, 2]), batch_size=2)) == 1


def test_an_error_of_a_sample_is_its_own():
    class Broken(Counted):
        def __getitem__(self, index):
            raise ValueError("cut off")

    with pytest.raises(ValueError, match="cut off"):
        CachedSamples(Broken(), num_bytes=1 << 20)[0]
