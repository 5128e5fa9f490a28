"""Probabilistic load forecasting: streaming windows, GRU encoder, quantile heads."""
import argparse
import itertools
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

QUANTILES = (0.1, 0.5, 0.9)


def simulate_meters(n_series, length, seed):
    rng = np.random.default_rng(seed)
    t = np.arange(length)
    daily = np.sin(2 * np.pi * (t[None] / 24 + rng.random((n_series, 1))))
    weekly = np.cos(2 * np.pi * (t[None] / 168 + rng.random((n_series, 1))))
    noise = np.zeros((n_series, length))
    shocks = rng.normal(scale=0.3, size=(n_series, length))
    for k in range(1, length):
        noise[:, k] = 0.8 * noise[:, k - 1] + shocks[:, k]
    level = rng.uniform(0.5, 2.0, size=(n_series, 1))
    series = level * (1 + 0.5 * daily + 0.2 * weekly) + noise
    calendar = np.stack([np.sin(2 * np.pi * t / 24), np.cos(2 * np.pi * t / 24),
                         np.sin(2 * np.pi * t / 168), np.cos(2 * np.pi * t / 168)], axis=1)
    return series.astype(np.float32), calendar.astype(np.float32)


class WindowStream(IterableDataset):
    """Endless random windows, already batched."""

    def __init__(self, series, calendar, context, horizon, batch_size, seed):
        self.series, self.calendar = series, calendar
        self.context, self.horizon, self.batch_size, self.seed = context, horizon, batch_size, seed

    def __iter__(self):
        rng = np.random.default_rng(self.seed)
        span = self.context + self.horizon
        offsets = np.arange(span)
        while True:
            rows = rng.integers(0, len(self.series), size=self.batch_size)
            starts = rng.integers(0, self.series.shape[1] - span, size=self.batch_size)
            cols = starts[:, None] + offsets
            window = self.series[rows[:, None], cols]
            past = window[:, :self.context]
            loc, scale = past.mean(axis=1, keepdims=True), past.std(axis=1, keepdims=True) + 1e-3
            window = (window - loc) / scale
            feats = np.concatenate([window[:, :self.context, None], self.calendar[cols[:, :self.context]]], axis=2)
            yield (torch.from_numpy(feats), torch.from_numpy(self.calendar[cols[:, self.context:]]),
                   torch.from_numpy(window[:, self.context:]))


class QuantileForecaster(nn.Module):
    def __init__(self, n_feats=5, n_cal=4, hidden=128, layers=2, horizon=24):
        super().__init__()
        self.rnn = nn.GRU(n_feats, hidden, num_layers=layers, batch_first=True)
        self.future = nn.Sequential(nn.Linear(hidden + n_cal, hidden), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(hidden, 1) for _ in QUANTILES)

    def forward(self, past, cal_future):
        _, h = self.rnn(past)
        ctx = h[-1].unsqueeze(1).expand(-1, cal_future.shape[1], -1)
        z = self.future(torch.cat([ctx, cal_future], dim=2))
        outs = []
        for head in self.heads:
            outs.append(head(z).squeeze(2))
        return torch.stack(outs, dim=2)


def pinball(pred, target):
    total = 0.0
    for k, q in enumerate(QUANTILES):
        diff = target - pred[:, :, k]
        total = total + torch.maximum(q * diff, (q - 1) * diff).mean()
    return total / len(QUANTILES)


def coverage(pred, target):
    inside = (target >= pred[:, :, 0]) & (target <= pred[:, :, 2])
    return inside.float().mean()


def run(args):
    torch.manual_seed(args.seed)
    series, calendar = simulate_meters(200, 3000, args.seed)
    stream = WindowStream(series, calendar, args.context, args.horizon, args.batch_size, args.seed)
    held_out = WindowStream(series, calendar, args.context, args.horizon, 256, args.seed + 1)
    valid = list(itertools.islice(iter(held_out), 2))
    loader = DataLoader(stream, batch_size=None)

    model = QuantileForecaster(horizon=args.horizon)
    opt = torch.optim.RMSprop(model.parameters(), lr=args.lr, momentum=0.0)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    history = {"loss": [], "cover": [], "grad": []}
    t0 = time.time()
    for step, (past, cal, target) in enumerate(itertools.islice(loader, args.steps), start=1):
        model.train()
        pred = model(past, cal)
        loss = pinball(pred, target)
        opt.zero_grad()
        loss.backward()
        norm = torch.sqrt(sum(p.grad.pow(2).sum() for p in model.parameters()))
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        opt.step()
        sched.step()
        history["loss"].append(loss.item())
        history["cover"].append(coverage(pred.detach(), target).item())
        history["grad"].append(norm.item())
        if step % 25 == 0:
            recent = {k: float(np.mean(v[-25:])) for k, v in history.items()}
            print(f"step {step:5d} loss {recent['loss']:.4f} cover {recent['cover']:.3f} grad {recent['grad']:.3f} "
                  f"{(time.time() - t0) / step * 1e3:.0f} ms/step", flush=True)
        if step % 400 == 0:
            model.eval()
            with torch.no_grad():
                v = np.mean([pinball(model(p, c), y).item() for p, c, y in valid])
            print(f"  valid pinball {v:.4f}", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=4000)
    ap.add_argument("--batch-size", type=int, default=48)
    ap.add_argument("--context", type=int, default=72)
    ap.add_argument("--horizon", type=int, default=24)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=23)
    run(ap.parse_args())
