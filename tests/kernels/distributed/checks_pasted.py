"""What is printed for several ranks, executed as it stands: the same gradients as before."""

import copy
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from setting import network
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, TensorDataset

from diagnose.changes.common.prescribe import also_possible, prescribe
from diagnose.kernels.distributed import uneven
from diagnose.kernels.distributed.uneven import UnevenBatches
from diagnose.model.diagnosis import Finding
from diagnose.tables.program import Program

BATCH, SAMPLES, EPOCHS = 2, 250, 2  # over both ranks 62 batches of 4, and one of 2


def printed(change, rule, **facts):
    asked = Finding(rule, "", 1e6, facts=facts), 1e7, Program(trains=True, is_ddp=True, heavy=frozenset({"product"}))
    found = {p.id: p.after for p in (*prescribe(*asked), *also_possible(*asked))}
    return found[change].replace('"cuda"', '"cpu"')


class Counted(Dataset):
    """Samples that remember which of them a step read."""

    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(SAMPLES, 16, generator=generator, dtype=torch.float64)
        self.y = torch.randint(4, (SAMPLES,), generator=generator)
        self.read = []

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        self.read.append(index)
        return self.x[index], self.y[index]


def check_balanced_ranks_have_the_gradients_of_even_ones():
    """Rank 1 takes three times as long, by a clock that is set: its batches shrink in the first epoch."""
    dataset, alone = Counted(), network().double()
    ddp = DistributedDataParallel(copy.deepcopy(alone))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    sizes = []
    optimizer.register_step_post_hook(lambda *_: sizes.append(len(dataset.read)) or dataset.read.clear())
    ticks = iter(range(0, 10**6, 1 + 2 * dist.get_rank()))
    names = {
        "dist": dist, "DataLoader": DataLoader, "dataset": dataset, "batch_size": BATCH, "ddp": ddp, "epochs": EPOCHS,
        "criterion": nn.functional.cross_entropy, "optimizer": optimizer,
    }  # fmt: skip
    with patch.object(uneven, "_now", lambda _: float(next(ticks))):
        exec(printed("balance-ranks", "straggler", late_rank=1), names)
    assert sizes[:50] == [2] * 50
    assert sizes[-2] == (1 if dist.get_rank() else 3)

    even, reference = UnevenBatches(SAMPLES, BATCH * 2), torch.optim.SGD(alone.parameters(), lr=0.1)
    for _ in range(EPOCHS):
        for mine in even:
            everyones = [[], []]
            dist.all_gather_object(everyones, mine)
            whole = everyones[0] + everyones[1]
            reference.zero_grad()
            nn.functional.cross_entropy(alone(dataset.x[whole]), dataset.y[whole]).backward()
            reference.step()
    for p, expected in zip(ddp.module.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p, expected, rtol=1e-6, atol=1e-7)


class Feed(nn.Module):
    def __init__(self):
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(16, 24), nn.Linear(24, 4)

    def forward(self, x):
        return self.down_proj(nn.functional.gelu(self.up_proj(x)))


def check_split_layers_as_printed_compute_the_same_and_refuse_a_sampler():
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, torch.zeros(8))
    text = printed("split-layers", "memory-pressure", world_size=2)
    torch.manual_seed(0)
    model = Feed()
    expected = model(x)
    exec(text, {"model": model, "loader": DataLoader(data, batch_size=4)})
    assert model.up_proj.weight.to_local().shape == (12, 16)
    torch.testing.assert_close(model(x), expected)
    with pytest.raises(ValueError, match="were given different batches"):
        exec(text, {"model": Feed(), "loader": DataLoader(data, 4, sampler=range(dist.get_rank(), 8, 2))})
