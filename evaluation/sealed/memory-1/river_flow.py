"""Regional streamflow forecasting with an entity-aware LSTM."""
import argparse
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, RandomSampler


def simulate_basins(n_basins, n_days, seed):
    """A linear-reservoir toy: forcings drive discharge through snow and soil stores."""
    rng = np.random.default_rng(seed)
    day = np.arange(n_days)
    season = np.sin(2 * np.pi * day / 365.25)
    wet = rng.random((n_basins, n_days)) < 0.3
    rain = wet * rng.gamma(0.8, 6.0, (n_basins, n_days))
    temp = 8 + 10 * season + rng.normal(0, 3, (n_basins, n_days)) + rng.normal(0, 4, (n_basins, 1))
    extra = rng.normal(0, 1, (n_basins, n_days, 8)) + season[None, :, None]
    release = rng.uniform(0.03, 0.2, n_basins)
    melt = rng.uniform(1.0, 4.0, n_basins)
    snow, soil = np.zeros(n_basins), np.full(n_basins, 20.0)
    flow = np.empty((n_basins, n_days))
    for d in range(n_days):
        cold = temp[:, d] < 0
        snow += np.where(cold, rain[:, d], 0)
        thaw = np.minimum(snow, np.where(cold, 0, melt * temp[:, d] * 0.3))
        snow -= thaw
        soil += np.where(cold, 0, rain[:, d]) + thaw
        flow[:, d] = release * soil
        soil -= flow[:, d] + 0.02 * soil
    forcings = np.concatenate([rain[..., None], temp[..., None], extra], -1)
    statics = np.stack([release, melt, rain.mean(1), temp.mean(1)], 1)
    return forcings.astype(np.float32), flow.astype(np.float32), statics.astype(np.float32)


class Standardizer:
    def __init__(self, values, axes):
        self.mean = values.mean(axes, keepdims=True)
        self.std = values.std(axes, keepdims=True) + 1e-6

    def __call__(self, values):
        return ((values - self.mean) / self.std).astype(np.float32)


class BasinWindows(Dataset):
    """One sample: a look-back window of forcings, basin statics, next-day discharge."""

    def __init__(self, forcings, flow, statics, lookback):
        n_basins, n_days, _ = forcings.shape
        windows, targets, owner = [], [], []
        for b in range(n_basins):
            for end in range(lookback, n_days):
                windows.append(forcings[b, end - lookback:end])
                targets.append(flow[b, end])
                owner.append(b)
        self.windows = np.stack(windows)
        self.targets = np.asarray(targets, dtype=np.float32)
        self.owner = np.asarray(owner)
        self.statics = statics

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, i):
        return self.windows[i], self.statics[self.owner[i]], self.targets[i]


class EntityAwareLSTM(nn.Module):
    """Statics modulate the inputs; a single LSTM layer reads the window."""

    def __init__(self, n_forcings, n_statics, hidden, dropout=0.2):
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(n_statics, 32), nn.Tanh(), nn.Linear(32, 2 * n_forcings))
        self.lstm = nn.LSTM(n_forcings, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(hidden + n_statics, 32),
                                  nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x, s):
        scale, shift = self.gate(s).unsqueeze(1).chunk(2, -1)
        out, _ = self.lstm(x * (1 + scale) + shift)
        return self.head(torch.cat([out[:, -1], s], -1)).squeeze(-1)


def nse_loss(pred, target, variance):
    return (((pred - target) ** 2) / (variance + 0.1) ** 2).mean()


class Experiment:
    def __init__(self, args):
        self.args = args
        forcings, flow, statics = simulate_basins(args.basins, args.days, args.seed)
        self.prep_x = Standardizer(forcings, (0, 1))
        self.prep_y = Standardizer(flow, (0, 1))
        self.prep_s = Standardizer(statics, (0,))
        data = BasinWindows(self.prep_x(forcings), self.prep_y(flow), self.prep_s(statics), args.lookback)
        sampler = RandomSampler(data, replacement=True, num_samples=args.steps * args.batch_size,
                                generator=torch.Generator().manual_seed(args.seed))
        self.loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)
        self.model = EntityAwareLSTM(forcings.shape[-1], statics.shape[-1], args.hidden)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, 25, 0.5)
        print(f"{len(data)} samples from {args.basins} basins")

    def run(self):
        t0, smooth = time.time(), None
        for step, (x, s, y) in enumerate(self.loader, 1):
            pred = self.model(x, s)
            loss = nse_loss(pred, y, torch.tensor(1.0))
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.sched.step()
            value = loss.item()
            smooth = value if smooth is None else 0.9 * smooth + 0.1 * value
            if step % 10 == 0:
                print(f"step {step} loss {value:.4f} smooth {smooth:.4f} {time.time() - t0:.1f}s")


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--steps", type=int, default=60)
    cli.add_argument("--basins", type=int, default=64)
    cli.add_argument("--days", type=int, default=2200)
    cli.add_argument("--lookback", type=int, default=180)
    cli.add_argument("--batch-size", type=int, default=96)
    cli.add_argument("--hidden", type=int, default=64)
    cli.add_argument("--lr", type=float, default=2e-3)
    cli.add_argument("--seed", type=int, default=42)
    args = cli.parse_args()
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    Experiment(args).run()
