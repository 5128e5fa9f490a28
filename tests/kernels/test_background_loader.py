import threading
import time
from concurrent.futures import Future

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from diagnose.kernels import background_loader
from diagnose.kernels.background_loader import BackgroundLoader


class Slow(Dataset):
    def __init__(self, num=12, seconds=0.0, fail_at=None, draws=False):
        self.num, self.seconds, self.fail_at, self.draws = num, seconds, fail_at, draws
        self.threads = set()

    def __len__(self):
        return self.num

    def __getitem__(self, index):
        self.threads.add(threading.current_thread().name.split("_")[0])
        if index == self.fail_at:
            raise OSError("the disk is gone")
        time.sleep(self.seconds)
        return torch.rand(2) if self.draws else torch.full((2,), float(index))


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("load-batches")]


def losses(loader):
    torch.manual_seed(0)
    return [torch.nn.functional.dropout(batch).sum().item() for _ in range(2) for batch in loader]


@pytest.mark.parametrize("num", [0, 1, 2, 3, 12])
def test_same_batches_and_same_random_numbers(num):
    plain = DataLoader(Slow(num), batch_size=2, shuffle=num > 0)
    assert losses(BackgroundLoader(plain)) == losses(plain)
    assert threads() == []


def test_loading_overlaps_with_the_step():
    loaded = [threading.Event() for _ in range(8)]

    class Tells(Dataset):
        def __len__(self):
            return len(loaded)

        def __getitem__(self, index):
            loaded[index].set()
            return torch.tensor(index)

    for number, _ in enumerate(BackgroundLoader(DataLoader(Tells(), batch_size=1))):
        if 2 <= number < len(loaded) - 1:  # the first two are loaded in the calling thread
            assert loaded[number + 1].wait(30), "the next sample was not loaded during the step"


class AtOnce:
    """A pool that has done what it was asked for before the caller goes on: as far ahead as loading ever gets."""

    def __init__(self, *_, **__):
        pass

    def submit(self, function, *arguments):
        done = Future()
        done.set_result(function(*arguments))
        return done

    def shutdown(self, **_):
        pass


@pytest.mark.parametrize("ahead", [1, 3])
def test_no_batch_is_loaded_further_ahead_than_asked(monkeypatch, ahead):
    monkeypatch.setattr(background_loader, "ThreadPoolExecutor", AtOnce)
    pulled = []
    plain = DataLoader(Slow(8), batch_size=1, collate_fn=lambda samples: pulled.append(1) or samples)
    seen = [len(pulled) for _ in BackgroundLoader(plain, ahead=ahead)]
    assert seen == [1, 2, *(min(number + ahead, 8) for number in range(3, 9))]  # two here, then on the thread


def test_loads_on_one_thread():
    dataset = Slow(20)
    assert len(list(BackgroundLoader(DataLoader(dataset, batch_size=1), ahead=3))) == 20
    assert dataset.threads == {"MainThread", "load-batches"}


def test_errors_come_in_their_place_and_end_the_thread():
    seen = []
    with pytest.raises(OSError, match="the disk is gone"):
        seen.extend(BackgroundLoader(DataLoader(Slow(fail_at=7), batch_size=1)))
    assert len(seen) == 7
    assert threads() == []


def test_a_loop_left_early_can_be_started_again():
    loader = BackgroundLoader(DataLoader(Slow(), batch_size=1))
    for number, _ in enumerate(loader):
        if number == 5:
            break
    del _
    assert len(list(loader)) == len(loader) == 12
    assert threads() == []


def test_a_dataset_that_draws_is_loaded_in_the_calling_thread():
    dataset = Slow(draws=True)
    plain = DataLoader(dataset, batch_size=2)
    expected = losses(plain)
    with pytest.warns(UserWarning, match="draws from the global random generators"):
        assert losses(BackgroundLoader(plain)) == expected
    assert dataset.threads == {"MainThread"}


def test_attributes_and_epochs_are_the_loaders():
    told = []
    dataset = TensorDataset(torch.arange(4))
    dataset.set_epoch = told.append
    loader = BackgroundLoader(DataLoader(dataset, batch_size=2))
    loader.set_epoch(3)
    assert (loader.batch_size, told) == (2, [3])
    with pytest.raises(ValueError, match="ahead >= 1, not 0"):
        BackgroundLoader([], ahead=0)
