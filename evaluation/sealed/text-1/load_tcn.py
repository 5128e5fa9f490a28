#!/usr/bin/env python
"""Day-ahead load forecasting for a group of substations with a dilated TCN."""
import argparse
import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

CONTEXT, HORIZON = 168, 24
QUANTILES = (0.1, 0.5, 0.9)


def build_archive(path, hours=9000, stations=20, seed=3):
    rng = np.random.default_rng(seed)
    t = np.arange(hours)
    temp = 10 + 9 * np.sin(2 * np.pi * (t / 8760 - 0.3)) + 4 * np.sin(2 * np.pi * t / 24)
    temp = temp + np.convolve(rng.normal(size=hours), np.ones(12) / 4, mode="same")
    level = rng.uniform(20, 200, stations)
    phase = rng.uniform(0, 6, stations)
    daily = np.sin(2 * np.pi * (t[:, None] - phase) / 24)
    weekly = np.where((t // 24 % 7 < 5)[:, None], 1.0, 0.8)
    load = level * weekly * (1 + 0.25 * daily + 0.01 * np.abs(temp - 15)[:, None])
    load = load * (1 + 0.03 * rng.normal(size=load.shape))
    calendar = np.stack([np.sin(2 * np.pi * t / 24), np.cos(2 * np.pi * t / 24),
                         np.sin(2 * np.pi * t / 168), np.cos(2 * np.pi * t / 168)], 1)
    np.savez(path, load=load.astype(np.float32), temp=temp.astype(np.float32),
             calendar=calendar.astype(np.float32))


class StationWindows(Dataset):
    def __init__(self, path, first, last):
        self.archive = np.load(path)
        self.first = first
        self.span = last - first - CONTEXT - HORIZON
        self.stations = self.archive["load"].shape[1]

    def __len__(self):
        return self.span * self.stations

    def _cut(self, field, lo, hi):
        return self.archive[field][lo:hi]

    def __getitem__(self, index):
        offset, station = divmod(index, self.stations)
        lo = self.first + offset
        mid, hi = lo + CONTEXT, lo + CONTEXT + HORIZON
        load = self._cut("load", lo, hi)[:, station]
        scale = load[:CONTEXT].mean() + 1e-3
        known = np.column_stack([self._cut("calendar", lo, hi), self._cut("temp", lo, hi) / 20.0])
        past = np.column_stack([load[:CONTEXT] / scale, known[:CONTEXT]])
        return past.T.copy(), known[CONTEXT:].reshape(-1), load[CONTEXT:] / scale


class CausalConv(nn.Conv1d):
    def forward(self, x):
        return super().forward(F.pad(x, (self.dilation[0] * (self.kernel_size[0] - 1), 0)))


class ResidualUnit(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.filter = CausalConv(width, 2 * width, 3, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)

    def forward(self, x):
        return x + self.mix(F.glu(self.filter(x), dim=1))


class TCNForecaster(nn.Module):
    def __init__(self, channels, future, width=48, depth=6):
        super().__init__()
        self.stem = nn.Conv1d(channels, width, 1)
        self.units = nn.ModuleList(ResidualUnit(width, 2 ** i) for i in range(depth))
        self.head = nn.Sequential(
            nn.Linear(2 * width + future, 256), nn.ReLU(),
            nn.Linear(256, HORIZON * len(QUANTILES)))

    def forward(self, past, future):
        h = self.stem(past)
        for unit in self.units:
            h = unit(h)
        summary = torch.cat([h[:, :, -1], h.mean(-1), future], dim=1)
        return self.head(summary).view(-1, HORIZON, len(QUANTILES))


def pinball(pred, actual):
    q = pred.new_tensor(QUANTILES)
    err = actual.unsqueeze(-1) - pred
    return torch.maximum(q * err, (q - 1) * err).mean()


class Trainer:
    def __init__(self, args):
        self.args = args
        folder = os.path.join(tempfile.gettempdir(), "substation_load")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"hourly_v2_{os.getpid()}.npz")
        build_archive(path)
        self.path = path
        train = StationWindows(path, 0, 7800)
        self.valid = StationWindows(path, 7800, 9000)
        sampler = RandomSampler(train, replacement=True, num_samples=args.steps * args.batch)
        self.loader = DataLoader(train, batch_size=args.batch, sampler=sampler)
        self.net = TCNForecaster(channels=6, future=5 * HORIZON)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=2e-3)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, args.steps)

    def train_step(self, past, future, actual):
        self.opt.zero_grad()
        loss = pinball(self.net(past, future), actual)
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.opt.step()
        self.sched.step()
        return loss.item()

    @torch.no_grad()
    def validate(self):
        picks = np.linspace(0, len(self.valid) - 1, 48).astype(int)
        past, future, actual = (torch.from_numpy(np.stack(c)) for c in zip(*(self.valid[i] for i in picks)))
        return pinball(self.net(past, future), actual).item()

    def run(self):
        running = 0.0
        for step, batch in enumerate(self.loader, start=1):
            running += self.train_step(*batch)
            if step % 10 == 0:
                print(f"{step:5d} | pinball {running / 10:.5f} | lr {self.sched.get_last_lr()[0]:.2e}")
                running = 0.0
        print(f"valid pinball {self.validate():.5f}")
        os.unlink(self.path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    Trainer(options).run()
