"""Samples written into shards come back as they were."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from diagnose.kernels import shard_writing
from diagnose.kernels.shard_writing import READERS, dataset_samples, folder_samples, table_samples, write_shards


@pytest.fixture
def images(tmp_path):
    for kind, name, data in (("cat", "a.jpg", b"one"), ("cat", "b.jpg", b"two"), ("dog", "a.jpg", b"three")):
        (tmp_path / "images" / kind).mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / kind / name).write_bytes(data)
    return tmp_path / "images"


def contents(path):
    with tarfile.open(path) as shard:
        return {entry.name: shard.extractfile(entry).read() for entry in shard}


@pytest.mark.parametrize("max_bytes", [6, 8])  # a sample of two fields has 4, so the second one comes to 8
def test_a_shard_ends_with_the_sample_that_fills_it(images, tmp_path, max_bytes):
    shards = write_shards(folder_samples(images), tmp_path / "shards", max_bytes=max_bytes)
    assert [path.rpartition("/")[2] for path in shards] == ["shard-000000.tar", "shard-000001.tar"]
    assert contents(shards[0]) == {
        "000000000.jpg": b"one", "000000000.cls": b"0", "000000001.jpg": b"two", "000000001.cls": b"0",
    }  # fmt: skip
    assert contents(shards[1]) == {"000000002.jpg": b"three", "000000002.cls": b"1"}
    assert len(list((tmp_path / "shards").iterdir())) == 2, "no part of a shard is left"


class Pairs:
    """Samples that are parts of one tensor, and of another dtype each."""

    def __init__(self, num):
        self.rows = torch.arange(4.0 * num).view(num, 4).t()

    def __len__(self):
        return self.rows.shape[1]

    def __getitem__(self, index):
        return {"row": self.rows[:, index], "half": self.rows[:, index].half()}, index, f"sample {index}"


def test_samples_of_a_dataset_come_back_as_they_are_in_little_room():
    pairs = Pairs(1000)
    samples = [sample["pth"] for sample in dataset_samples(pairs)]
    assert max(map(len, samples)) < 4000, "the whole tensor was written with each part"
    loaded = [torch.load(io.BytesIO(data), weights_only=True) for data in samples]
    order = [index for _, index, _ in loaded]
    assert order != sorted(order), "shards are shuffled as a whole, so classes would stay together"
    assert sorted(order) == list(range(1000))
    for tensors, index, name in loaded:
        assert torch.equal(tensors["row"], pairs[index][0]["row"])
        assert tensors["half"].dtype == torch.float16
        assert name == f"sample {index}"
    again = [sample["pth"] for sample in dataset_samples(pairs)]
    assert again == samples
    assert [torch.load(io.BytesIO(s["pth"]))[1] for s in dataset_samples(Pairs(20), seed=None)] == list(range(20))


@pytest.mark.parametrize("value", [np.zeros(3), Path("x")], ids=["array", "object"])
def test_what_shards_cannot_give_back_is_named(value):
    with pytest.raises(TypeError, match=r"Sample 0 holds more than tensors .* torch.from_numpy"):
        list(dataset_samples([(torch.zeros(2), value)]))


def test_a_table_names_files_and_labels(images, tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text("path,label\nimages/dog/a.jpg,7\n")
    assert list(table_samples(table, file="path", label="label")) == [{"jpg": b"three", "cls": b"7"}]
    with pytest.raises(ValueError, match="no column kind"):
        list(table_samples(table, file="path", label="kind"))


@pytest.mark.parametrize("reader", READERS)
def test_a_parquet_table_holds_files_or_names_them(images, tmp_path, monkeypatch, reader):
    monkeypatch.setattr(shard_writing, "READERS", (reader,))
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    columns = {
        "named": ["cat/a.jpg", "dog/a.jpg"],
        "held": [{"bytes": b"one", "path": "x.PNG"}, {"bytes": b"two", "path": None}],
        "plain": [b"three", b""],
        "label": [7, 8],
    }
    parquet.write_table(pyarrow.table(columns), images / "labels.parquet")

    def rows(file):
        return list(table_samples(images / "labels.parquet", file=file, label="label"))

    assert rows("named") == [{"jpg": b"one", "cls": b"7"}, {"jpg": b"three", "cls": b"8"}]
    assert rows("held") == [{"png": b"one", "cls": b"7"}, {"bin": b"two", "cls": b"8"}]
    assert rows("plain") == [{"bin": b"three", "cls": b"7"}, {"bin": b"", "cls": b"8"}]
    with pytest.raises(ValueError, match=r"labels\.parquet has no column kind"):
        rows("kind")
    empty = {"file": [{"bytes": None, "path": None}], "name": pyarrow.array([None], pyarrow.string()), "label": [1]}
    parquet.write_table(pyarrow.table(empty), images / "labels.parquet")
    for column in ("file", "name"):
        with pytest.raises(ValueError, match=f"Row 0 of .* has no file in its column {column}"):
            rows(column)


def test_a_parquet_table_without_its_readers_states_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_writing, "READERS", ("no_such_package",))
    with pytest.raises(ModuleNotFoundError, match="pip install pyarrow"):
        list(table_samples(tmp_path / "labels.parquet", file="path", label="label"))


def test_a_row_without_a_file_is_named(images):
    (images / "labels.csv").write_text("path,label\ncat/a.jpg,1\n,2\n")
    with pytest.raises(ValueError, match=r"Row 1 of .*labels\.csv has no file in its column path"):
        list(table_samples(images / "labels.csv", file="path", label="label"))


def test_progress_is_told_of_each_whole_shard(images, tmp_path):
    seen = []
    write_shards(folder_samples(images), tmp_path / "shards", max_bytes=6, progress=seen.append)
    assert [(p.shards, p.samples, p.num_bytes) for p in seen] == [(1, 2, 8), (2, 3, 14)]
    assert str(seen[1]) == "3 samples, 0.0 MB in 2 shards"


def test_a_sample_that_fails_leaves_no_part_of_a_shard(tmp_path):
    def samples():
        yield {"txt": b"one"}
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        write_shards(samples(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten_and_nothing_is_an_error(images, tmp_path):
    write_shards(folder_samples(images), tmp_path)
    with pytest.raises(FileExistsError, match="holds shards already"):
        write_shards(folder_samples(images), tmp_path)
    with pytest.raises(ValueError, match="no samples"):
        write_shards([], tmp_path / "other")
    with pytest.raises(ValueError, match="no folder for each class"):
        list(folder_samples(images / "cat"))
    with pytest.raises(ValueError, match="'a/b'"):
        write_shards([{"a/b": b""}], tmp_path / "other")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # webdataset leaves its files open
def test_web_shards_read_them(images, tmp_path):
    pytest.importorskip("webdataset")
    from diagnose.kernels.web_shards import WebShards

    samples = ({"txt": sample["jpg"], "cls": sample["cls"]} for sample in folder_samples(images))
    shards = write_shards(samples, tmp_path / "shards")
    batches = list(WebShards(shards, ("txt", "cls"), batch_size=3, shuffle=0))
    assert (list(batches[0][0]), batches[0][1].tolist()) == (["one", "two", "three"], [0, 0, 1])
