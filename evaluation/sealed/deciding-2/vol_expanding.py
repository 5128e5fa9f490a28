"""Realised-volatility forecaster fed with a live tape; inputs are z-scored against everything
seen up to the current day (no look-ahead)."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class TapeSimulator:
    """Daily slabs of half-minute log returns for a universe, GARCH-like variance."""

    def __init__(self, names, bars, seed):
        self.rng = np.random.default_rng(seed)
        self.names, self.bars = names, bars
        self.var = np.full(names, 1e-4)

    def next_day(self):
        shock = self.rng.standard_normal((self.names, self.bars))
        ret = shock * np.sqrt(self.var / self.bars)[:, None]
        realised = (ret ** 2).sum(1)
        self.var = 2e-6 + 0.12 * realised + 0.86 * self.var
        return ret, np.log(realised + 1e-12)


class ExpandingScaler:
    def __init__(self):
        self.seen = np.empty(0)

    def update(self, values):
        self.seen = np.concatenate([self.seen, values.ravel()])
        self.mean = self.seen.mean()
        self.std = self.seen.std()

    def transform(self, values):
        return (values - self.mean) / (self.std + 1e-12)


class BarEncoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(2, width, 8, stride=4, padding=2), nn.SiLU(),
            nn.Conv1d(width, width, 8, stride=4, padding=2), nn.SiLU(),
            nn.Conv1d(width, 2 * width, 5, stride=2, padding=2), nn.SiLU())

    def forward(self, bars):
        return self.conv(bars).mean(-1)


class VolModel(nn.Module):
    def __init__(self, width=72, hidden=96):
        super().__init__()
        self.enc = BarEncoder(width)
        self.state = nn.GRUCell(2 * width, hidden)
        self.head = nn.Sequential(nn.Linear(hidden, 64), nn.SiLU(), nn.Linear(64, 2))

    def forward(self, bars, h):
        h = self.state(self.enc(bars), h)
        mu, log_s = self.head(h).unbind(-1)
        return mu, log_s.clamp(-4, 4), h


def gaussian_nll(mu, log_s, y):
    return (0.5 * ((y - mu) * torch.exp(-log_s)) ** 2 + log_s).mean()


def warm_history(sim, scaler, days):
    slabs = [sim.next_day()[0] for _ in range(days)]
    scaler.update(np.stack(slabs))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--names", type=int, default=80)
    ap.add_argument("--bars", type=int, default=780)
    ap.add_argument("--history-days", type=int, default=20)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    torch.manual_seed(77)
    sim = TapeSimulator(args.names, args.bars, 77)
    scaler = ExpandingScaler()
    warm_history(sim, scaler, args.history_days)
    model = VolModel()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    h = torch.zeros(args.names, 96)
    ret, _ = sim.next_day()
    level = None
    for day in range(1, args.steps + 1):
        scaler.update(ret)
        z = torch.from_numpy(scaler.transform(ret)).float()
        bars = torch.stack([z, z.abs()], 1)
        nxt, log_rv = sim.next_day()
        level = log_rv.mean() if level is None else 0.9 * level + 0.1 * log_rv.mean()
        target = torch.from_numpy(log_rv - level).float()
        mu, log_s, h = model(bars, h)
        loss = gaussian_nll(mu, log_s, target)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        h = h.detach()
        ret = nxt
        if day % 10 == 0:
            mae = F.l1_loss(mu.detach(), target).item()
            print(f"day {day:4d} nll {loss.item():.5f} mae {mae:.4f} scale {scaler.std:.3e}")


if __name__ == "__main__":
    main()
