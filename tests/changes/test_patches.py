"""Every patch changes what it says, from outside, and leaves torch as it was."""

import gc

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from diagnose.changes import CHANGES, patch_of
from diagnose.changes.common.change import Log


def data(num=12):
    return TensorDataset(torch.arange(num).float()[:, None], torch.zeros(num))


PATCHES = {name: patch for name in CHANGES if (patch := patch_of(name)) is not None}


@pytest.mark.parametrize("name", [n for n, p in PATCHES.items() if p.install is not None and not p.needs_gpu])
def test_undoing_leaves_torch_as_it_was(name):
    owners = (DataLoader, torch.optim.AdamW, torch.optim.SGD, nn.parallel.DistributedDataParallel)
    before = [dict(vars(owner)) for owner in owners]
    hooks = len(torch.nn.modules.module._global_forward_pre_hooks)
    patch_of(name).install(Log(), {})()
    assert [dict(vars(owner)) for owner in owners] == before
    assert len(torch.nn.modules.module._global_forward_pre_hooks) == hooks
    assert gc.isenabled()


def test_workers_are_given_to_a_loader_without_any(patched):
    log = patched("load-in-workers", workers=1)
    loader = DataLoader(data(), 4, shuffle=False)
    assert (loader.num_workers, loader.persistent_workers, loader.batch_size) == (1, True, 4)
    assert [x[0, 0].item() for x, _ in loader] == [0.0, 4.0, 8.0]
    assert log.done == ["DataLoader: num_workers 0 to 1, persistent_workers=True"]


def test_streams_and_loaders_with_workers_are_left_alone(patched):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    log = patched("load-in-workers")
    assert DataLoader(Stream()).num_workers == 0
    assert DataLoader(data(), num_workers=1).persistent_workers is False
    assert log.done == []
    assert len(log.refused) == 2


def test_a_stream_that_shares_itself_out_gets_one_worker(patched):
    class Shared(IterableDataset):
        def __iter__(self):
            info = torch.utils.data.get_worker_info()
            return iter(range(6)[info.id :: info.num_workers] if info else range(6))

    log = patched("load-in-workers", workers=3)
    assert DataLoader(Shared()).num_workers == 1
    assert log.done == ["DataLoader: num_workers 0 to 1, persistent_workers=True"]


def test_more_workers_needs_some(patched):
    log = patched("more-workers", workers=2)
    assert DataLoader(data(), num_workers=1).num_workers == 2
    assert DataLoader(data()).num_workers == 0
    assert log.done == ["DataLoader: num_workers 1 to 2, persistent_workers=True, prefetch_factor=4"]


def test_samples_of_a_batch_are_loaded_by_threads(patched):
    class Whole(TensorDataset):
        def __getitems__(self, indices):
            return [self[i] for i in indices]

    log = patched("concurrent-samples", threads=3)
    loader = DataLoader(data(), 4)
    assert loader.dataset.threads == 3
    assert [x[0, 0].item() for x, _ in loader] == [0.0, 4.0, 8.0]
    log.settle()
    assert log.done == ["DataLoader: the samples of a batch are loaded by 3 threads"]
    DataLoader(Whole(torch.zeros(4)))
    assert "gives whole batches" in log.refused[0]


class Drawn(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.rand(1)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.filterwarnings("ignore:ConcurrentSamples")
def test_samples_that_are_loaded_one_by_one_after_all_are_not_said_to_be_loaded_by_threads(patched, workers):
    log = patched("concurrent-samples", threads=8)
    list(DataLoader(Drawn(), 4, num_workers=workers))
    log.settle()
    assert log.done == []
    assert log.refused == [
        "a DataLoader whose dataset draws from the global random generators: its samples are loaded one by one"
    ]


def test_the_order_of_a_shuffled_loader_stays(patched):
    torch.manual_seed(3)
    before = [x[:, 0].tolist() for x, _ in DataLoader(data(), 4, shuffle=True)]
    patched("load-in-workers", workers=2)
    torch.manual_seed(3)
    assert [x[:, 0].tolist() for x, _ in DataLoader(data(), 4, shuffle=True)] == before


def test_an_optimizer_is_made_fused_whatever_it_was_told(patched):
    log = patched("fused-optimizer")
    model = nn.Linear(2, 2)
    assert torch.optim.AdamW(model.parameters()).defaults["fused"] is True
    assert torch.optim.AdamW(model.parameters(), foreach=False).defaults["fused"] is True
    assert log.done == ["AdamW: fused=True"]


def test_parameters_that_no_fused_optimizer_takes_keep_theirs(patched):
    log = patched("fused-optimizer")
    parameter = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    optimizer = torch.optim.SGD(iter([parameter]), lr=0.1, foreach=True)
    assert optimizer.defaults["foreach"] is True
    assert len(optimizer.param_groups[0]["params"]) == 1
    assert log.done == []
    assert log.refused[0].startswith("SGD: ")


def test_a_class_of_the_users_own_knows_its_arguments(patched):
    class Mine(torch.optim.SGD):
        def __init__(self, params):
            super().__init__(params, lr=0.5)

    log = patched("foreach-optimizer")
    mine = Mine(nn.Linear(1, 1).parameters())
    assert mine.param_groups[0]["lr"] == 0.5
    assert mine.defaults["foreach"] is None  # its own constructor may not pass it on
    assert log.done == []


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("no-buffer-broadcast", {"broadcast_buffers": False}),
        ("bucket-gradients", {"bucket_cap_mb": 25.0, "gradient_as_bucket_view": True}),
        ("overlap-gradients", {"bucket_cap_mb": 25.0, "gradient_as_bucket_view": True}),
    ],
)
def test_ddp_is_made_with_these_arguments(patched, monkeypatch, name, given):
    made = []
    ddp = nn.parallel.DistributedDataParallel

    def init(self, module, broadcast_buffers=True, bucket_cap_mb=None, gradient_as_bucket_view=False):
        made.append((broadcast_buffers, bucket_cap_mb, gradient_as_bucket_view))

    monkeypatch.setattr(ddp, "__init__", init)
    patched(name)
    ddp(nn.Linear(1, 1), broadcast_buffers=True, bucket_cap_mb=1000)
    usual = {"broadcast_buffers": True, "bucket_cap_mb": 1000, "gradient_as_bucket_view": False}
    assert made == [tuple((usual | given).values())]


def test_the_forward_runs_in_bf16_and_returns_fp32(patched):
    seen = []

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            y = self.inner(x)
            seen.append(y.dtype)
            return {"out": y}

    log = patched("autocast")
    out = Model()(torch.ones(2, 4))["out"]
    assert seen == [torch.bfloat16]
    assert out.dtype == torch.float32
    nn.Softmax(-1)(out).sum().backward()  # without parameters: it is left
    assert log.done == ["Model: forward under bf16 autocast on cpu"]


def test_a_forward_that_raises_leaves_no_autocast_behind(patched):
    class Model(nn.Linear):
        def forward(self, x):
            raise ValueError("no")

    patched("autocast")
    with pytest.raises(ValueError, match="no"):
        Model(1, 1)(torch.ones(1, 1))
    assert not torch.is_autocast_enabled("cpu")


def test_images_and_model_are_channels_last(patched):
    log = patched("channels-last")
    seen = []
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    model[0].register_forward_pre_hook(lambda _m, args: seen.append(args[0]))
    model(torch.ones(2, 3, 8, 8))
    model(torch.ones(2, 3, 8, 8))
    assert all(x.is_contiguous(memory_format=torch.channels_last) for x in seen)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert len(log.done) == 1
    nn.MSELoss()(torch.ones(2), torch.ones(2))
    assert log.refused == [], "a criterion has nothing to convert"


def test_repeated_blocks_are_recomputed_with_the_same_gradients(patched):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)))
    x = torch.randn(5, 4)
    model(x).sum().backward()
    before = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    calls = []
    model[1][0].register_forward_hook(lambda *_: calls.append(1))
    log = patched("checkpoint-blocks")
    model(x).sum().backward()
    assert len(calls) == 2  # once forward, once again in backward
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))
    assert log.done == ["3 blocks of Sequential are recomputed in the backward pass"]


def test_garbage_is_collected_on_a_schedule(patched):
    patched("schedule-gc")
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.step()
    assert not gc.isenabled()


def test_blocks_that_are_recomputed_update_running_statistics_once(patched):
    def trained():
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(2)])
        model(torch.randn(8, 4)).square().sum().backward()
        return {**model.state_dict(), "grad": model[0][0].weight.grad}

    before = trained()
    log = patched("checkpoint-blocks")
    after = trained()
    assert log.done == ["2 blocks of Sequential are recomputed in the backward pass"]
    assert before["0.1.num_batches_tracked"] == after["0.1.num_batches_tracked"] == 1
    assert all(torch.equal(before[name], after[name]) for name in before)
