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
    record = load_again(DataLoader(dataset(), 8, shuffle=shuffle, collate_fn=collate), min_share=0.0)
    assert record.left_out == ""
    assert [(one.text, one.padded_to) for one in record.expressions if one.padded_to] == [(text, 32)]


def longest(samples):
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)


def test_rows_as_long_as_the_longest_of_a_batch_are_not_padded():
    record = load_again(DataLoader(Words(), 8, shuffle=False, collate_fn=longest), min_share=0.0)
    assert (record.left_out, {one.padded_to for one in record.expressions}) == ("", {0})


class Signals(Dataset):
    """Signals of 20 to 27 numbers, whose first and last ones are 0 in some, of 3 channels in some."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return self.as_row(np.sin(np.arange(1.0, 21 + index // 8 % 8, dtype=np.float32)))

    def as_row(self, signal):
        return signal


class AtEnd(Signals):
    def as_row(self, signal):
        return np.pad(signal, (0, 40 - len(signal)))


class AtStart(Signals):
    def as_row(self, signal):
        return torch.cat([torch.full((40 - len(signal),), -80.0), torch.as_tensor(signal)])


class Frames(Signals):
    def as_row(self, signal):
        frames = np.zeros((40, 3), np.float32)
        frames[: len(signal)] = signal[:, None]
        return frames


def in_one(samples):
    batch = np.zeros((len(samples), 40, 3))
    for row, sample in zip(batch, samples, strict=True):
        row[: len(sample)] = sample[:, None]
    return torch.as_tensor(batch)


@pytest.mark.parametrize(
    ("dataset", "collate", "text"),
    [
        (AtEnd, stacked, "np.pad(signal, (0, 40 - len(signal)))"),
        (AtStart, torch.stack, "torch.cat([torch.full((40 - len(signal),), -80.0), torch.as_tensor(signal)])"),
        (Frames, stacked, "np.zeros((40, 3), np.float32)"),
        (Signals, in_one, "np.zeros((len(samples), 40, 3))"),
    ],
)
def test_what_fills_up_signals_is_named(dataset, collate, text):
    record = load_again(DataLoader(dataset(), 8, collate_fn=collate), min_share=0.0)
    assert record.left_out == ""
    assert [(one.text, one.padded_to) for one in record.expressions if one.padded_to] == [(text, 40)]


class Bordered(Dataset):
    """Pictures with a border of zeros of different width: nothing is put into a longer row."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        picture = np.zeros((8, 8), np.float32)
        picture[2 : 6 - index % 2] = 1.5
        return self.flat(picture + 0.0)

    def flat(self, picture):
        return np.reshape(picture, -1) * 2


def longest_signals(samples):
    return torch.nn.utils.rnn.pad_sequence([torch.as_tensor(each) for each in samples], batch_first=True)


def test_data_with_one_number_at_its_ends_and_signals_as_long_as_the_longest_are_not_padded():
    record = load_again(DataLoader(Bordered(), 8, collate_fn=stacked), min_share=0.0)
    assert {one.text for one in record.expressions if one.padded_to} <= {"np.zeros((8, 8), np.float32)"}
    assert 64 not in {one.padded_to for one in record.expressions}
    record = load_again(DataLoader(Signals(), 8, shuffle=True, collate_fn=longest_signals), min_share=0.0)
    assert (record.left_out, {one.padded_to for one in record.expressions}) == ("", {0})
