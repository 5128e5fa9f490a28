"""Which expression of a loader's samples pads them."""

import sys

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from diagnose.capture.samples.replay import load_again

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="samples are loaded again in a forked process")
SIZE = 64


@pytest.fixture(autouse=True)
def users(monkeypatch):
    """Let this file be the user's, which lies in a folder of ours."""
    monkeypatch.setattr("diagnose.capture.samples.replay.is_users", lambda code: code.co_filename == __file__)
    monkeypatch.setattr("diagnose.capture.samples.replay.MIN_SHARE", 0.0)  # no test depends on what takes how long


class Words(Dataset):
    """Rows of 10 to 17 numbers, of which one batch may have one length only."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return self.as_row([7 + each for each in range(10 + index // 8 % 8)])

    def as_row(self, words):
        return torch.tensor(words)


class Lists(Words):
    def as_row(self, words):
        row = words + [0] * (32 - len(words))
        return torch.tensor(row)


class Left(Words):
    def as_row(self, words):
        return np.pad(words, (32 - len(words), 0))


def filled(samples):
    rows = torch.zeros(len(samples), 32, dtype=torch.long)
    for row, sample in zip(rows, samples, strict=True):
        row[: len(sample)] = sample
    return rows


def stacked(samples):
    return torch.as_tensor(np.stack(samples))


@pytest.mark.parametrize(
    ("dataset", "collate", "text"),
    [
        (Words, filled, "torch.zeros(len(samples), 32, dtype=torch.long)"),
        (Lists, torch.stack, "words + [0] * (32 - len(words))"),
        (Left, stacked, "np.pad(words, (32 - len(words), 0))"),
    ],
)
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_first_to_make_padded_rows_is_named(dataset, collate, text, shuffle):
    record = load_again(DataLoader(dataset(), 8, shuffle=shuffle, collate_fn=collate))
    assert record.left_out == ""
    assert [(one.text, one.padded_to) for one in record.expressions if one.padded_to] == [(text, 32)]


def longest(samples):
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)


def test_rows_as_long_as_the_longest_of_a_batch_are_not_padded():
    record = load_again(DataLoader(Words(), 8, shuffle=False, collate_fn=longest))
    assert (record.left_out, {one.padded_to for one in record.expressions}) == ("", {0})
