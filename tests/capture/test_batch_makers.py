"""Which function of the script's makes a loader's batches."""

import functools

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate

from diagnose.capture.record.loading import batch_maker

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
