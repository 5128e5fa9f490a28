"""Self-supervised embeddings of bird calls: momentum contrast on mel patches."""
import argparse
import copy
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    steps: int = 60
    batch_size: int = 64
    dim: int = 128
    bank: int = 98304
    temperature: float = 0.1
    momentum: float = 0.99
    lr: float = 0.05
    seed: int = 5


class CallLibrary(torch.utils.data.IterableDataset):
    """Field recordings as log-mel sheets; yields two crops of the same recording."""

    def __init__(self, n_recordings, mels, frames, crop, seed):
        rng = np.random.default_rng(seed)
        t = np.linspace(0, 1, frames, dtype=np.float32)
        grid = np.arange(mels, dtype=np.float32)[:, None]
        sheets = []
        for _ in range(n_recordings):
            sheet = 0.3 * rng.standard_normal((mels, frames), dtype=np.float32)
            for _ in range(rng.integers(2, 5)):
                centre = rng.uniform(6, mels - 6) + rng.uniform(2, 8) * np.sin(
                    2 * np.pi * rng.uniform(1, 9) * t + rng.uniform(0, 6))
                sheet += 2.0 * np.exp(-0.5 * ((grid - centre) / 1.5) ** 2).astype(np.float32)
            sheets.append(sheet)
        self.sheets = torch.from_numpy(np.stack(sheets))
        self.crop = crop
        self.rng = np.random.default_rng(seed + 1)

    def view(self, i):
        start = int(self.rng.integers(0, self.sheets.shape[2] - self.crop))
        v = self.sheets[i, :, start:start + self.crop] * float(self.rng.uniform(0.7, 1.3))
        f0 = int(self.rng.integers(0, v.shape[0] - 6))
        v[f0:f0 + 6] = 0.0
        return v

    def __iter__(self):
        while True:
            i = int(self.rng.integers(len(self.sheets)))
            yield self.view(i), self.view(i)


class ConvUnit(nn.Sequential):
    def __init__(self, cin, cout, stride):
        super().__init__(nn.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=False),
                         nn.GroupNorm(8, cout), nn.ReLU(inplace=True))


class CallEncoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.features = nn.Sequential(
            ConvUnit(1, 16, 2), ConvUnit(16, 32, 2), ConvUnit(32, 48, 1), ConvUnit(48, 64, 2))
        self.project = nn.Sequential(nn.Linear(64, 128), nn.ReLU(inplace=True), nn.Linear(128, dim))

    def forward(self, x):
        h = self.features(x.unsqueeze(1)).mean((2, 3))
        return F.normalize(self.project(h), dim=1)


class NegativeBank(nn.Module):
    """First-in first-out store of key embeddings."""

    def __init__(self, size, dim):
        super().__init__()
        self.size = size
        self.register_buffer("keys", F.normalize(torch.randn(size, dim), dim=1))

    def similarities(self, q):
        return q @ self.keys.t()

    @torch.no_grad()
    def push(self, k):
        self.keys = torch.cat([self.keys, k])[-self.size:]


class MomentumContrast(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.query = CallEncoder(cfg.dim)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.bank = NegativeBank(cfg.bank, cfg.dim)

    @torch.no_grad()
    def follow(self):
        for slow, fast in zip(self.key.parameters(), self.query.parameters()):
            slow.lerp_(fast, 1 - self.cfg.momentum)

    def forward(self, a, b):
        q = self.query(a)
        with torch.no_grad():
            k = self.key(b)
        pos = (q * k).sum(1) / self.cfg.temperature
        neg = self.bank.similarities(q / self.cfg.temperature)
        loss = (torch.logaddexp(pos, neg.logsumexp(1)) - pos).mean()
        return loss, k, (pos.detach().mean() * self.cfg.temperature).item()


def run(cfg):
    torch.manual_seed(cfg.seed)
    library = CallLibrary(600, 40, 220, 96, cfg.seed)
    loader = torch.utils.data.DataLoader(library, batch_size=cfg.batch_size)
    model = MomentumContrast(cfg)
    optimizer = torch.optim.SGD(model.query.parameters(), lr=cfg.lr, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cfg.steps)
    started = time.time()
    for step, (a, b) in enumerate(loader):
        if step == cfg.steps:
            break
        loss, keys, alignment = model(a, b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        model.follow()
        model.bank.push(keys)
        if step % 10 == 0:
            print(f"[{time.time() - started:6.1f}s] step {step} nce={loss.item():.4f} align={alignment:.3f}")
    print(f"final nce={loss.item():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in vars(Config()).items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    run(Config(**vars(parser.parse_args())))
