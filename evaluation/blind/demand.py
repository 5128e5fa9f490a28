"""Joint probabilistic demand forecast for a district of stores."""
import argparse
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.distributions import MultivariateNormal


@dataclass
class Config:
    stores: int = 18
    lags: int = 28
    horizon: int = 14
    calendar: int = 4
    hidden: int = 96
    batch: int = 64
    lr: float = 1e-3


class SalesPanel:
    def __init__(self, cfg, days=1500, seed=3):
        rng = np.random.default_rng(seed)
        t = np.arange(days)
        mix = rng.normal(size=(4, cfg.stores)) * 0.5
        common = rng.normal(size=(days, 4)).cumsum(0) * 0.05
        weekly = np.sin(2 * np.pi * (t[:, None] / 7 + rng.random(cfg.stores)))
        sales = common @ mix + weekly + 0.3 * rng.normal(size=(days, cfg.stores))
        sales = (sales - sales.mean(0)) / sales.std(0)
        cal = np.stack([np.sin(2 * np.pi * t / 7), np.cos(2 * np.pi * t / 7),
                        np.sin(2 * np.pi * t / 365), np.cos(2 * np.pi * t / 365)], 1)
        self.sales = torch.from_numpy(sales.astype(np.float32))
        self.cal = torch.from_numpy(cal.astype(np.float32))
        self.cfg = cfg
        self.gen = torch.Generator().manual_seed(seed)
        self.span = torch.arange(cfg.lags + cfg.horizon)

    def sample(self):
        last = len(self.sales) - len(self.span)
        first = torch.randint(0, last, (self.cfg.batch, 1), generator=self.gen)
        rows = first + self.span
        window = self.sales[rows]
        return window[:, :self.cfg.lags], self.cal[rows[:, self.cfg.lags:]], window[:, self.cfg.lags:]


class JointForecaster(nn.Module):
    def __init__(self, cfg, fixed):
        super().__init__()
        self.cfg, self.fixed = cfg, fixed
        n = cfg.stores
        self.history = nn.Sequential(nn.Flatten(), nn.Linear(cfg.lags * n, cfg.hidden), nn.SiLU(),
                                     nn.Linear(cfg.hidden, cfg.hidden))
        self.future = nn.Linear(cfg.calendar, cfg.hidden)
        self.trunk = nn.Sequential(nn.SiLU(), nn.Linear(cfg.hidden, cfg.hidden), nn.SiLU())
        self.mean = nn.Linear(cfg.hidden, n)
        self.log_diag = nn.Linear(cfg.hidden, n)
        self.lower = nn.Linear(cfg.hidden, n * (n - 1) // 2)
        nn.init.normal_(self.lower.weight, std=0.01)
        self.register_buffer("tri", torch.tril_indices(n, n, offset=-1))

    def forward(self, past, calendar):
        h = self.trunk(self.history(past).unsqueeze(1) + self.future(calendar))
        scale = nn.functional.softplus(self.log_diag(h)) + 0.05
        factor = torch.diag_embed(scale)
        factor[..., self.tri[0], self.tri[1]] = self.lower(h)
        if self.fixed:
            return MultivariateNormal(self.mean(h), scale_tril=factor)
        cov = factor @ factor.mT
        return MultivariateNormal(self.mean(h), covariance_matrix=cov)


def fit(steps, fixed):
    cfg = Config()
    torch.manual_seed(0)
    panel = SalesPanel(cfg)
    net = JointForecaster(cfg, fixed)
    opt = torch.optim.AdamW(net.parameters(), lr=cfg.lr, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=steps)
    begun = None
    for i in range(1, steps + 1):
        if i == 11:
            begun = time.process_time()
        past, calendar, target = panel.sample()
        nll = -net(past, calendar).log_prob(target).mean()
        opt.zero_grad()
        nll.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        sched.step()
        if i % 50 == 0:
            print(f"[{i:4d}] nll={nll.item():.5f}", flush=True)
    return (time.process_time() - begun) / (steps - 10) * 1e3


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--fixed", action="store_true")
    opts = parser.parse_args()
    print(f"step_ms={fit(opts.steps, opts.fixed):.3f}")
