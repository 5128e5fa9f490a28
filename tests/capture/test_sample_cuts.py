"""The share of results that cuts use, of operations that are called by hand and of a loader's samples."""

import operator
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from diagnose.capture.samples.recorder import Cuts, Made
from diagnose.capture.samples.replay import load_again

from_loader = pytest.mark.skipif(sys.platform != "linux", reason="samples are loaded again in a forked process")
SIZE = 64


@pytest.fixture(autouse=True)
def users(monkeypatch):
    """Let this file be the user's, which lies in a folder of ours."""
    monkeypatch.setattr("diagnose.capture.samples.replay.is_users", lambda code: code.co_filename == __file__)


def cut_of(*steps, at=slice(64, 576), whole=None):
    """Return which share is used of the results of steps, each of the one before, of which one is used as a whole."""
    cuts, held = Cuts(), torch.arange(4096.0) if callable(steps[0]) else steps[0]
    for number, step in enumerate(steps if callable(steps[0]) else steps[1:]):
        result = step(held)
        cuts.add(Made(number, result, step, (held,), {}))
        if number == whole:
            cuts.use(result)
        held = result
    cuts.cut(9, held, at, held[at])
    cuts.end_sample()
    return [cuts.used(number) for number in range(len(steps) - (not callable(steps[0])))]


def test_operations_by_element_are_followed_from_the_cut_back():
    assert cut_of(torch.log1p, torch.neg) == [0.125, 0.125]
    assert cut_of(np.arange(4096.0), np.sqrt, np.negative) == [0.125, 0.125]
    assert cut_of(np.arange(4096.0), np.cumsum, np.negative) == [1, 0.125]


def test_what_has_other_uses_is_used_up():
    assert cut_of(torch.log1p, torch.neg, whole=0) == [1, 0.125]


def test_operands_of_other_shapes_are_cut_where_they_are_repeated():
    cuts, rows, mean = Cuts(), np.arange(4096.0).reshape(4, 1024), np.ones((4, 1))
    whole = rows - mean
    cuts.add(Made(0, whole, operator.sub, (rows, mean), {}))
    at = (slice(None), slice(0, 256))
    cuts.cut(9, whole, at, whole[at])
    cuts.cut(9, whole, (0,), whole[0])
    cuts.end_sample()
    assert cuts.used(0) == 0.5


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
@pytest.mark.parametrize("mirrored", [False, True])
def test_what_is_cut_of_a_view_is_cut_of_what_it_views(turns, mirrored):
    image, mix = np.random.default_rng(0).random((64, 64, 3)), np.eye(3) + 0.1
    cuts, mixed = Cuts(), image @ mix.T
    cuts.add(Made(0, mixed, operator.matmul, (image, mix.T), {}))
    centred = mixed - 0.5
    cuts.add(Made(1, centred, operator.sub, (mixed, 0.5), {}))
    turned = np.rot90(centred, turns)
    cuts.add(Made(2, turned, np.rot90, (centred, turns), {}))
    if mirrored:
        at = slice(None), slice(None, None, -1)
        view = turned[at]
        cuts.cut(3, turned, at, view)
        turned = view
    at = slice(8, 24), slice(40, 56)
    cuts.cut(9, turned, at, turned[at])
    cuts.end_sample()
    assert [cuts.used(number) for number in (0, 1)] == [1 / 16, 1 / 16]


def test_a_view_that_is_used_as_a_whole_uses_what_it_views():
    cuts, image = Cuts(), np.random.default_rng(0).random((64, 64))
    centred = image - 0.5
    cuts.add(Made(0, centred, operator.sub, (image, 0.5), {}))
    turned = centred.T
    cuts.add(Made(1, turned, centred.transpose, (), {}))
    cuts.cut(9, turned, slice(0, 8), turned[:8])
    cuts.add(Made(2, turned + 1, operator.add, (turned, 1), {}))
    cuts.end_sample()
    assert cuts.used(0) == 1


def test_what_is_tried_again_writes_to_a_copy():
    row = torch.arange(4096.0)
    cuts, before = Cuts(), 2 * row
    made = Made(0, row.mul_(2), row.mul_, (2,), {})
    cuts.add(made)
    cuts.cut(9, row, slice(0, 512), row[:512])
    cuts.end_sample()
    assert (cuts.used(0), torch.equal(row, before)) == (1, True)
    out = np.zeros(4096)
    cuts.add(Made(0, np.negative(out, out=out), np.negative, (out,), {"out": out}))
    cuts.cut(9, out, slice(0, 512), out[:512])
    cuts.end_sample()
    assert cuts.used(0) == 1


def test_small_results_and_lists_are_left_out():
    cuts = Cuts()
    for made in (np.ones(8), [1] * 4096, np.array(["a"] * 4096, object)):
        cuts.add(Made(0, made, np.copy, (made,), {}))
        cuts.cut(9, made, slice(0, 4), made[:4])
    assert cuts.used(0) == 1


class Rows(Dataset):
    def __init__(self):
        self.rows = np.arange(SIZE * 4096, dtype=np.float32).reshape(SIZE, 4096)

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return self.sample(index)


def loaded(kind, collate):
    return load_again(DataLoader(kind(), 8, collate_fn=collate), min_share=0.0)


def of(record, text):
    (found,) = [one for one in record.expressions if one.text == text]
    return found


def batch(samples):
    return torch.as_tensor(np.stack(samples))


class Cut(Rows):
    """Rows of which a sample takes a window, after the whole of each was computed."""

    def sample(self, index):
        row = self.rows[index]
        scaled = (row - row.mean()) / row.std()
        return scaled[64 : 64 + 1024]


class CutInSteps(Rows):
    def sample(self, index):
        row = self.scaled(torch.as_tensor(self.rows[index]))
        row = torch.log1p(row)
        return torch.cat([row[:512], row[1024 : 1024 + 512]])

    def scaled(self, row):
        return torch.sqrt(row) / len(row)


@from_loader
def test_results_of_which_a_sample_takes_a_part_are_used_by_so_much():
    record = loaded(Cut, batch)
    assert of(record, "(row - row.mean()) / row.std()").used == of(record, "row - row.mean()").used == 0.25
    assert of(record, "row.mean()").used == 1
    assert of(record, "row.std()").what == "float32"
    assert of(loaded(CutInSteps, torch.stack), "torch.log1p(row)").used == 0.25
    assert of(loaded(CutInSteps, torch.stack), "torch.sqrt(row) / len(row)").used == 0.25


@from_loader
def test_a_result_is_followed_through_the_functions_that_are_given_it():
    record = loaded(Chain, len)
    assert of(record, "np.sqrt(row) / 2").used == of(record, "np.sqrt(row)").used == 0.25
    file, line, text = of(record, "np.sqrt(row)").cut
    assert (file, text) == (of(record, "np.sqrt(row)").file, "row[start:start + 1024]")
    assert line > of(record, "np.sqrt(row)").line - 20


class Summed(Rows):
    def sample(self, index):
        return np.cumsum(self.rows[index])[64 : 64 + 1024]


class UsedTwice(Rows):
    def sample(self, index):
        scaled = self.rows[index] / 2
        return np.append(scaled[:1024], scaled.mean())


class Compared(Rows):
    def sample(self, index):
        scaled = self.rows[index] / 2
        return scaled[:1024] if (scaled > 1).any() else scaled[1024:]


class Sometimes(Rows):
    def sample(self, index):
        scaled = self.rows[index] / 2
        return scaled.copy()[:1024] if index % 2 else np.cumsum(scaled)[64 : 64 + 1024]


@from_loader
def test_each_sample_counts_with_what_it_uses():
    assert of(loaded(Sometimes, len), "self.rows[index] / 2").used == (0.25 + 1) / 2


class PassedOn(Rows):
    def sample(self, index):
        scaled = self.rows[index] / 2
        return self.window(scaled)

    def window(self, row):
        return row[:1024] if row.any() else row


class Window:
    def __call__(self, row, start):
        return row[start : start + 1024]


class Chain(Rows):
    """Transforms that are called one after the other, of which the last takes a window."""

    def scaled(self, row, _start):
        return np.sqrt(row) / 2

    def sample(self, index):
        row = self.rows[index]
        for transform in (self.scaled, Window()):
            row = transform(row, 64)
        if index % 2:
            row = row[::-1]
        return row


class ByLibrary(Chain):
    """The same, called by code that is not the user's: what becomes of the results is not seen."""

    def sample(self, index):
        (row,) = map(self.scaled, [self.rows[index]], [0])
        return row[64 : 64 + 1024]


class Held(Rows):
    def sample(self, index):
        self.last = self.rows[index] / 2
        return self.last[:1024]


class Listed(Rows):
    def sample(self, index):
        scaled = self.rows[index] / 2
        return np.stack([scaled, scaled])[0, :1024]


class Changed(Rows):
    def sample(self, index):
        scaled = self.rows[index] / 2
        scaled += 1
        return scaled[:1024]


class InPlace(Rows):
    def sample(self, index):
        row = torch.as_tensor(self.rows[index]).clone()
        return row.mul_(2)[:1024]


@from_loader
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Summed, "np.cumsum(self.rows[index])"), (UsedTwice, "self.rows[index] / 2"),
        (Compared, "self.rows[index] / 2"), (PassedOn, "self.rows[index] / 2"),
        (InPlace, "row.mul_(2)"), (ByLibrary, "np.sqrt(row) / 2"), (Held, "self.rows[index] / 2"),
        (Listed, "self.rows[index] / 2"), (Changed, "self.rows[index] / 2"),
    ],
)  # fmt: skip
def test_what_is_used_as_a_whole_or_cannot_be_computed_in_part_is_used_up(kind, text):
    record = loaded(kind, len)
    assert record.left_out == ""
    assert of(record, text).used == 1
