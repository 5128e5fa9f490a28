import threading
import weakref
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from diagnose.kernels import _nested, prefetch
from diagnose.kernels._nested import has_opaque, moved, needs_pin, tensors
from diagnose.kernels.prefetch import DevicePrefetcher

Pair = namedtuple("Pair", "x y")


@dataclass
class Sample:
    x: Tensor
    name: str


class SelfMoving:
    def __init__(self, device="cpu"):
        self.device = device

    def to(self, device, non_blocking=False):
        return SelfMoving(str(device))


class FakeSide:
    """Stands for a device's side stream and writes down what is asked of it, in order."""

    def __init__(self, device, log):
        self.device, self.log = device, log

    def pin(self, batch):
        self.log.append(("pin", int(batch), threading.current_thread().name.split("_")[0]))
        return batch

    def copy(self, batch):
        self.log.append(("copy", int(batch)))
        return batch + 100, int(batch)

    def hand_over(self, batch, done):
        assert int(batch) == done + 100
        self.log.append(("hand over", done))


class Loader:
    def __init__(self, num, log, fail_at=None):
        self.num, self.log, self.fail_at = num, log, fail_at

    def __len__(self):
        return self.num

    def __iter__(self):
        try:
            for number in range(self.num):
                if number == self.fail_at:
                    raise OSError("the disk is gone")
                self.log.append(("pull", number))
                yield torch.tensor(number)
        finally:
            self.log.append(("closed",))


@pytest.fixture
def log(monkeypatch):
    """Make DevicePrefetcher(…, "cuda") work with FakeSide; no tensor needs pinning."""
    log = []
    monkeypatch.setattr(prefetch, "SideStream", lambda device: FakeSide(device, log))
    monkeypatch.setattr(prefetch, "needs_pin", lambda batch: False)
    return log


@pytest.fixture
def pinning_log(log, monkeypatch):
    monkeypatch.setattr(prefetch, "needs_pin", lambda batch: True)
    return log


def test_next_batch_is_copied_before_the_current_one_is_used(log):
    for batch in DevicePrefetcher(Loader(3, log), "cuda"):
        log.append(("use", int(batch) - 100))
    assert log == [
        ("pull", 0),
        ("copy", 0),
        ("pull", 1),
        ("copy", 1),
        ("hand over", 0),
        ("use", 0),
        ("pull", 2),
        ("copy", 2),
        ("hand over", 1),
        ("use", 1),
        ("closed",),
        ("hand over", 2),
        ("use", 2),
    ]


def test_more_batches_ahead(log):
    batches = iter(DevicePrefetcher(Loader(9, log), "cuda", ahead=3))
    next(batches)
    assert [entry for entry in log if entry[0] == "copy"] == [("copy", n) for n in range(4)]


def test_pinning_runs_on_its_own_thread_and_one_batch_earlier(pinning_log):
    batches = iter(DevicePrefetcher(Loader(9, pinning_log), "cuda"))
    next(batches)
    assert [entry[1] for entry in pinning_log if entry[0] == "pull"] == [0, 1, 2]
    assert {entry[2] for entry in pinning_log if entry[0] == "pin"} == {"pin-batches"}


def test_no_batch_is_pulled_while_the_one_before_it_is_being_pinned(pinning_log):
    list(DevicePrefetcher(Loader(20, pinning_log), "cuda"))
    order = [entry[:2] for entry in pinning_log if entry[0] in ("pull", "pin")]
    assert order == [(what, number) for number in range(20) for what in ("pull", "pin")]


@pytest.mark.parametrize("num", [0, 1, 2, 7])
@pytest.mark.parametrize("ahead", [1, 2, 5])
@pytest.mark.parametrize("pins", [False, True])
def test_every_batch_arrives_once_and_in_order(num, ahead, pins, log, monkeypatch):
    monkeypatch.setattr(prefetch, "needs_pin", lambda batch: pins)
    batches = DevicePrefetcher(Loader(num, log), "cuda", ahead=ahead)
    expected = [100 + n for n in range(num)]
    assert [int(b) for b in batches] == expected
    assert [int(b) for b in batches] == expected, "a second epoch differs"


@pytest.mark.parametrize("pins", [False, True])
def test_error_of_the_loader_arrives_after_the_batches_before_it(pins, log, monkeypatch):
    monkeypatch.setattr(prefetch, "needs_pin", lambda batch: pins)
    seen = []
    with pytest.raises(OSError, match="the disk is gone"):
        seen.extend(int(b) - 100 for b in DevicePrefetcher(Loader(9, log, fail_at=4), "cuda", ahead=2))
    assert seen == [0, 1, 2, 3]


def test_error_of_the_pinning_arrives_in_its_place(pinning_log, monkeypatch):
    def pin(self, batch):
        if int(batch) == 2:
            raise RuntimeError("no pinned memory left")
        return batch

    monkeypatch.setattr(FakeSide, "pin", pin)
    with pytest.raises(RuntimeError, match="no pinned memory left"):
        list(DevicePrefetcher(Loader(9, pinning_log), "cuda"))
    assert [entry[1] for entry in pinning_log if entry[0] == "hand over"] == [0, 1]


def test_leaving_early_ends_the_thread_and_the_loader(pinning_log, monkeypatch):
    released, original = threading.Event(), FakeSide.pin

    def pin(self, batch):
        if int(batch) == 2:  # the one that is being pinned when the loop is left
            threading.Timer(0.05, released.set).start()
            released.wait()
        return original(self, batch)

    monkeypatch.setattr(FakeSide, "pin", pin)
    for _ in DevicePrefetcher(Loader(9, pinning_log), "cuda"):
        break
    assert pinning_log[-1] == ("closed",)
    assert not [t for t in threading.enumerate() if t.name.startswith("pin-batches")]


def test_a_batch_is_not_kept_once_it_was_handed_over(log):
    batches = iter(DevicePrefetcher(Loader(5, log), "cuda"))
    first = weakref.ref(next(batches))
    assert first() is None


def test_on_a_cpu_batches_pass_unchanged():
    loader = DataLoader(TensorDataset(torch.arange(10.0), torch.arange(10)), batch_size=4)
    batches = DevicePrefetcher(loader, "cpu")
    assert len(batches) == len(loader) == 3
    for _ in range(2):
        for mine, plain in zip(batches, loader, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, plain, strict=True))


def test_loader_attributes_and_epoch_are_passed_on():
    dataset = TensorDataset(torch.arange(8))
    sampler = DistributedSampler(dataset, num_replicas=2, rank=0)
    batches = DevicePrefetcher(DataLoader(dataset, batch_size=2, sampler=sampler), "cpu")
    batches.set_epoch(5)
    assert sampler.epoch == 5
    assert batches.batch_size == 2
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = batches.nothing_like_it


def test_loader_without_length_says_so():
    with pytest.raises(TypeError, match="has no len"):
        len(DevicePrefetcher(iter([]), "cpu"))


def test_zero_ahead_is_refused():
    with pytest.raises(ValueError, match="ahead >= 1"):
        DevicePrefetcher([], "cpu", ahead=0)


def test_nested_batches_keep_their_types():
    default = defaultdict(list, a=torch.zeros(2))
    batch = {
        "pair": Pair(torch.zeros(2), [torch.ones(1), "text", 3]),
        "sample": Sample(torch.zeros(3), "name"),
        "ordered": OrderedDict(b=torch.zeros(1), a=None),
        "default": default,
        "own": SelfMoving(),
    }
    out = moved(batch, torch.device("meta"), non_blocking=True)
    assert type(out["pair"]) is Pair
    assert out["pair"].y[1:] == ["text", 3]
    assert type(out["sample"]) is Sample
    assert list(out["ordered"]) == ["b", "a"]
    assert out["default"].default_factory is list
    assert out["own"].device == "meta"
    assert {t.device.type for t in tensors(out)} == {"meta"}
    assert len(tensors(batch)) == 5
    assert {t.device.type for t in tensors(batch)} == {"cpu"}, "the loader's own batch was changed"
    assert has_opaque(batch)
    assert not has_opaque(batch["pair"])


class Pinning(SelfMoving):
    def pin_memory(self):
        return self


def test_an_object_that_pins_itself_is_asked_unless_it_is_pinned():
    assert not needs_pin(SelfMoving())
    assert needs_pin(Pinning())
    for pinned in (False, True):
        batch = Pinning()
        batch.is_pinned = lambda pinned=pinned: pinned
        assert needs_pin([batch]) is not pinned


def test_packed_sequence_moves_itself():
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    out = moved([packed], torch.device("meta"), non_blocking=False)[0]
    assert type(out) is type(packed)
    assert out.data.device.type == "meta"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("pin", [False, True])
def test_on_a_gpu_values_survive_a_busy_consumer(pin):
    """Every sum is right although batches are dropped while kernels that read them are still queued."""
    data = torch.arange(64.0).repeat_interleave(1 << 16).view(64, -1)
    loader = DataLoader(TensorDataset(data), batch_size=4, pin_memory=pin)
    sums = []
    for (batch,) in DevicePrefetcher(loader, "cuda", ahead=2):
        torch.cuda._sleep(2_000_000)
        sums.append(batch.mean(1))
        del batch
    assert torch.cat(sums).tolist() == [float(n) for n in range(64)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_reused_host_memory_is_safe():
    buffer = torch.empty(1 << 20)

    def loader():
        for number in range(20):
            buffer.fill_(number)
            yield buffer

    means = [batch.mean() for batch in DevicePrefetcher(loader(), "cuda")]
    assert [m.item() for m in means] == list(range(20))


def test_a_tensor_without_elements_needs_no_pinned_memory():
    assert not _nested.needs_pin({"boxes": torch.empty(0, 4)})
    assert _nested.needs_pin({"boxes": torch.empty(1, 4)})
