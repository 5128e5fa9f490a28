"""Return forecasting with a norm-preserving recurrent cell over intraday factor paths."""
from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
from torch.nn.utils.parametrizations import orthogonal


@dataclass
class Config:
    steps: int = 60
    batch: int = 512
    window: int = 24
    factors: int = 32
    hidden: int = 96
    horizons: int = 4
    lr: float = 2e-3
    report: int = 10


class FactorTape:
    """Minute bars for many names; windows are cut at random (name, minute) pairs."""

    def __init__(self, cfg: Config, names=150, minutes=1200, seed=5):
        rng = np.random.default_rng(seed)
        shocks = rng.standard_normal((names, minutes, cfg.factors)).astype(np.float32)
        for lag in (1, 2, 5):
            shocks[:, lag:] += 0.4 * shocks[:, :-lag]
        beta = rng.standard_normal((cfg.factors, cfg.horizons)).astype(np.float32)
        beta /= np.sqrt(cfg.factors)
        noise = rng.standard_normal((names, minutes, cfg.horizons)).astype(np.float32)
        self.x = torch.from_numpy(shocks)
        self.y = torch.from_numpy(np.tanh(shocks @ beta) + 0.5 * noise)
        self.cfg = cfg
        self.names, self.minutes = names, minutes
        self.gen = torch.Generator().manual_seed(seed)

    def sample(self):
        c = self.cfg
        who = torch.randint(self.names, (c.batch,), generator=self.gen)
        at = torch.randint(self.minutes - c.window, (c.batch,), generator=self.gen)
        span = at[:, None] + torch.arange(c.window)
        return self.x[who[:, None], span], self.y[who, at + c.window - 1]


class IsometricCell(nn.Module):
    def __init__(self, n_in, n_hidden):
        super().__init__()
        self.rot = orthogonal(nn.Linear(n_hidden, n_hidden, bias=False))
        self.drive = nn.Linear(n_in, n_hidden)
        self.shift = nn.Parameter(torch.full((n_hidden,), -0.01))

    def activate(self, z):
        return torch.sign(z) * torch.relu(z.abs() + self.shift)

    def forward(self, u, h):
        return self.activate(self.rot(h) + u)


class PathForecaster(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(cfg.factors, 128), nn.SiLU(), nn.LayerNorm(128),
                                  nn.Linear(128, 128), nn.SiLU())
        self.cell = IsometricCell(128, cfg.hidden)
        self.mix = nn.Linear(cfg.hidden, cfg.hidden)
        self.head = nn.Sequential(nn.LayerNorm(cfg.hidden), nn.Linear(cfg.hidden, 128), nn.SiLU(),
                                  nn.Linear(128, cfg.horizons))

    def forward(self, x):
        drive = self.cell.drive(self.stem(x))
        h = drive.new_zeros(x.shape[0], drive.shape[-1])
        pooled = torch.zeros_like(h)
        for u in drive.unbind(1):
            h = self.cell(u, h)
            pooled = pooled + torch.tanh(self.mix(h))
        return self.head(h + pooled / x.shape[1])


def rank_corr(a, b):
    ra, rb = a.argsort(0).argsort(0).float(), b.argsort(0).argsort(0).float()
    ra, rb = ra - ra.mean(0), rb - rb.mean(0)
    return (ra * rb).sum(0) / (ra.norm(dim=0) * rb.norm(dim=0))


def fit(cfg: Config):
    torch.manual_seed(5)
    tape = FactorTape(cfg)
    net = PathForecaster(cfg)
    opt = torch.optim.RMSprop(net.parameters(), lr=cfg.lr, alpha=0.95)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=cfg.steps)
    loss_fn = nn.SmoothL1Loss()
    for it in range(cfg.steps):
        x, y = tape.sample()
        pred = net(x)
        loss = loss_fn(pred, y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        sched.step()
        if it % cfg.report == 0 or it + 1 == cfg.steps:
            ic = rank_corr(pred.detach(), y).mean().item()
            print(f"it {it:3d} huber {loss.item():.6f} ic {ic:+.4f} lr {sched.get_last_lr()[0]:.2e}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=512)
    ns = ap.parse_args()
    fit(Config(steps=ns.steps, batch=ns.batch))
