"""Which function of the script's makes a loader's batches."""

import functools

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Sampler, TensorDataset, default_collate

from diagnose.capture.record.loading import batch_choosers, batch_maker

LIBRARY = TensorDataset(torch.zeros(4, 2))


class Texts:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return [index] * 2


def pad(samples, width=4):
    rows = [sample + [0] * (width - len(sample)) for sample in samples]
    return torch.tensor(rows)


class Pads:
    def __call__(self, samples):
        return pad(samples)


@pytest.mark.parametrize(
    ("dataset", "collate", "name", "lines"),
    [
        (Texts(), pad, "pad", 2),
        (LIBRARY, functools.partial(pad, width=8), "pad", 2),
        (LIBRARY, Pads(), "__call__", 1),
        (Texts(), None, "__getitem__", 1),  # torch collates
        (Texts(), default_collate, "__getitem__", 1),
        (LIBRARY, None, None, 0),
    ],
)
def test_what_collates_comes_before_the_dataset_and_libraries_are_nobody(dataset, collate, name, lines):
    found = batch_maker(DataLoader(dataset, collate_fn=collate), dataset)
    assert (found and found[3]) == name
    if found:
        assert found[0] == __file__
        assert found[2] - found[1] == lines


class Order(Sampler):
    def __iter__(self):
        yield from range(4)


class Pairs(Sampler):
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        for index in self.sampler:
            yield [index, index]


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ({}, []),
        ({"shuffle": True, "batch_size": 2}, []),
        ({"sampler": Order()}, [1]),
        ({"batch_sampler": Pairs(range(4))}, [2]),
        ({"batch_sampler": Pairs(Order())}, [2, 1]),
        ({"batch_sampler": BatchSampler(Order(), 2, drop_last=True)}, [1]),
        ({"batch_sampler": [[0, 1], [2, 3]]}, []),
        ({"batch_size": None}, []),
    ],
)
def test_what_chooses_samples_is_a_sampler_of_the_scripts(arguments, lines):
    found = batch_choosers(DataLoader(LIBRARY, **arguments))
    assert [(file, last - first, name) for file, first, last, name in found] == [
        (__file__, n, "__iter__") for n in lines
    ]
