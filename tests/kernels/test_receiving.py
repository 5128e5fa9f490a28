"""Workers' batches that a thread receives, as the loader tuner may choose."""

import threading

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from diagnose.kernels._loader_bench import Settings, rebuilt


class Numbers(Dataset):
    def __init__(self, num, fail_at=None):
        self.num, self.fail_at = num, fail_at

    def __len__(self):
        return self.num

    def __getitem__(self, index):
        if index == self.fail_at:
            raise OSError("the disk is gone")
        return torch.tensor(index)


def drawn(loader):
    """Return the batches of three epochs, with what the training draws from the same generator beside each."""
    torch.manual_seed(3)
    return [(batch.tolist(), torch.rand(1).item()) for _ in range(3) for batch in loader]


def received(loader):
    """Return the loader with workers whose batches a thread receives."""
    return rebuilt(loader, Settings(2, 2, receive_ahead=True), pin=False)


def receiving():
    return [t for t in threading.enumerate() if t.name.startswith("load-batches")]


def test_batches_received_on_a_thread_are_the_same_over_all_epochs():
    plain = DataLoader(Numbers(32), batch_size=4, shuffle=True)
    ahead = received(plain)
    assert drawn(ahead) == drawn(plain)
    assert receiving() == []


def test_a_loop_that_is_left_early_ends_its_thread_and_can_be_started_again():
    ahead = received(DataLoader(Numbers(64), batch_size=4))
    first = iter(ahead)
    assert [next(first).tolist() for _ in range(4)][-1] == [12, 13, 14, 15]
    assert len(receiving()) == 1
    assert [i for y in ahead for i in y.tolist()] == list(range(64))  # while the former iterator is still there
    assert list(first) == []
    for number, _ in enumerate(ahead):
        if number == 5:
            break
    del _, number
    assert len(first) == 16
    assert receiving() == []


def test_an_error_of_a_worker_comes_in_its_place():
    seen = []
    with pytest.raises(OSError, match="the disk is gone"):
        seen.extend(received(DataLoader(Numbers(64, fail_at=40), batch_size=8)))
    assert len(seen) == 5
