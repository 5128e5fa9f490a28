"""Whether batches that the script's process makes draw random numbers, by torch's own loaders."""

import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from diagnose.capture.record import loading as module
from diagnose.capture.record.loading import DrawnBatches


class Rows(Dataset):
    def __init__(self, draw=lambda: 0.0):
        self.draw = draw

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return torch.full((2,), float(i) + float(self.draw()))


def looked_at(dataset, *, epochs=1, **arguments):
    """Iterate over a loader as the hooks do, which note a batch when it is asked for and when it is there."""
    drawn, loader = DrawnBatches(), DataLoader(dataset, 2, **arguments)
    for _ in range(epochs):
        iterator = iter(loader)
        for _ in range(len(loader)):
            drawn.asked(iterator)
            next(iterator)
            drawn.delivered(dataset, iterator)
    return drawn.of(id(dataset))


@pytest.mark.parametrize("shuffle", [False, True])
def test_samples_that_draw_nothing_in_any_order(shuffle):
    assert looked_at(Rows(), shuffle=shuffle, epochs=2) is False


@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: torch.rand(())])
def test_samples_that_draw_from_a_global_generator(draw):
    assert looked_at(Rows(draw)) is True


def test_a_sample_that_draws_now_and_then_is_seen_in_its_batch():
    nothing = iter([0.0] * 7)
    assert looked_at(Rows(lambda: next(nothing, None) or random.random() * (next(nothing, 1.0)))) is True


def test_few_batches_show_nothing():
    assert looked_at(torch.utils.data.Subset(Rows(), range(4)), epochs=1) is None  # one after the first
    assert looked_at(torch.utils.data.Subset(Rows(), range(4)), epochs=2) is False


@pytest.mark.parametrize("package", module._OWN_GENERATORS)
def test_transforms_with_generators_of_their_own_show_nothing(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, object())
    assert looked_at(Rows()) is None
    assert looked_at(Rows(random.random)) is True


@pytest.mark.parametrize(
    "generator", [random.Random(0), np.random.default_rng(0), np.random.RandomState(0), torch.Generator()]
)
def test_a_generator_of_its_own_anywhere_in_a_dataset_shows_nothing(generator):
    dataset, transform = Rows(), SimpleNamespace(steps=[SimpleNamespace(generator=generator)])
    dataset.transform = transform
    assert looked_at(torch.utils.data.Subset(dataset, range(12))) is None


def test_generators_that_cannot_be_read_show_nothing(monkeypatch):
    monkeypatch.setattr(random, "getstate", lambda: 1 / 0)
    assert looked_at(Rows()) is None


def test_a_few_batches_are_looked_at(monkeypatch):
    calls = []
    monkeypatch.setattr(module, "random_state", lambda: calls.append(1) or (1,))
    looked_at(Rows(), epochs=9)
    assert len(calls) == 8


def test_another_loader_in_between_is_another_iterator():
    drawn, dataset = DrawnBatches(), Rows()
    one, other = (iter(DataLoader(dataset, 2)) for _ in range(2))
    for iterator in (one, other, one, other):
        drawn.asked(iterator)
        next(iterator)
        drawn.delivered(dataset, iterator)
    assert drawn.of(id(dataset)) is None  # each of them may have been the first batch of an epoch
