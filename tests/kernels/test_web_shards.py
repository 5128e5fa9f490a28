import sys

import pytest
import torch

from diagnose.kernels.web_shards import WebShards

FIELDS = ("x.npy", "y.cls")


# webdataset leaves its open files to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def shards(tmp_path, write_shards):
    pytest.importorskip("webdataset", reason="the webdataset package is not installed")
    return write_shards(tmp_path, [5, 3, 7, 5])


def labels(batches):
    return [y for _, ys in batches for y in ys.tolist()]


@pytest.mark.parametrize("workers", [0, 2])
def test_every_sample_once_in_tensors(shards, workers):
    batches = list(WebShards(shards, FIELDS, batch_size=4, num_workers=workers))
    assert sorted(labels(batches)) == list(range(20))
    assert all(isinstance(x, torch.Tensor) and x.shape == (len(y), 4) for x, y in batches)
    assert all((x[:, 0] == y).all() for x, y in batches)


def test_order_follows_from_seed_and_epoch(shards):
    def order(epoch, **arguments):
        batches = WebShards(shards, FIELDS, batch_size=4, **arguments)
        batches.set_epoch(epoch)
        return labels(batches)

    assert order(0) == order(0) != order(1)
    assert order(0, seed=1) != order(0)
    assert order(0, shuffle=0) == order(1, shuffle=0) == list(range(20))


def test_ranks_have_shards_of_their_own_and_epochs_of_one_length(shards):
    ranks = [
        WebShards(shards, FIELDS, batch_size=2, rank=r, num_ranks=2, num_workers=2, epoch_batches=3) for r in range(2)
    ]
    seen = [labels(batches) for batches in ranks]
    assert [len(batches) for batches in ranks] == [3, 3]
    assert not set(seen[0]) & set(seen[1])
    assert [len(list(batches)) for batches in ranks] == [3, 3]


def test_short_shares_begin_again(shards):
    batches = WebShards(shards[:1], FIELDS, batch_size=2, epoch_batches=7)
    seen = labels(batches)
    assert sorted(seen[:5]) == sorted(seen[5:10]) == list(range(5))
    assert len(list(batches)) == 7


def test_goes_on_within_an_epoch(shards):
    batches = WebShards(shards, FIELDS, batch_size=4)
    batches.set_epoch(3)
    whole = labels(batches)
    first = []
    for _, y in batches:
        first += y.tolist()
        state = batches.state_dict()
        if len(first) >= 8:
            break
    other = WebShards(shards, FIELDS, batch_size=4)
    other.load_state_dict(state)
    other.set_epoch(3)
    assert first + labels(other) == whole
    assert labels(other) == whole, "the position is for one loop only"


def test_transforms_and_partial_batches(shards):
    batches = list(WebShards(shards, FIELDS, batch_size=8, transforms=(torch.from_numpy, str), shuffle=0))
    assert [len(y) for _, y in batches] == [8, 8, 4]
    assert batches[0][1][0] == "0"


def test_wrong_arguments_are_refused(shards, tmp_path, write_shards):
    for arguments, said in (
        ({"num_workers": 3, "rank": 0, "num_ranks": 2, "epoch_batches": 1}, r"4 shards for 2 rank\(s\) with 3 reader"),
        ({"rank": 0, "num_ranks": 2}, "give epoch_batches"),
        ({"batch_size": 0}, ">= 1, not 0"),
        ({"transforms": (str,)}, "one transform for each"),
    ):
        with pytest.raises(ValueError, match=said):
            WebShards(shards, FIELDS, **{"batch_size": 2, **arguments})
    with pytest.raises(TypeError, match="list of shards"):
        WebShards("shard-{0..3}.tar", FIELDS, batch_size=2)
    with pytest.raises(TypeError, match="epoch_batches"):
        len(WebShards(shards, FIELDS, batch_size=2))
    (empty,) = write_shards(tmp_path, [0])
    with pytest.raises(ValueError, match="hold no sample"):
        list(WebShards([empty], FIELDS, batch_size=2))


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "webdataset", None)
    with pytest.raises(ImportError, match="pip install webdataset"):
        WebShards(["a"], ["b"], batch_size=1)
