import functools
import gc
import itertools
import multiprocessing
import os
import random
import shutil
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from diagnose.kernels._cache_files import load, pack, store
from diagnose.kernels._loader_costs import same
from diagnose.kernels.shared_cache import SharedCache

VALUES = [
    torch.randn(5, 3),
    torch.randn(4, 6)[:, ::2],
    torch.arange(7, dtype=torch.bfloat16),
    torch.tensor([True, False]),
    torch.tensor(3),
    torch.empty(0, 4),
    torch.tensor([1 + 2j]),
    np.arange(6, dtype=np.float16).reshape(2, 3),
    {"image": torch.randint(0, 255, (3, 8, 8), dtype=torch.uint8), "label": 4, "name": "cat", "boxes": [torch.ones(2)]},
    b"raw",
    None,
]


class Decoded(Dataset):
    def __init__(self, decode, num=16):
        self.decode, self.num = decode, num

    def __len__(self):
        return self.num

    def __getitem__(self, index):
        return self.decode(index) + 0.0


def slowly(index):
    return torch.full((1000,), float(index))


@pytest.fixture
def cache():
    cache = SharedCache(1 << 20)
    yield cache
    cache.close()
    assert not cache.folder.exists()


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_every_value_comes_back_bit_by_bit(tmp_path, value):
    store(tmp_path / "value", pack(value))
    assert same(load(tmp_path / "value"), (value,))
    assert load(tmp_path / "nothing") is None


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.full)])
def test_workers_share_one_copy_over_epochs(cache, context):
    stage = cache.stage(os.path.basename if context == "spawn" else slowly)
    if context == "spawn":  # what a spawned worker needs must be importable
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            assert pool.map(stage, ["/a/b", "/a/c"] * 8) == ["b", "c"] * 8
        counts = cache.counts()
        assert counts.hits + counts.misses == 16
        assert 2 <= counts.misses <= 4
        return
    loader = DataLoader(Decoded(stage), batch_size=4, num_workers=2)
    epochs = [torch.cat(list(loader))[:, 0].tolist() for _ in range(3)]
    assert epochs == [list(map(float, range(16)))] * 3
    counts = cache.counts()
    assert (counts.misses, counts.hits, counts.evicted) == (16, 32, 0)
    assert counts.held_bytes > 16 * 4000


def test_what_is_changed_in_place_stays_with_the_one_who_changed_it(cache):
    stage = cache.stage(slowly)
    stage(3)
    stage(3).zero_()
    assert stage(3)[0] == 3


def test_budget_holds_and_the_least_recently_used_goes_first():
    cache = SharedCache(10 * 4200)
    decode, order = cache.stage(slowly), itertools.count()

    def stage(index):
        """Use a value, then set the time of the file just used to its place in the order: file times are coarse."""
        decode(index)
        for path in cache.folder.iterdir():
            if path.name != "ledger" and path.stat().st_mtime > 1_000_000:
                os.utime(path, (0, next(order)))

    for index in range(9):
        stage(index)
    for _ in range(3):
        stage(0)
    for index in range(20, 26):
        stage(index)
        assert sum(p.stat().st_size for p in cache.folder.iterdir()) <= 10 * 4200 + 100
    before = cache.counts()
    stage(0)
    assert cache.counts().hits == before.hits + 1, "what was used last was removed"
    stage(1)
    assert cache.counts().misses == before.misses + 1
    assert before.evicted >= 5
    assert before.held_bytes <= 10 * 4200
    cache.close()


def test_values_larger_than_the_budget_are_handed_through():
    cache = SharedCache(100)
    assert cache.stage(slowly)(1).shape == (1000,)
    assert (cache.counts().refused, cache.counts().held_bytes) == (1, 0)
    cache.close()


def test_a_value_that_another_worker_kept_meanwhile_counts_once(cache):
    key = "0" * 32
    cache.put(key, b"value")
    held = cache.counts().held_bytes
    cache.put(key, b"value")
    assert held == cache.counts().held_bytes > 0


def test_a_value_that_somebody_removes_meanwhile_disturbs_nothing(monkeypatch):
    cache = SharedCache(1000)
    square = cache.stage(lambda i: torch.full((100,), i))
    stat = SimpleNamespace(st_mtime_ns=0, st_size=10)
    gone = SimpleNamespace(name="0" * 32, path=str(cache.folder / "gone"), stat=lambda: stat)
    scandir = os.scandir
    with monkeypatch.context() as within:
        within.setattr("diagnose.kernels.shared_cache.os.scandir", lambda folder: [gone, *scandir(folder)])
        assert [int(square(number)[0]) for number in range(4)] == [0, 1, 2, 3]
    assert 0 < cache.counts().held_bytes <= 1000
    cache.close()


def test_a_full_device_is_no_error(cache, monkeypatch):
    def full(self, *_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("diagnose.kernels._cache_files.Path.replace", full)
    assert cache.stage(slowly)(1)[0] == 1
    assert cache.counts().refused == 1
    assert [p.name for p in cache.folder.iterdir()] == ["ledger"]


@pytest.mark.parametrize("draw", [lambda: torch.rand(1), random.random, np.random.rand, itertools.count().__next__])
def test_stages_that_do_not_repeat_themselves_are_refused(cache, draw):
    with pytest.raises(ValueError, match="is not deterministic"):
        cache.stage(lambda index: draw())(0)
    assert cache.counts().held_bytes == 0


def test_versions_and_functions_do_not_mix(cache):
    old, new, other = cache.stage(zlib.crc32, version="1"), cache.stage(zlib.crc32, version="2"), cache.stage(len)
    assert (old(b"x"), new(b"x"), other(b"x")) == (zlib.crc32(b"x"), zlib.crc32(b"x"), 1)
    assert cache.counts().misses == 3


def test_keys_are_told_apart(cache):
    stage = cache.stage(lambda *args, **kwargs: (args, kwargs))
    given = [((1,), {}), (("1",), {}), ((1.0,), {}), ((True,), {}), ((b"1",), {}), ((None,), {}), (((1, 2),), {})]
    given += [((1, 2), {}), (((1,), 2), {}), ((), {"a": 1}), ((), {"b": 1}), ((Path("1"),), {})]
    for _ in range(2):
        assert [stage(*args, **kwargs) for args, kwargs in given] == given
    assert cache.counts().misses == len(given)
    assert stage(np.int64(1)) == ((1,), {})
    with pytest.raises(TypeError, match="called with a list"):
        stage([1])


def test_a_cache_with_a_path_stays_and_is_found_again(tmp_path):
    SharedCache(1 << 20, path=tmp_path / "c").stage(slowly)(3)
    cache = SharedCache(1 << 20, path=tmp_path / "c")
    assert cache.stage(slowly)(3)[0] == 3
    assert cache.counts().hits == 1
    cache.close()
    assert (tmp_path / "c").exists()


@pytest.mark.parametrize("value", [torch.arange(1000.0), {"a": np.arange(500), "b": torch.ones(300)}, b"raw" * 300])
def test_a_damaged_value_on_disk_is_computed_again(tmp_path, value):
    calls = []

    def stage(index):
        calls.append(index)
        return value

    cache = SharedCache(1 << 20, path=tmp_path / "cache")
    cache.stage(stage, name="stage")(5)
    (file,) = (path for path in cache.folder.iterdir() if len(path.name) == 32)
    data = file.read_bytes()
    for at in random.Random(0).sample(range(len(data)), 40):
        file.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        del calls[:]
        again = SharedCache(1 << 20, path=tmp_path / "cache").stage(stage, name="stage")
        assert same(again(5), value), f"byte {at} of {len(data)}"
        assert calls, f"byte {at} of {len(data)}"
        assert file.read_bytes() == data


def test_memory_goes_with_the_process_that_made_it(monkeypatch):
    cache = SharedCache(1 << 20)
    folder = cache.folder
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)  # as in a forked worker
    cache.close()
    assert folder.exists()
    monkeypatch.undo()
    shutil.rmtree(folder)
    cache = SharedCache(1 << 20)
    folder = cache.folder
    del cache
    gc.collect()
    assert not folder.exists()


def test_wrong_arguments_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="num_bytes >= 1, not 0"):
        SharedCache(0)
    monkeypatch.setattr(os, "geteuid", lambda: -5)
    with pytest.raises(PermissionError, match="belongs to another user"):
        SharedCache(1, path=tmp_path)


class Split:
    def __init__(self, name):
        self.name = name

    def load(self, index):
        return f"{self.name} {index}"


def joined(first, second):
    return f"{first} {second}"


PAIRS = {
    "methods": lambda: (Split("train").load, Split("val").load),
    "lambdas": lambda: ((lambda index: f"train {index}"), (lambda index: f"val {index}")),
    "partials": lambda: (functools.partial(joined, "train"), functools.partial(joined, "val")),
    "closures": lambda: tuple(map(of_split, ("train", "val"))),
}


def of_split(name):
    def load(index):
        return f"{name} {index}"

    return load


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_functions_without_a_name_of_their_own_share_nothing(cache, pair):
    train, val = pair()
    stages = [cache.stage(function) for function in (train, val, train)]
    assert [stage(1) for stage in stages] == ["train 1", "val 1", "train 1"]
    assert (cache.counts().misses, cache.counts().hits) == (2, 1)


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_cache_that_stays_asks_for_their_names(tmp_path, pair):
    for _ in range(2):  # as two runs
        cache = SharedCache(1 << 20, path=tmp_path / "cache")
        train, val = pair()
        with pytest.raises(ValueError, match=r"later runs .*; pass name="):
            cache.stage(train)
        assert [cache.stage(train, name="train")(1), cache.stage(val, name="val")(1)] == ["train 1", "val 1"]
    assert (cache.counts().misses, cache.counts().hits) == (2, 2)


def test_one_name_is_one_function(cache):
    cache.stage(joined)
    cache.stage(joined)
    assert cache.stage(joined, version="2").prefix != cache.stage(joined).prefix
    cache.stage(Split("train").load, name="split")
    with pytest.raises(ValueError, match=r"name 'split' .* another function"):
        cache.stage(Split("val").load, name="split")
