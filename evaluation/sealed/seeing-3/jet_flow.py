"""Conditional normalizing flow for calorimeter-like shower features."""
import argparse
import math
from typing import NamedTuple

import torch
from torch import nn


class Batch(NamedTuple):
    x: torch.Tensor
    energy: torch.Tensor


def toy_showers(n, dims, seed):
    g = torch.Generator().manual_seed(seed)
    energy = torch.rand(n, 1, generator=g) * 3 - 1
    depth = torch.linspace(0, 1, dims)
    peak = 0.3 + 0.1 * energy + 0.05 * torch.randn(n, 1, generator=g)
    width = 0.15 + 0.03 * torch.rand(n, 1, generator=g)
    profile = torch.exp(-(depth - peak) ** 2 / (2 * width ** 2)) * (2 + energy)
    x = torch.log1p(profile) + 0.05 * torch.randn(n, dims, generator=g)
    return (x - x.mean(0)) / x.std(0), energy


class Conditioner(nn.Module):
    def __init__(self, d_in, d_out, width):
        super().__init__()
        self.inp = nn.Linear(d_in, width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, d_out)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x):
        h = torch.relu_(self.inp(x))
        return self.out(torch.relu_(self.mid(h)))


class AffineCoupling(nn.Module):
    def __init__(self, dims, width, flip):
        super().__init__()
        self.flip = flip
        half = dims // 2
        self.net = Conditioner(half + 1, 2 * (dims - half), width)

    def forward(self, x, c):
        a, b = x.chunk(2, 1)
        if self.flip:
            a, b = b, a
        s, t = self.net(torch.cat([a, c], 1)).chunk(2, 1)
        s = 2 * torch.tanh(s / 2)
        b = b * torch.exp(s) + t
        return torch.cat([b, a] if self.flip else [a, b], 1), s.sum(1)

    def inverse(self, y, c):
        a, b = y.chunk(2, 1)
        if self.flip:
            a, b = b, a
        s, t = self.net(torch.cat([a, c], 1)).chunk(2, 1)
        s = 2 * torch.tanh(s / 2)
        b = (b - t) * torch.exp(-s)
        return torch.cat([b, a] if self.flip else [a, b], 1)


class Flow(nn.Module):
    def __init__(self, dims, layers=5, width=256):
        super().__init__()
        self.dims = dims
        self.layers = nn.ModuleList([AffineCoupling(dims, width, bool(i % 2)) for i in range(layers)])

    def log_prob(self, x, c):
        total = 0.0
        for layer in self.layers:
            x, ld = layer(x, c)
            total = total + ld
        return total - 0.5 * (x * x).sum(1) - 0.5 * self.dims * math.log(2 * math.pi)

    @torch.no_grad()
    def sample(self, c):
        z = torch.randn(len(c), self.dims)
        for layer in reversed(self.layers):
            z = layer.inverse(z, c)
        return z


def batches(x, energy, size, gen):
    while True:
        perm = torch.randperm(len(x), generator=gen)
        for i in perm.split(size):
            if len(i) == size:
                yield Batch(x[i], energy[i])


def sliced_distance(a, b, n_dir=32):
    d = nn.functional.normalize(torch.randn(a.shape[1], n_dir), dim=0)
    return ((a @ d).sort(0).values - (b @ d).sort(0).values).abs().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=1536)
    ap.add_argument("--dims", type=int, default=32)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--check-every", type=int, default=60)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    x, e = toy_showers(40000, args.dims, args.seed)
    stream = batches(x, e, args.batch, torch.Generator().manual_seed(args.seed))
    flow = Flow(args.dims)
    opt = torch.optim.AdamW(flow.parameters(), lr=args.lr, weight_decay=1e-3, fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    for step in range(1, args.steps + 1):
        b = next(stream)
        loss = -flow.log_prob(b.x, b.energy).mean() / args.dims
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 5.0)
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"step {step} nats/dim {loss.item():.4f}")
        if step % args.check_every == 0:
            print(f"step {step} sliced W1 {sliced_distance(flow.sample(e[:2000]), x[:2000]):.4f}")


if __name__ == "__main__":
    main()
