"""The printed code of pack-samples, run unchanged, gives the samples of the dataset."""

import functools

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from diagnose.changes.common.prescribe import also_possible
from diagnose.kernels import shard_writing
from diagnose.model.diagnosis import Finding
from diagnose.tables.program import Program

# webdataset leaves its open files to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Files(Dataset):
    """Samples of one small file each, which are decoded: values, their name and a label."""

    def __init__(self, folder, num):
        self.paths = [folder / f"{number}.txt" for number in range(num)]
        for number, path in enumerate(self.paths):
            path.write_text(" ".join(str(number + 10 * column) for column in range(6)))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        values = torch.tensor([int(word) for word in self.paths[index].read_text().split()])
        return {"values": values.view(2, 3).t() / 255, "name": self.paths[index].name}, index


TRAINS = Program(trains=True)


def printed(program=TRAINS, **facts):
    """Return what the change prints after, and None where it is not offered."""
    finding = Finding("data-stall", "", 1e6, share=0.3, facts={"waits": True, **facts})
    found = {each.id: each for each in also_possible(finding, 1e6, program)}
    return found["pack-samples"].after if "pack-samples" in found else None


@pytest.fixture
def files(tmp_path, monkeypatch):
    pytest.importorskip("webdataset", reason="the webdataset package is not installed")
    monkeypatch.chdir(tmp_path)
    return functools.partial(Files, tmp_path)


def by_index(samples):
    """Return the samples of batches in the dataset's order."""
    rows = [
        (int(index), values, name)
        for inputs, indices in samples
        for index, values, name in zip(indices, inputs["values"], inputs["name"], strict=True)
    ]
    return sorted(rows, key=lambda row: row[0])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("num", "max_bytes"), [(10, 256 << 20), (60, 5000)], ids=["few", "many shards"])
def test_what_is_printed_gives_the_samples_of_the_dataset(files, monkeypatch, num, max_bytes, workers):
    write = functools.partial(shard_writing.write_shards, max_bytes=max_bytes)
    monkeypatch.setattr(shard_writing, "write_shards", write)
    text = printed(batch_size=4, num_workers=2, sampler="RandomSampler")
    names = {"dataset": files(num)}
    exec(text.replace("num_workers=4", f"num_workers={workers}"), names)
    orders = []
    for epoch in range(2):
        names["loader"].set_epoch(epoch)
        batches = list(names["loader"])
        orders.append([int(index) for _, indices in batches for index in indices])
        expected = by_index(DataLoader(names["dataset"], batch_size=4))
        for (index, values, name), (its_index, its_values, its_name) in zip(by_index(batches), expected, strict=True):
            assert (index, name) == (its_index, its_name)
            assert torch.equal(values, its_values)
            assert values.dtype == its_values.dtype
    assert orders[0] != orders[1]
    assert len(list(names["dataset"].paths[0].parent.glob("shards/*.tar"))) > (10 if num > 10 else 0)


@pytest.mark.parametrize(
    "sampler", ["WeightedRandomSampler", "SequentialSampler", "Buckets", "_InfiniteConstantSampler"]
)
def test_a_sampler_that_chooses_is_not_lost(sampler):
    assert printed(batch_size=4) is not None
    assert printed(batch_size=4, sampler=sampler) is None
