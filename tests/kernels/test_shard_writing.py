"""Samples written into shards come back as they were."""

import tarfile

import pytest

from diagnose.kernels.shard_writing import folder_samples, table_samples, write_shards


@pytest.fixture
def images(tmp_path):
    for kind, name, data in (("cat", "a.jpg", b"one"), ("cat", "b.jpg", b"two"), ("dog", "a.jpg", b"three")):
        (tmp_path / "images" / kind).mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / kind / name).write_bytes(data)
    return tmp_path / "images"


def contents(path):
    with tarfile.open(path) as shard:
        return {entry.name: shard.extractfile(entry).read() for entry in shard}


def test_a_shard_ends_with_the_sample_that_fills_it(images, tmp_path):
    shards = write_shards(folder_samples(images), tmp_path / "shards", max_bytes=6)
    assert [path.rpartition("/")[2] for path in shards] == ["shard-000000.tar", "shard-000001.tar"]
    assert contents(shards[0]) == {
        "000000000.jpg": b"one", "000000000.cls": b"0", "000000001.jpg": b"two", "000000001.cls": b"0",
    }  # fmt: skip
    assert contents(shards[1]) == {"000000002.jpg": b"three", "000000002.cls": b"1"}
    assert len(list((tmp_path / "shards").iterdir())) == 2, "no part of a shard is left"


def test_a_table_names_files_and_labels(images, tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text("path,label\nimages/dog/a.jpg,7\n")
    assert list(table_samples(table, file="path", label="label")) == [{"jpg": b"three", "cls": b"7"}]
    with pytest.raises(ValueError, match="no column kind"):
        list(table_samples(table, file="path", label="kind"))


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
