import copy
import pickle
from itertools import chain

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from diagnose.kernels import sharding
from diagnose.kernels.loader_tuning import tune_loader
from diagnose.kernels.sharding import ShardedStream, share_of


class Stream(IterableDataset):
    def __init__(self, num, seed=0):
        self.num, self.seed = num, seed

    def set_epoch(self, epoch):
        self.seed = epoch

    def __iter__(self):
        return ((i + self.seed) % self.num for i in range(self.num))


class FewShards(IterableDataset):
    def __iter__(self):
        return iter(share_of(["a", "b", "c"]))


def loaded(stream, workers, batch_size=4):
    loader = DataLoader(stream, batch_size=batch_size, num_workers=workers, collate_fn=list)
    return [sample for batch in loader for sample in batch]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_every_element_once(workers):
    assert sorted(loaded(ShardedStream(Stream(11)), workers)) == list(range(11))


def test_without_it_workers_repeat_the_stream():
    assert sorted(loaded(Stream(4), 2)) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_and_workers_share_the_stream_equally(workers):
    shares = [loaded(ShardedStream(Stream(27), rank=r, num_ranks=3), workers, batch_size=2) for r in range(3)]
    assert len({len(share) for share in shares}) == 1, "gradient exchange would wait for ever"
    seen = sorted(chain(*shares))
    assert seen == list(range(27 if workers == 0 else 24))


def test_unequal_shares_on_request_lose_nothing():
    streams = [ShardedStream(Stream(10), rank=r, num_ranks=4, equal=False) for r in range(4)]
    assert sorted(chain(*streams)) == list(range(10))


def test_epochs_reach_the_stream():
    stream = ShardedStream(Stream(4))
    stream.set_epoch(2)
    assert list(stream) == [2, 3, 0, 1]
    ShardedStream([1]).set_epoch(2)


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("is_copied", [False, True])
def test_epochs_reach_workers_that_stay(context, is_copied):
    stream = ShardedStream(Stream(8))
    stream = copy.deepcopy(stream) if is_copied else stream
    loader = DataLoader(stream, batch_size=1, num_workers=2, persistent_workers=True, multiprocessing_context=context)
    for epoch in (0, 3, 1):
        loader.dataset.set_epoch(epoch)
        assert torch.cat(list(loader)).tolist() == [(i + epoch) % 8 for i in range(8)]


def test_a_stream_whose_epoch_was_never_set_keeps_its_own():
    stream = Stream(4, seed=3)
    assert list(ShardedStream(stream)) == [3, 0, 1, 2]
    assert stream.seed == 3


def test_a_stream_goes_on_within_an_epoch():
    stream = ShardedStream(Stream(20), rank=1, num_ranks=2)
    stream.set_epoch(3)
    whole = list(stream)
    loop = iter(stream)
    first = [next(loop) for _ in range(4)]
    state = stream.state_dict()
    other = ShardedStream(Stream(20), rank=1, num_ranks=2)
    other.load_state_dict(state)
    assert other.state_dict() == state == {"epoch": 3, "elements": 4}
    assert [*first, *other] == whole
    assert other.state_dict() == {"epoch": 3, "elements": 10}
    assert list(other) == whole, "the position is for one loop only"
    other.load_state_dict(state)
    other.set_epoch(4)
    assert len(list(other)) == 10, "the position is for its epoch only"
    with pytest.raises(ValueError, match=r"\['step'\] is not one of ShardedStream"):
        other.load_state_dict({"step": 3})


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")
@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_loader_with_workers_goes_on_after_any_batch(workers, persistent, equal):
    def make():
        stream = ShardedStream(Stream(23), rank=0, num_ranks=1, equal=equal)
        return stream, DataLoader(stream, batch_size=2, num_workers=workers, persistent_workers=persistent)

    stream, loader = make()
    stream.set_epoch(5)
    whole = [batch.tolist() for batch in loader]
    stream, loader = make()
    for done in (0, 1, 5, len(whole)):
        stream.load_state_dict({"epoch": 5, "batches": done, "batch_size": 2})
        assert [batch.tolist() for batch in loader] == whole[done:]
    assert [batch.tolist() for batch in loader] == whole, "the position is for one loop only"


def test_a_position_that_only_workers_know_is_not_made_up():
    stream = ShardedStream(Stream(8))
    loader = DataLoader(stream, batch_size=2, num_workers=2)
    next(iter(loader))
    with pytest.raises(RuntimeError, match=r"StatefulDataLoader.*\{.epoch.: .*, .batches.: .*, .batch_size.: .*\}"):
        stream.state_dict()
    list(DataLoader(stream, batch_size=2))
    state = stream.state_dict()
    assert state == {"epoch": None, "elements": 8}
    loader = DataLoader(stream, batch_size=2, num_workers=1, persistent_workers=True)
    assert len(list(loader)) == 4
    stream.load_state_dict(state)
    with pytest.raises(RuntimeError, match="a loader without workers"):
        list(loader)


# torchdata calls what torch 2.13 has deprecated
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_goes_on(workers):
    loaders = pytest.importorskip("torchdata.stateful_dataloader", reason="the torchdata package is not installed")

    def make():
        return loaders.StatefulDataLoader(ShardedStream(Stream(20)), batch_size=2, num_workers=workers)

    loader = make()
    loader.dataset.set_epoch(3)
    whole = [batch.tolist() for batch in loader]
    for done in (1, 4, 5):
        loop = iter(loader)
        for _ in range(done):
            next(loop)
        state = loader.state_dict()
        del loop
        other = make()
        other.load_state_dict(state)
        assert [batch.tolist() for batch in other] == whole[done:]


def test_torchrun_and_process_groups_are_asked(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert list(ShardedStream(range(6))) == [1, 3, 5]
    sent = pickle.dumps(ShardedStream(range(6)))
    monkeypatch.setattr(sharding.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(sharding.dist, "get_rank", lambda: 2)
    monkeypatch.setattr(sharding.dist, "get_world_size", lambda: 3)
    assert list(ShardedStream(range(6))) == [2, 5]
    assert list(pickle.loads(sent)) == [1, 3, 5], "a spawned worker forgot its rank"


def test_items_are_shared_and_a_worker_without_one_is_an_error():
    assert [share_of("abcde", rank=r, num_ranks=2) for r in range(2)] == [["a", "c", "e"], ["b", "d"]]
    with pytest.raises(ValueError, match="got 2 items for 3 shares"):
        share_of("ab", rank=0, num_ranks=3)
    assert sorted(loaded(FewShards(), 2)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "given", [{"rank": 1}, {"num_ranks": 2}, {"rank": 2, "num_ranks": 2}, {"rank": -1, "num_ranks": 2}]
)
def test_wrong_ranks_are_refused(given):
    with pytest.raises(ValueError, match="0 <= rank < num_ranks"):
        ShardedStream([], **given)


@pytest.mark.parametrize(("dataset", "repeats"), [(Stream(8), True), (ShardedStream(Stream(8)), False)])
def test_a_stream_that_each_worker_repeats_is_named(dataset, repeats):
    tuning = tune_loader(DataLoader(dataset, batch_size=2, num_workers=2))
    told = (
        "each of the 2 workers gives the whole stream, so every sample comes 2 times; wrap it: ShardedStream(dataset)"
    )
    assert (told in tuning.reason) is repeats, tuning.reason
