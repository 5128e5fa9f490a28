import os
import random
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, TensorDataset

from diagnose.kernels import _loader_bench
from diagnose.kernels import _loader_costs as costs_module
from diagnose.kernels._loader_bench import rebuilt
from diagnose.kernels._loader_costs import Room, private_bytes, room_for_workers, same
from diagnose.kernels.loader_tuning import LoaderTrial, Settings, SteadyLoader, _repeated, tune_loader


class Slow(Dataset):
    """Waits for its storage; ``draw`` makes it depend on a random generator."""

    def __init__(self, num=64, seconds=0.002, draw=None):
        self.num, self.seconds, self.draw = num, seconds, draw

    def __len__(self):
        return self.num

    def __getitem__(self, index):
        time.sleep(self.seconds)
        noise = self.draw() if self.draw else 0.0
        return torch.full((3,), float(index)) + noise, index


class Failing(Slow):
    def __getitem__(self, index):
        if index == 40:
            raise OSError("the disk is gone")
        return super().__getitem__(index)


class DiesInWorkers(Slow):
    def __getitem__(self, index):
        if torch.utils.data.get_worker_info() is not None:
            os._exit(3)
        return super().__getitem__(index)


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(8)


def train(loader, epochs=2):
    """Return the losses of a model with dropout, whose draws and the loader's come from the same generator."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    losses = []
    for _ in range(epochs):
        for x, y in loader:
            loss = (model(x).squeeze(1) - y).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def indices(loader):
    return [y.tolist() for _, y in loader]


def test_slow_samples_get_workers_and_the_same_losses_over_all_epochs(timed_as):
    timed_as(load=0.016, step=0.01, together=lambda settings: 0.01 if settings.num_workers else 0.026)
    plain = DataLoader(Slow(seconds=0.0), batch_size=8, shuffle=True)
    expected = train(plain)
    tuning = tune_loader(plain, lambda batch: None, seconds=0.01)
    assert tuning.settings.num_workers >= 1, str(tuning)
    assert tuning.speed_up == pytest.approx(2.6)
    assert tuning.costs.samples == 0.016
    assert train(tuning.loader) == expected
    assert "2.60 times as fast as 0 workers" in str(tuning)


@pytest.mark.parametrize(("in_a_worker", "num_workers"), [(0.0253, 0), (0.0247, 1)])
def test_a_setting_must_be_a_twentieth_faster(timed_as, in_a_worker, num_workers):
    timed_as(load=0.016, step=0.01, together=lambda settings: in_a_worker if settings.num_workers else 0.026)
    tuning = tune_loader(DataLoader(Slow(seconds=0.0), batch_size=8), lambda batch: None, seconds=0.01, max_workers=1)
    assert tuning.settings.num_workers == num_workers, str(tuning)


@pytest.mark.timing
def test_slow_samples_are_hidden_behind_the_step():
    tuning = tune_loader(DataLoader(Slow(), batch_size=8, shuffle=True), lambda batch: time.sleep(0.01), seconds=0.5)
    assert tuning.settings.num_workers >= 1, str(tuning)
    assert tuning.speed_up > 1.1, str(tuning)  # loading and step together take 27 ms, the step alone 10


def test_persistent_workers_alone_would_change_the_second_epoch():
    """Torch draws no seed for workers that live on; the loader here makes up for it."""
    dataset = Slow(32, 0.0)
    expected = train(DataLoader(dataset, batch_size=8, shuffle=True))
    arguments = {"batch_size": 8, "shuffle": True, "num_workers": 1, "persistent_workers": True}
    assert train(DataLoader(dataset, **arguments)) != expected
    assert train(SteadyLoader(dataset, **arguments)) == expected


def test_measuring_leaves_no_trace():
    model = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.BatchNorm1d(1))
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch):
        random.random(), np.random.rand()
        model(batch[0]).sum().backward()
        optimizer.step()

    generator = torch.Generator().manual_seed(5)
    loader = DataLoader(Slow(16, 0.0), batch_size=4, shuffle=True, generator=generator)
    before = [v.clone() for v in model.state_dict().values()]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy(), generator.get_state()
    model.eval()
    tune_loader(loader, step, state=(model, optimizer), seconds=0.05, max_workers=1)
    assert all(torch.equal(a, b) for a, b in zip(before, model.state_dict().values(), strict=True))
    assert not optimizer.state
    assert all(p.grad is None for p in model.parameters())
    assert not model.training
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert (states[2] == np.random.get_state()[1]).all()
    assert torch.equal(states[3], generator.get_state())


@pytest.mark.parametrize("draw", [lambda: torch.rand(3), random.random, np.random.rand, iter(range(10**9)).__next__])
def test_loaders_whose_samples_depend_on_more_than_their_index_stay(draw):
    loader = DataLoader(Slow(seconds=0.0, draw=draw), batch_size=8)
    tuning = tune_loader(loader, seconds=0.01, max_workers=1)
    assert tuning.loader is loader
    assert "left as it was (other_draws=True permits it)" in tuning.reason
    assert not tuning.trials


def test_other_draws_are_allowed_on_request(timed_as):
    timed_as(load=0.016, step=0.02, together=lambda settings: 0.02 if settings.num_workers else 0.036)
    loader = DataLoader(Slow(seconds=0.0, draw=random.random), batch_size=8)
    tuning = tune_loader(loader, lambda batch: None, seconds=0.01, max_workers=1, other_draws=True)
    assert tuning.settings.num_workers == 1, str(tuning)


def test_cheap_loading_and_streams_are_left_alone(timed_as):
    timed_as(load=0.0005, step=0.02, together=lambda settings: 0.02)
    loader = DataLoader(TensorDataset(torch.zeros(64, 1)), batch_size=8)
    tuning = tune_loader(loader, lambda batch: None, seconds=0.01)
    assert (tuning.loader, tuning.trials) == (loader, ())
    assert "loading takes 2.5% of a step" in tuning.reason
    stream = DataLoader(Stream(), batch_size=2)
    assert tune_loader(stream).loader is stream


def test_whole_batches_are_gathered_at_once(timed_as):
    timed_as(load=0.003, step=0.0, together=lambda settings: 0.001 if settings.whole_batches else 0.003)
    dataset = TensorDataset(torch.randn(4096, 4), torch.arange(4096))
    loader = DataLoader(dataset, batch_size=1024, shuffle=True)
    torch.manual_seed(0)
    expected = list(loader)
    tuning = tune_loader(loader, seconds=0.01, max_workers=0)
    assert tuning.settings == Settings(0, None, whole_batches=True)
    torch.manual_seed(0)
    assert same(list(tuning.loader), expected)


@pytest.mark.timing
def test_gathering_whole_batches_is_faster():
    dataset = TensorDataset(torch.randn(4096, 4), torch.arange(4096))
    tuning = tune_loader(DataLoader(dataset, batch_size=1024, shuffle=True), seconds=0.3, max_workers=0)
    assert tuning.settings == Settings(0, None, whole_batches=True)
    assert tuning.speed_up > 1.5


class Whole(Slow):
    """Has a way of its own to load a batch at once."""

    def __init__(self, num=64):
        super().__init__(num, 0.0)
        self.asked = []

    def __getitems__(self, indices):
        self.asked.append(list(indices))
        return [self[index] for index in indices]


def test_a_datasets_own_batches_are_asked_for():
    dataset = Whole()
    loader = DataLoader(dataset, batch_size=8)
    tuning = tune_loader(loader, lambda batch: None, seconds=0.01, max_workers=1)
    assert set(map(len, dataset.asked)) == {8}
    assert not any(t.settings.whole_batches for t in tuning.trials), "it loads whole batches already"
    assert indices(rebuilt(loader, Settings(1, 2), pin=False)) == indices(loader)


def test_any_order_is_tried_on_request_alone(timed_as):
    timed_as(load=0.016, step=0.004, together=lambda s: 0.005 if not s.in_order else 0.01 if s.num_workers else 0.02)
    loader = DataLoader(Slow(128, seconds=0.0), batch_size=8)
    arguments = {"seconds": 0.01, "max_workers": 1}
    tuning = tune_loader(loader, lambda batch: None, **arguments)
    assert all(t.settings.in_order for t in tuning.trials)
    free = tune_loader(loader, lambda batch: None, any_order=True, **arguments)
    assert [t.settings.in_order for t in free.trials].count(False) == 1
    assert not free.settings.in_order
    unordered = rebuilt(loader, Settings(2, 2, in_order=False), pin=False)
    assert sorted(index for batch in indices(unordered) for index in batch) == list(range(128))


def test_errors_of_the_dataset_and_of_the_step_arrive():
    with pytest.raises(OSError, match="the disk is gone"):
        tune_loader(DataLoader(Failing(seconds=0.0), batch_size=8), seconds=5)
    with pytest.raises(ZeroDivisionError):
        tune_loader(DataLoader(Slow(), batch_size=8), lambda batch: 1 / 0, seconds=0.1)


def test_dying_workers_rule_a_setting_out_and_nothing_else():
    loader = DataLoader(DiesInWorkers(), batch_size=8)
    tuning = tune_loader(loader, seconds=0.01, max_workers=1)
    assert tuning.loader is loader
    [failed] = [t for t in tuning.trials if t.settings.num_workers]
    assert failed.seconds is None
    assert "worker" in failed.error


def test_wrong_batches_rule_a_setting_out(monkeypatch):
    monkeypatch.setattr(_loader_bench, "same", lambda one, other: False)
    trial = tune_loader(DataLoader(Slow(seconds=0.0), batch_size=8), seconds=0.01, max_workers=1).trials[-1]
    assert trial.error == "gave other batches"


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 5, "drop_last": True, "shuffle": True},
        {"batch_sampler": BatchSampler(SequentialSampler(range(20)), 3, drop_last=False)},
        {"batch_size": None, "sampler": [4, 2, 9]},
    ],
)
def test_samplers_are_kept(arguments):
    loader = DataLoader(Slow(23, 0.0), **arguments)
    torch.manual_seed(1)
    expected = [*loader]
    torch.manual_seed(1)
    other = rebuilt(loader, Settings(1, 2), pin=False)
    assert same([*other], expected)
    assert len(other) == len(loader)
    assert other.batch_size == loader.batch_size
    assert tune_loader(loader, seconds=0.05, max_workers=0).loader is loader


def test_workers_that_would_not_hear_of_an_epoch_end_with_it():
    dataset = Slow(8, 0.0)
    assert rebuilt(DataLoader(dataset), Settings(1, 2), pin=False).persistent_workers
    dataset.set_epoch = print
    assert not rebuilt(DataLoader(dataset), Settings(1, 2), pin=False).persistent_workers


def test_room_is_the_narrowest_of_cores_memory_and_shared_memory(monkeypatch):
    monkeypatch.setattr(costs_module.os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(costs_module, "_shared_memory_bytes", lambda: 60 << 20)
    asked = {"memory_bytes": 1 << 30, "worker_bytes": 100 << 20, "batch_bytes": 1 << 20, "prefetch": 2}
    assert room_for_workers(local_ranks=1, **asked) == Room(10, "1024 MB of memory, 100 MB a worker")
    assert room_for_workers(local_ranks=4, **asked).workers == 2
    assert room_for_workers(local_ranks=1, **{**asked, "worker_bytes": 0}).workers == 16
    big = room_for_workers(local_ranks=1, **{**asked, "batch_bytes": 10 << 20})
    assert (big.workers, "shared memory" in big.reason) == (2, True)


def test_private_memory_of_a_process():
    assert private_bytes(os.getpid()) > 10 << 20 or not Path("/proc/self/smaps_rollup").exists()
    assert private_bytes(2**30) == 0


def test_same_is_bit_by_bit():
    nan = torch.tensor([1.0, float("nan")])
    batch = {"x": nan, "y": [np.array([np.nan, 1.0]), ("a", 3)]}
    assert same(batch, {"x": nan.clone(), "y": [np.array([np.nan, 1.0]), ("a", 3)]})
    for other in (
        {"x": nan + 1e-7, "y": batch["y"]},
        {"x": nan.double(), "y": batch["y"]},
        {"x": nan, "y": [np.array([np.nan, 2.0]), ("a", 3)]},
        {"x": nan, "y": [batch["y"][0], ("a", 4)]},
        {"x": nan, "y": [batch["y"][0], ["a", 3]]},
        {"x": nan},
    ):
        assert not same(batch, other)


@pytest.mark.parametrize(
    ("loader", "arguments", "said"),
    [
        ([1, 2], {}, "needs a torch.utils.data.DataLoader, not list"),
        (DataLoader([1]), {"seconds": 0}, "seconds > 0"),
        (DataLoader([1]), {"local_ranks": 0}, "local_ranks >= 1"),
        (DataLoader([]), {}, "without a single batch"),
        (DataLoader([1]), {"state": (3,)}, "not int"),
    ],
)
def test_wrong_arguments_are_refused(loader, arguments, said):
    with pytest.raises((TypeError, ValueError), match=said):
        tune_loader(loader, **arguments)


def test_the_two_fastest_are_measured_twice():
    class Benched:
        def __init__(self, *times):
            self.times, self.asked = iter(times), []

        def run(self, settings):
            self.asked.append(settings.num_workers)
            return LoaderTrial(settings, next(self.times)), 0

    first = [LoaderTrial(Settings(num), seconds) for num, seconds in [(0, 9.0), (1, 4.0), (2, 5.0)]]
    bench = Benched(4.1, 3.0)  # something else ran while two workers were measured
    found = _repeated(bench, [*first, LoaderTrial(Settings(8), None, "failed")])
    assert bench.asked == [1, 2]
    assert [t.seconds for t in found] == [9.0, 4.0, 3.0, None]
    assert _repeated(Benched(), first[:1]) == first[:1]


@pytest.mark.filterwarnings("ignore:.*pin_memory")  # there may be nothing to pin for
@pytest.mark.parametrize("pin_memory", [True, False])
def test_receiving_on_a_thread_is_not_tried_where_torch_does_it_itself(timed_as, pin_memory):
    timed_as(load=0.016, step=0.005, together=lambda settings: 0.005 if settings.num_workers else 0.021)
    plain = DataLoader(Slow(48, 0.0), batch_size=8, pin_memory=pin_memory)
    tuning = tune_loader(plain, lambda batch: None, seconds=0.01, max_workers=1)
    assert any(t.settings.receive_ahead for t in tuning.trials) is not pin_memory
