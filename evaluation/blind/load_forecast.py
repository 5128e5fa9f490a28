"""Quantile forecasts of feeder load at several horizons from one week of history."""
import argparse
import math
import time

import torch
from torch import nn
from torch.nn import functional as F

HISTORY = 168
HORIZONS = {"intraday": 6, "day_ahead": 24, "two_day": 48}
QUANTILES = (0.1, 0.5, 0.9)


def synthetic_feeders(n_feeders, hours, gen):
    t = torch.arange(hours, dtype=torch.float32)
    daily = torch.sin(2 * math.pi * t / 24 + 6.28 * torch.rand(n_feeders, 1, generator=gen))
    weekly = torch.cos(2 * math.pi * t / 168 + 6.28 * torch.rand(n_feeders, 1, generator=gen))
    drift = 0.02 * torch.randn(n_feeders, hours, generator=gen).cumsum(dim=1)
    load = daily + 0.5 * weekly + drift + 0.2 * torch.randn(n_feeders, hours, generator=gen)
    return (load - load.mean(1, keepdim=True)) / load.std(1, keepdim=True)


class FeederSampler:
    def __init__(self, load, batch, gen):
        self.windows = load.unfold(1, HISTORY + max(HORIZONS.values()), 1)
        self.batch = batch
        self.gen = gen

    def __call__(self):
        feeder = torch.randint(0, self.windows.shape[0], (self.batch,), generator=self.gen)
        origin = torch.randint(0, self.windows.shape[1], (self.batch,), generator=self.gen)
        span = self.windows[feeder, origin]
        return span[:, :HISTORY], span[:, HISTORY:]


class CausalBlock(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.left = 2 * dilation
        self.filter = nn.Conv1d(width, 2 * width, 3, dilation=dilation)
        self.out = nn.Conv1d(width, width, 1)

    def forward(self, x):
        return x + self.out(F.glu(self.filter(F.pad(x, (self.left, 0))), dim=1))


class LoadForecaster(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.stem = nn.Conv1d(1, width, 1)
        self.encoder = nn.Sequential(*[CausalBlock(width, 2 ** i) for i in range(5)])
        self.heads = nn.ModuleDict({
            name: nn.Sequential(nn.Linear(3 * width, 256), nn.GELU(),
                                nn.Linear(256, hours * len(QUANTILES)))
            for name, hours in HORIZONS.items()})

    def encode(self, history):
        z = self.encoder(self.stem(history.unsqueeze(1)))
        return torch.cat((z[..., -1], z.mean(-1), z.amax(-1)), dim=1)

    def predict(self, name, context):
        return self.heads[name](context).unflatten(1, (HORIZONS[name], len(QUANTILES)))


def pinball(forecast, actual, levels):
    error = actual.unsqueeze(-1) - forecast
    return torch.maximum(levels * error, (levels - 1) * error).mean()


def train_step(model, optimizer, history, future, levels, fixed):
    optimizer.zero_grad()
    context = model.encode(history)
    parts = []
    for name, hours in HORIZONS.items():
        part = pinball(model.predict(name, context), future[:, :hours], levels)
        if not fixed:
            part.backward(retain_graph=True)
        parts.append(part)
    if fixed:
        torch.stack(parts).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return torch.stack([p.detach() for p in parts])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(23)
    gen = torch.Generator().manual_seed(23)
    sampler = FeederSampler(synthetic_feeders(40, 24 * 90, gen), 16, gen)
    model = LoadForecaster()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(1, args.steps))
    levels = torch.tensor(QUANTILES)
    clock = []
    for step in range(args.steps):
        begin = time.perf_counter()
        history, future = sampler()
        parts = train_step(model, optimizer, history, future, levels, args.fixed)
        schedule.step()
        clock.append(time.perf_counter() - begin)
        if step % 50 == 0:
            print(f"step {step} loss {parts.sum().item():.5f}")
    print(f"final loss {parts.sum().item():.5f}")
    print(f"step_ms={1000 * sum(clock[10:]) / max(1, len(clock) - 10):.3f}")


if __name__ == "__main__":
    main()
