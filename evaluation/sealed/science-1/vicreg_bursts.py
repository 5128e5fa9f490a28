"""VICReg pretraining on seismogram bursts with a 1-D residual encoder."""
import argparse
import math
import time
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Bursts(Dataset):
    """Three-component recordings: decaying wave packets over coloured noise."""

    def __init__(self, count, length, seed):
        rng = np.random.default_rng(seed)
        t = np.arange(length) / length
        out = np.empty((count, 3, length), np.float32)
        for n in range(count):
            noise = np.cumsum(rng.normal(size=(3, length)), axis=1)
            noise -= noise.mean(1, keepdims=True)
            sig = 0.1 * noise / noise.std()
            for _ in range(rng.integers(1, 4)):
                onset, freq, decay = rng.uniform(0, 0.7), rng.uniform(5, 60), rng.uniform(3, 25)
                env = np.where(t > onset, np.exp(-decay * (t - onset)), 0.0)
                sig = sig + rng.normal(size=(3, 1)) * env * np.sin(2 * np.pi * freq * t)
            out[n] = sig
        self.waves = torch.from_numpy(out)

    def __len__(self):
        return len(self.waves)

    def __getitem__(self, i):
        return self.waves[i]


class TwoViews:
    """Batched augmentations: circular shift, gain per channel, noise, band dropout."""

    def __init__(self, length, gen):
        self.length, self.gen = length, gen
        self.base = torch.arange(length)

    def one(self, x):
        b = len(x)
        shift = torch.randint(-32, 33, (b, 1), generator=self.gen)
        idx = (self.base + shift) % self.length
        x = torch.gather(x, 2, idx[:, None].expand(-1, 3, -1))
        x = x * torch.exp(0.3 * torch.randn(b, 3, 1, generator=self.gen))
        x = x + 0.05 * torch.randn(x.shape, generator=self.gen)
        spec = torch.fft.rfft(x)
        lo = torch.randint(8, spec.shape[-1] - 16, (b, 1), generator=self.gen)
        bins = torch.arange(spec.shape[-1])
        keep = (bins < lo) | (bins >= lo + 12)
        return torch.fft.irfft(spec * keep[:, None], n=self.length)

    def __call__(self, x):
        return self.one(x), self.one(x)


class Res1d(nn.Module):
    def __init__(self, c_in, c_out, stride):
        super().__init__()
        self.conv1 = nn.Conv1d(c_in, c_out, 7, stride=stride, padding=3, bias=False)
        self.bn1 = nn.BatchNorm1d(c_out)
        self.conv2 = nn.Conv1d(c_out, c_out, 7, padding=3, bias=False)
        self.bn2 = nn.BatchNorm1d(c_out)
        self.short = nn.Conv1d(c_in, c_out, 1, stride=stride, bias=False)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + self.short(x))


class Encoder(nn.Module):
    def __init__(self, width=16, out=192):
        super().__init__()
        self.stem = nn.Conv1d(3, width, 9, stride=2, padding=4)
        self.stages = nn.Sequential(Res1d(width, width, 2), Res1d(width, 2 * width, 2),
                                    Res1d(2 * width, 4 * width, 2), Res1d(4 * width, out, 2))

    def forward(self, x):
        return self.stages(F.relu(self.stem(x))).mean(-1)


def expander(d_in, d):
    return nn.Sequential(nn.Linear(d_in, d, bias=False), nn.BatchNorm1d(d), nn.ReLU(),
                         nn.Linear(d, d, bias=False), nn.BatchNorm1d(d), nn.ReLU(), nn.Linear(d, d))


@torch.no_grad()
def effective_rank(z):
    s = torch.linalg.svdvals(z - z.mean(0))
    p = s / s.sum()
    return torch.exp(-(p * torch.log(p + 1e-9)).sum())


class RankMonitor:
    """RankMe over the embeddings of the last few batches."""

    def __init__(self, batches=8):
        self.recent = deque(maxlen=batches)

    def update(self, z):
        self.recent.append(z.detach())
        return effective_rank(torch.cat(list(self.recent)))


class VICReg(nn.Module):
    def __init__(self, sim=25.0, var=25.0, cov=1.0):
        super().__init__()
        self.rank = RankMonitor()
        self.sim, self.var, self.cov = sim, var, cov

    @staticmethod
    def spread(z):
        return F.relu(1.0 - torch.sqrt(z.var(dim=0) + 1e-4)).mean()

    @staticmethod
    def redundancy(z):
        z = z - z.mean(0)
        c = z.T @ z / (len(z) - 1)
        return (c.square().sum() - c.diagonal().square().sum()) / z.shape[1]

    def forward(self, a, b):
        inv = F.mse_loss(a, b)
        var = 0.5 * (self.spread(a) + self.spread(b))
        cov = self.redundancy(a) + self.redundancy(b)
        loss = self.sim * inv + self.var * var + self.cov * cov
        parts = {"inv": inv.detach(), "var": var.detach(), "cov": cov.detach(),
                 "erank": self.rank.update(a)}
        return loss, parts


def lr_at(step, args):
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    p = (step - args.warmup) / max(1, args.total - args.warmup)
    return args.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, p)))


def fit(args):
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    data = Bursts(args.count, args.length, args.seed)
    loader = DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True)
    views = TwoViews(args.length, gen)
    net = nn.Sequential(Encoder(), expander(192, args.proj))
    criterion = VICReg()
    decay = [p for p in net.parameters() if p.ndim > 1]
    plain = [p for p in net.parameters() if p.ndim <= 1]
    opt = torch.optim.SGD([{"params": decay, "weight_decay": 1e-4},
                           {"params": plain, "weight_decay": 0.0}], lr=args.lr, momentum=0.9)

    def endless():
        while True:
            yield from loader

    tick = time.perf_counter()
    for step, wave in zip(range(args.steps), endless()):
        for group in opt.param_groups:
            group["lr"] = lr_at(step, args)
        a, b = views(wave)
        loss, parts = criterion(net(a), net(b))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if (step + 1) % args.log_every == 0:
            msg = " ".join(f"{k} {v.item():.4f}" for k, v in parts.items())
            took = (time.perf_counter() - tick) / args.log_every
            print(f"{step + 1:4d} loss {loss.item():.4f} {msg} ({took * 1e3:.0f} ms)")
            tick = time.perf_counter()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--count", type=int, default=1024)
    p.add_argument("--length", type=int, default=256)
    p.add_argument("--batch", type=int, default=160)
    p.add_argument("--proj", type=int, default=512)
    p.add_argument("--lr", type=float, default=0.02)
    p.add_argument("--warmup", type=int, default=20)
    p.add_argument("--total", type=int, default=2000)
    p.add_argument("--seed", type=int, default=4)
    p.add_argument("--log-every", type=int, default=20)
    fit(p.parse_args())
