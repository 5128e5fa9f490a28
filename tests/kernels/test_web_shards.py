import copy
import gzip
import io
import os
import pickle
import sys
import tarfile
from pathlib import Path

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


def test_the_position_is_that_of_the_epoch_that_comes_next(shards):
    batches = WebShards(shards, FIELDS, batch_size=4)
    list(batches)
    assert batches.state_dict() == {"epoch": 0, "batches": 5}
    batches.set_epoch(1)
    state = batches.state_dict()
    assert state == {"epoch": 1, "batches": 0}
    other = WebShards(shards, FIELDS, batch_size=4)
    other.load_state_dict(state)
    other.set_epoch(1)
    assert labels(other) == labels(batches), "an epoch was skipped"


@pytest.mark.parametrize("epoch", [1, 4])
def test_another_epoch_than_the_loaded_one_begins_anew(shards, epoch):
    batches = WebShards(shards, FIELDS, batch_size=4)
    batches.load_state_dict({"epoch": 3, "batches": 2})
    batches.set_epoch(epoch)
    assert batches.state_dict() == {"epoch": epoch, "batches": 0}
    assert sorted(labels(batches)) == list(range(20))


def test_a_loop_that_was_left_does_not_count_for_the_next_epoch(shards):
    batches = WebShards(shards, FIELDS, batch_size=4)
    left = iter(batches)
    next(left)
    batches.set_epoch(1)
    assert len(list(left)) == 4, "as prefetchers go on for a while"
    assert batches.state_dict() == {"epoch": 1, "batches": 0}


def test_a_loaded_position_is_saved_again_as_it_is(shards):
    batches = WebShards(shards, FIELDS, batch_size=4)
    whole = labels(batches)
    batches.load_state_dict({"epoch": 0, "batches": 3})
    assert batches.state_dict() == {"epoch": 0, "batches": 3}
    rest = iter(batches)
    first = next(rest)
    assert batches.state_dict() == {"epoch": 0, "batches": 4}
    assert labels([first, *rest]) == whole[12:]
    batches.load_state_dict({"epoch": 0, "batches": 5})
    assert labels(batches) == [], "the epoch was over"
    assert labels(batches) == whole
    with pytest.raises(ValueError, match=r"\['step'\] is not one of WebShards"):
        batches.load_state_dict({"step": 3})


class WithProcess:
    """Returns a label and the process that decoded it."""

    def __call__(self, label):
        return torch.tensor([label, os.getpid()])


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_stay_from_epoch_to_epoch(shards, context):
    arguments = {"batch_size": 4, "transforms": (torch.from_numpy, WithProcess())}
    batches = WebShards(shards, FIELDS, num_workers=2, multiprocessing_context=context, **arguments)
    processes, orders = set(), []
    for epoch in range(3):
        batches.set_epoch(epoch)
        seen = torch.cat([y for _, y in batches])
        processes |= set(seen[:, 1].tolist())
        orders.append(seen[:, 0].tolist())
    assert len(processes) == 2, "workers were started again"
    assert all(sorted(order) == list(range(20)) for order in orders)
    for epoch, order in enumerate(orders):
        once = WebShards(shards, FIELDS, num_workers=2, persistent_workers=False, **arguments)
        once.set_epoch(epoch)
        assert torch.cat([y[:, 0] for _, y in once]).tolist() == order, "the epoch did not reach the workers"
    assert len(set(map(tuple, orders))) == 3


def test_a_loop_that_was_left_leaves_its_workers_to_the_next(shards):
    arguments = {"batch_size": 2, "transforms": (torch.from_numpy, WithProcess()), "num_workers": 2}
    batches = WebShards(shards, FIELDS, **arguments)
    left = iter(batches)
    first = next(left)[1]
    batches.set_epoch(1)
    inner = torch.cat([y for _, y in batches])
    assert sorted(inner[:, 0].tolist()) == list(range(20))
    rest = torch.cat([first, *(y for _, y in left)])
    assert sorted(rest[:, 0].tolist()) == list(range(20)), "two loops took each other's samples"
    assert not set(rest[:, 1].tolist()) & set(inner[:, 1].tolist())
    left = iter(batches)
    next(left)
    left.close()
    again = torch.cat([y for _, y in batches])
    assert again[:, 0].tolist() == inner[:, 0].tolist()
    assert set(again[:, 1].tolist()) <= set(rest[:, 1].tolist()), "workers were started again"


def test_after_an_error_a_loop_has_workers(shards):
    batches = WebShards(shards, ("y.cls",), batch_size=2, num_workers=2, transforms=(Twelfth(),))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            list(batches)
    assert len(copy.deepcopy(batches).recipe.shards) == 4


class Twelfth:
    def __call__(self, label):
        return 12 // (12 - label)


@pytest.mark.parametrize("shuffle", [0, 100])
@pytest.mark.parametrize(("sizes", "ranks", "workers"), [([10], 1, 2), ([10], 3, 0), ([4, 7, 1], 2, 2), ([1], 1, 2)])
def test_readers_without_a_shard_of_their_own_share_the_samples_of_one(
    tmp_path, write_shards, sizes, ranks, workers, shuffle
):
    pytest.importorskip("webdataset", reason="the webdataset package is not installed")
    shards = write_shards(tmp_path, sizes)
    for epoch in range(2):
        seen = []
        for rank in range(ranks):
            recipe = WebShards(shards, FIELDS, batch_size=2, num_workers=workers, shuffle=shuffle)
            recipe.place = (rank, ranks)  # of ranks that may end at different times, which is refused
            recipe.set_epoch(epoch)
            seen += labels(recipe)
        assert sorted(seen) == list(range(sum(sizes)))


def test_a_reader_without_a_sample_cannot_fill_its_batches(tmp_path, write_shards):
    pytest.importorskip("webdataset", reason="the webdataset package is not installed")
    shards = write_shards(tmp_path, [2])
    arguments = {"num_ranks": 3, "batch_size": 1, "epoch_batches": 4}
    for rank in range(2):
        assert len(set(labels(WebShards(shards, FIELDS, rank=rank, **arguments)))) == 1
    with pytest.raises(ValueError, match="Reader 3 has no sample: 3 readers share"):
        list(WebShards(shards, FIELDS, rank=2, **arguments))


@pytest.mark.parametrize("transforms", [(), (float,)])
def test_one_field_is_the_sample(shards, transforms):
    batches = list(WebShards(shards, "y.cls", batch_size=5, shuffle=0, transforms=transforms))
    assert torch.cat(batches).tolist() == list(range(20))
    assert batches[0].dtype == (torch.float64 if transforms else torch.int64)


def test_transforms_and_partial_batches(shards):
    batches = list(WebShards(shards, FIELDS, batch_size=8, transforms=(torch.from_numpy, str), shuffle=0))
    assert [len(y) for _, y in batches] == [8, 8, 4]
    assert batches[0][1][0] == "0"


def test_wrong_arguments_are_refused(shards, tmp_path, write_shards):
    for arguments, said in (
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
    with pytest.raises(ValueError, match="got no shards"):
        WebShards([], FIELDS, batch_size=2)


class Gadget:
    """Writes a marker file when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def saved(value):
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def shard_of(folder, field, data):
    """Write a shard of one sample: the field, and y.cls."""
    with tarfile.open(folder / "strange.tar", "w") as tar:
        for name, content in ((field, data), ("y.cls", b"3")):
            entry = tarfile.TarInfo(f"0.{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return [str(folder / "strange.tar")]


@pytest.mark.parametrize("field", ["a.pkl", "b.pickle", "PYD", "d.pkl.gz", "e.pth"])
def test_what_a_stranger_pickled_is_not_run(tmp_path, field):
    pytest.importorskip("webdataset", reason="the webdataset package is not installed")
    marker = tmp_path / "marker"
    data = saved(Gadget(marker)) if field == "e.pth" else pickle.dumps(Gadget(marker))
    shards = shard_of(tmp_path, field, gzip.compress(data) if field.endswith("gz") else data)
    name = field.lower()
    with pytest.raises(ValueError, match=rf"The field '{name.removesuffix('.gz')}' of the shards .* trusted=True"):
        list(WebShards(shards, (name, "y.cls"), batch_size=1))
    assert labels([(0, y) for (y,) in WebShards(shards, ("y.cls",), batch_size=1)]) == [3]
    assert not marker.exists(), "what the shard holds was run"
    list(WebShards(shards, (name, "y.cls"), batch_size=1, trusted=True, collate=list))
    assert marker.exists(), "a trusted shard is read as it was"


@pytest.mark.parametrize("shard", ["pipe:cat {} ; touch {}", "http://host/a.tar'; touch '{}"])
def test_a_shell_command_needs_trust(shards, tmp_path, shard):
    marker = tmp_path / "marker"
    shard = shard.format(*[shards[0], marker][-shard.count("{}") :])
    with pytest.raises(ValueError, match=r"^WebShards got the shard .* shell command.* trusted=True\.$"):
        WebShards([shard], FIELDS, batch_size=1)
    assert not marker.exists(), "the command was run"
    if shard.startswith("pipe:"):
        assert len(labels(WebShards([shard], FIELDS, batch_size=1, trusted=True))) == 5
        assert marker.exists(), "a trusted command is run"


def test_tensors_and_decoders_of_ones_own_need_no_trust(tmp_path):
    pytest.importorskip("webdataset", reason="the webdataset package is not installed")
    shards = shard_of(tmp_path, "w.pth", saved({"w": torch.arange(3)}))
    ((first, _),) = WebShards(shards, ("w.pth;w.npy", "y.cls"), batch_size=1)
    assert first["w"].tolist() == [[0, 1, 2]]
    shards = shard_of(tmp_path, "n.pkl", b"12")
    ((n, y),) = WebShards(shards, ("n.pkl y.cls",), batch_size=1, decoders=(as_text,))
    assert (n, y.tolist()) == (["12"], [3])
    for data in (b"", b"no checkpoint", saved(None)):
        with pytest.raises(ValueError, match=r"The field 'w\.pth' of the shards holds more than tensors"):
            list(WebShards(shard_of(tmp_path, "w.pth", data), ("w.pth",), batch_size=1))


def as_text(key, data):
    return data.decode() if key == ".n.pkl" else None


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "webdataset", None)
    with pytest.raises(ImportError, match="pip install webdataset"):
        WebShards(["a"], ["b"], batch_size=1)
