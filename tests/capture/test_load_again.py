"""Samples of a loader loaded again: what its expressions are found to compute, and that the script sees nothing."""

import os
import random
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from diagnose.capture.record.loading import random_state
from diagnose.capture.samples.recorder import Recorder, fingerprint, wide_types
from diagnose.capture.samples.replay import load_again

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="samples are loaded again in a forked process")
SIZE = 64


@pytest.fixture(autouse=True)
def users(monkeypatch):
    """Let this file be the user's, which lies in a folder of ours."""
    monkeypatch.setattr("diagnose.capture.samples.replay.is_users", lambda code: code.co_filename == __file__)


class Rows(Dataset):
    def __init__(self):
        self.rows = np.arange(SIZE * 4096, dtype=np.float32).reshape(SIZE, 4096)
        self.asked = 0

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        self.asked += 1
        return self.sample(index)

    def sample(self, index):
        return self.rows[index]


def loaded(kind, collate=torch.as_tensor, **options):
    return load_again(DataLoader(kind(), 8, collate_fn=collate, **options), min_share=0.0)


def of(record, text):
    (found,) = [one for one in record.expressions if one.text == text]
    return found


def batch(samples):
    return torch.as_tensor(np.stack(samples))


class Standardised(Rows):
    def sample(self, index):
        scale = np.sort(self.rows[:8], axis=None).std()
        return np.sort(np.sqrt(self.rows[index])) / scale


def test_what_is_the_same_in_every_sample_is_told_from_what_a_sample_has_each_time():
    record = loaded(Standardised, batch)
    assert record.left_out == ""
    assert (record.samples, record.dataset_size, record.narrow) == (32, SIZE, True)
    whole, own = (
        of(record, "np.sort(self.rows[:8], axis=None)"),
        of(record, "np.sort(np.sqrt(self.rows[index])) / scale"),
    )
    assert (whole.is_constant, whole.is_repeated, whole.samples, whole.num) == (True, True, 32, 64)
    assert whole.what == "float32 (32768,)"
    assert (own.is_constant, own.is_repeated, own.num_bytes) == (False, True, 32 * 4096 * 4)


class Columns(Rows):
    def sample(self, index):
        return self.column(0)[index] + self.column(1)[index]

    def column(self, number):
        return np.stack([row.copy() for row in self.rows])[:, number]


def test_a_result_for_each_of_several_calls_is_the_same_in_every_sample():
    record = loaded(Columns)
    whole = of(record, "np.stack([row.copy() for row in self.rows])[:, number]")
    assert (whole.is_constant, whole.num, whole.samples) == (True, 128, 32)
    stacked = of(record, "np.stack([row.copy() for row in self.rows])")
    assert stacked.ns >= of(record, "row.copy()").ns  # its argument is a part of it
    assert record.expressions.index(stacked) in of(record, "row.copy()").inside
    assert not of(record, "self.column(0)[index]").is_constant


class Drawn(Rows):
    def sample(self, index):
        noise = np.random.normal(size=4096)
        return (self.rows[index] + noise).astype(np.float32)


def test_draws_are_neither_and_float64_on_the_way_is_seen():
    record = loaded(Drawn, batch)
    noise = of(record, "np.random.normal(size=4096)")
    assert (noise.is_constant, noise.is_repeated, noise.is_wide) == (False, False, True)
    assert record.narrow


def test_a_batch_in_float64_is_not_narrow():
    assert not loaded(Drawn, lambda samples: batch(samples).double()).narrow


class Filled(Rows):
    def sample(self, index):
        empty = np.zeros(1 << 18, np.float32)
        empty[:4096] = self.rows[index]
        return empty


def test_what_is_written_to_is_no_constant_to_keep():
    zeros = of(loaded(Filled, batch), "np.zeros(1 << 18, np.float32)")
    assert zeros.is_constant
    assert zeros.is_written


def padded(samples):
    together = np.concatenate(samples)
    return torch.as_tensor(np.stack([np.sort(each)[::-1].copy() for each in samples])), torch.as_tensor(together)


def test_of_a_batch_only_what_belongs_to_a_sample_is_the_same_when_batches_are_dealt_again():
    record = loaded(Rows, padded)
    assert of(record, "np.sort(each)").is_repeated
    assert not of(record, "np.concatenate(samples)").is_repeated


def test_the_script_notices_nothing(tmp_path):
    path = tmp_path / "values"
    path.write_bytes(bytes(range(256)))
    with path.open("rb", buffering=0) as file:

        class Read(Rows):
            def sample(self, index):
                return np.frombuffer(file.read(1) + os.urandom(8) + random.randbytes(8), np.uint8)

        loader = DataLoader(Read(), 8, shuffle=True, collate_fn=batch)
        before = random_state()
        file.seek(7)
        record = load_again(loader, min_share=0.0)
        assert (record.left_out, record.samples) == ("", 32)
        assert file.tell() == 7
        assert random_state() == before
    assert loader.dataset.asked == 0
    assert Rows.__getitem__.__code__.co_names == ("asked", "sample")


class Writing(Rows):
    path = ""

    def sample(self, index):
        try:
            with Path(self.path).open("w") as file:
                file.write("once")
        except Exception:
            pass
        return self.rows[index]


def test_a_sample_that_writes_a_file_is_not_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(Writing, "path", str(tmp_path / "made"))
    record = loaded(Writing, batch)
    assert record.left_out == (
        "Samples were not loaded again, as loading does more than reading: it opens a file to write."
    )
    assert not (tmp_path / "made").exists()
    assert record.samples == 0


class Failing(Rows):
    def sample(self, index):
        raise LookupError


def test_a_sample_that_fails_is_left_out_with_a_sentence(capfd):
    assert loaded(Failing).left_out == "Samples could not be loaded again: LookupError."
    assert capfd.readouterr() == ("", "")


class Waiting(Rows):
    def sample(self, index):
        time.sleep(60)


def test_a_sample_that_never_comes_is_waited_for_only_so_long():
    left_out = load_again(DataLoader(Waiting(), 8, collate_fn=torch.as_tensor), max_s=0.2).left_out
    assert left_out == "Loading samples again did not end within 0.2 s."


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(1)


def test_a_stream_is_left_out():
    left_out = load_again(DataLoader(Stream(), 8), min_share=0.0).left_out
    assert left_out == "The dataset is a stream, whose samples cannot be loaded again."


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.zeros(3), np.zeros((3, 1))),
        (np.zeros(3), np.zeros(3, np.float32)),
        (torch.zeros(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bfloat16)),
        ([1, "a"], [1, "b"]),
        ({"a": b"x"}, {"a": b"y"}),
        (1, True),
        (np.array(["a", None], object), np.array(["a", 1], object)),
    ],
)
def test_a_fingerprint_is_of_the_content(one, other):
    assert fingerprint(one) == fingerprint(one) != ""
    assert fingerprint(one) != fingerprint(other)


def test_what_cannot_be_read_has_no_fingerprint():
    assert fingerprint(object()) == fingerprint(None) == fingerprint([object()]) == fingerprint(iter([1])) == ""


def test_types_are_looked_for_in_what_a_batch_holds():
    assert wide_types({"x": [np.zeros(64)]})
    assert not wide_types(({"x": torch.zeros(64)}, "name", 1.0, np.zeros(8)))
    assert wide_types(object())  # not known


def test_the_recorder_calls_subtracts_its_own_time_and_passes_errors_on():
    recorder = Recorder()
    assert recorder.operate(recorder.begin(0), "Sub", 5, 3) == 2
    assert recorder.get(recorder.begin(1), [1, 2, 3], slice(1, 3)) == [2, 3]
    assert recorder.call(recorder.begin(2), lambda: recorder.call(recorder.begin(3), max, 1, 2)) == 2
    with pytest.raises(ZeroDivisionError):
        recorder.operate(recorder.begin(4), "Div", 1, 0)
    assert [(one.number, one.parent) for one in recorder.seen] == [(0, -1), (1, -1), (3, 2), (2, -1)]
    inner, outer = recorder.seen[2:]
    assert outer.own_ns == outer.ns - inner.ns >= 0


def test_operands_are_a_part_of_an_expression_and_those_that_raise_leave_nothing_open():
    recorder = Recorder()
    with pytest.raises(ZeroDivisionError):
        recorder.call(recorder.begin(0), max, 1, recorder.operate(recorder.begin(1), "Div", 1, 0))
    assert recorder.call(recorder.begin(2), max, 1, recorder.operate(recorder.begin(3), "Add", 1, 1)) == 2
    assert [(one.number, one.parent) for one in recorder.seen] == [(3, 2), (2, 0)]
    recorder.end_batch()
    recorder.get(recorder.begin(4), [1], 0)
    assert recorder.seen[-1].parent == -1


class Listed(Rows):
    def __getitem__(self, index):
        row = self.rows[index, :600]
        return {
            "flow": row.tolist(),
            "box": [1, 2],
            "kind": 3,
        }


def test_lists_that_torchs_own_collate_takes_number_by_number_are_measured_against_arrays():
    found = load_again(DataLoader(Listed(), 8)).listed
    assert (found.text, found.numbers, found.function) == ("flow", 602, "__getitem__")
    assert Path(__file__).read_text().split("\n")[found.line - 1].strip() == '"flow": row.tolist(),'
    assert 0 <= found.share <= 1  # how much depends on the clock
    assert load_again(DataLoader(Rows(), 8)).listed is None
    assert loaded(Listed, collate=lambda samples: samples).listed is None
