"""Multi-horizon quantile forecasts of order-book volume with a dilated causal TCN."""
import argparse

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
HORIZON, WINDOW = 12, 96


def volume_panel(tickers=60, bars=3000, seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(bars)
    day = np.cos(2 * np.pi * t / 78) + 0.5 * np.cos(4 * np.pi * t / 78)
    shock = rng.standard_normal((tickers, bars))
    ar = np.empty_like(shock)
    ar[:, 0] = shock[:, 0]
    for i in range(1, bars):
        ar[:, i] = 0.85 * ar[:, i - 1] + 0.5 * shock[:, i]
    x = ar + rng.uniform(0.5, 1.5, (tickers, 1)) * day
    calendar = np.stack([np.sin(2 * np.pi * t / 78), np.cos(2 * np.pi * t / 78), (t % 78) / 78])
    return x.astype(np.float32), calendar.astype(np.float32)


class WindowSampler:
    def __init__(self, x, calendar, seed, lo, hi):
        self.x, self.cal = torch.from_numpy(x), torch.from_numpy(calendar)
        self.gen = torch.Generator().manual_seed(seed)
        self.lo, self.hi = lo, hi
        self.past, self.future = torch.arange(WINDOW), torch.arange(WINDOW, WINDOW + HORIZON)

    def draw(self, n):
        k = torch.randint(len(self.x), (n,), generator=self.gen)
        s = torch.randint(self.lo, self.hi - WINDOW - HORIZON, (n,), generator=self.gen)
        past, future = s[:, None] + self.past, s[:, None] + self.future
        hist = self.x[k[:, None], past]
        centre = hist.mean(1, keepdim=True)
        feats = torch.cat([(hist - centre)[:, None], self.cal[:, past].transpose(0, 1)], 1)
        return k, feats, self.cal[:, future].permute(1, 2, 0), self.x[k[:, None], future] - centre


class CausalBlock(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(c, 2 * c, 3, dilation=dilation)
        self.mix = nn.Conv1d(c, c, 1)

    def forward(self, x):
        h = F.glu(self.conv(F.pad(x, (self.pad, 0))), 1)
        return x + self.mix(h)


class QuantileTCN(nn.Module):
    def __init__(self, tickers, c=64, emb=8):
        super().__init__()
        self.stem = nn.Conv1d(4, c, 1)
        self.blocks = nn.ModuleList(CausalBlock(c, 2 ** i) for i in range(5))
        self.query = nn.Parameter(torch.randn(HORIZON, c) / c ** 0.5)
        self.ticker = nn.Embedding(tickers, emb)
        self.dec = nn.Sequential(nn.Linear(c + emb + 3, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(),
                                 nn.Linear(128, len(QUANTILES)))

    def forward(self, k, feats, cal):
        h = self.stem(feats)
        for b in self.blocks:
            h = b(h)
        att = (self.query @ h).softmax(-1) @ h.transpose(1, 2)
        ctx = torch.cat([att, self.ticker(k)[:, None].expand(-1, HORIZON, -1), cal], -1)
        raw = self.dec(ctx)
        return torch.cat([raw[..., :1], raw[..., :1] + F.softplus(raw[..., 1:]).cumsum(-1)], -1)


class PinballLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("q", torch.tensor(QUANTILES))

    def forward(self, pred, y):
        err = y[..., None] - pred
        return torch.maximum(self.q * err, (self.q - 1) * err).mean()


def fit(args):
    torch.manual_seed(args.seed)
    x, cal = volume_panel()
    train = WindowSampler(x, cal, args.seed, 0, 2500)
    test = WindowSampler(x, cal, args.seed + 1, 2500, 3000)
    net, pinball = QuantileTCN(len(x)), PinballLoss()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-4, fused=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=args.steps + 1)
    for step in range(1, args.steps + 1):
        k, feats, c, y = train.draw(args.batch)
        loss = pinball(net(k, feats, c), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"step {step} pinball {loss.item():.4f}")
        if step % 60 == 0:
            with torch.no_grad():
                k, feats, c, y = test.draw(128)
                p = net(k, feats, c)
                cover = ((y > p[..., 0]) & (y < p[..., -1])).float().mean().item()
            print(f"  test pinball {pinball(p, y).item():.4f} 90% coverage {cover:.3f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--seed", type=int, default=7)
    fit(ap.parse_args())
