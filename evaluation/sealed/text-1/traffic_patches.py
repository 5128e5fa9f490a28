"""Multi-sensor traffic flow forecaster: channel-independent patches plus calendar context."""
import argparse
import math

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F


def road_network(steps, sensors, seed):
    rng = np.random.default_rng(seed)
    t = np.arange(steps) / 12.0
    hour = t % 24
    dow = (t // 24) % 7
    rush = np.exp(-0.5 * ((hour - 8) / 1.5) ** 2) + 1.2 * np.exp(-0.5 * ((hour - 17.5) / 2) ** 2)
    share = rng.uniform(0.3, 1.5, sensors)
    shift = rng.integers(0, 18, sensors)
    flow = np.stack([np.roll(rush, s) for s in shift], 1) * share
    flow *= np.where(dow < 5, 1.0, 0.55)[:, None]
    flow += 0.08 * rng.normal(size=flow.shape) + 0.3
    calendar = np.stack([
        np.sin(2 * math.pi * hour / 24), np.cos(2 * math.pi * hour / 24),
        np.sin(2 * math.pi * dow / 7), np.cos(2 * math.pi * dow / 7),
        (dow >= 5).astype(float), np.abs(hour - 12) / 12,
    ], 1)
    return torch.tensor(flow, dtype=torch.float32), torch.tensor(calendar, dtype=torch.float32)


class WindowSource:
    def __init__(self, flow, calendar, lookback, horizon, seed):
        self.flow, self.calendar = flow, calendar
        self.lookback, self.horizon = lookback, horizon
        self.gen = torch.Generator().manual_seed(seed)

    def draw(self, n):
        total = self.lookback + self.horizon
        starts = torch.randint(0, len(self.flow) - total, (n,), generator=self.gen)
        idx = starts[:, None] + torch.arange(total)
        window, cal = self.flow[idx], self.calendar[idx]
        return window[:, :self.lookback], cal[:, :self.lookback], window[:, self.lookback:]


class RevIN(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def normalise(self, x):
        self.mu = x.mean(1, keepdim=True)
        self.sd = x.std(1, keepdim=True) + 1e-4
        return (x - self.mu) / self.sd * self.gain + self.bias

    def restore(self, y):
        return (y - self.bias) / (self.gain + 1e-6) * self.sd + self.mu


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, d))
        return x + self.ff(self.n2(x))


class CalendarNet(nn.Module):
    """Fine-grained calendar response, pooled to patch resolution."""

    def __init__(self, features, d, patch):
        super().__init__()
        self.patch = patch
        self.net = nn.Sequential(nn.Linear(features, 32), nn.SiLU(), nn.Linear(32, d), nn.SiLU())

    def forward(self, cal):
        return self.net(cal).unflatten(1, (-1, self.patch)).mean(2)


def per_channel(x, cal):
    """(B, T, C), (B, T, F) -> (B*C, T), (B*C, T, F)"""
    b, t, c = x.shape
    series = x.transpose(1, 2).reshape(b * c, t)
    context = cal.unsqueeze(1).expand(b, c, t, cal.shape[-1]).reshape(b * c, t, -1)
    return series, context


class PatchForecaster(nn.Module):
    def __init__(self, channels, features, lookback, horizon, patch=12, d=64, heads=4, depth=2):
        super().__init__()
        self.horizon, self.patch = horizon, patch
        self.revin = RevIN(channels)
        self.embed = nn.Linear(patch, d)
        self.calendar = CalendarNet(features, d, patch)
        self.place = nn.Parameter(0.02 * torch.randn(lookback // patch, d))
        self.layers = nn.ModuleList(Layer(d, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d * (lookback // patch), horizon)

    def forward(self, x, cal):
        b, _, c = x.shape
        series, context = per_channel(self.revin.normalise(x), cal)
        tokens = self.embed(series.unflatten(1, (-1, self.patch))) + self.place
        tokens = tokens + self.calendar(context)
        for layer in self.layers:
            tokens = layer(tokens)
        out = self.head(self.norm(tokens).flatten(1))
        return self.revin.restore(out.view(b, c, self.horizon).transpose(1, 2))


def fit(cfg):
    torch.manual_seed(cfg.seed)
    flow, calendar = road_network(12 * 24 * 60, cfg.sensors, cfg.seed)
    cut = int(0.85 * len(flow))
    train = WindowSource(flow[:cut], calendar[:cut], cfg.lookback, cfg.horizon, 1)
    held = WindowSource(flow[cut:], calendar[cut:], cfg.lookback, cfg.horizon, 2)
    model = PatchForecaster(cfg.sensors, calendar.shape[1], cfg.lookback, cfg.horizon)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    best = float("inf")
    for step in range(1, cfg.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = cfg.lr * min(1.0, step / 15)
        x, cal, y = train.draw(cfg.batch)
        loss = F.huber_loss(model(x, cal), y, delta=0.5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step={step} huber={loss.item():.6f}")
        if step % 30 == 0:
            model.eval()
            with torch.no_grad():
                x, cal, y = held.draw(cfg.batch)
                mae = (model(x, cal) - y).abs().mean().item()
            model.train()
            best = min(best, mae)
            print(f"step={step} held-out mae={mae:.5f} best={best:.5f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=12)
    ap.add_argument("--sensors", type=int, default=24)
    ap.add_argument("--lookback", type=int, default=192)
    ap.add_argument("--horizon", type=int, default=36)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=21)
    fit(ap.parse_args())
