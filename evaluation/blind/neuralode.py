"""Latent dynamics of coupled oscillators with a neural ODE.

A Bogacki-Shampine (3,2) pair on a fixed grid; the embedded error estimate is
added to the loss so the learned vector field stays easy to integrate.
"""
from dataclasses import dataclass
import time

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Settings:
    oscillators: int = 6
    hidden: int = 160
    batch: int = 192
    horizon: float = 2.0
    grid: int = 11
    steps: int = 150
    lr: float = 2e-3
    error_weight: float = 1e-2
    seed: int = 13

    @property
    def state(self):
        return 2 * self.oscillators


def true_field(y, coupling):
    q, p = y.chunk(2, dim=-1)
    return torch.cat([p, -torch.sin(q) - q @ coupling - 0.1 * p], dim=-1)


@torch.no_grad()
def make_trajectories(cfg, n, g):
    c = torch.rand(cfg.oscillators, cfg.oscillators, generator=g) * 0.3
    c = 0.5 * (c + c.T)
    y = torch.randn(n, cfg.state, generator=g)
    sub = 20
    h = cfg.horizon / (cfg.grid - 1) / sub
    out = [y]
    for _ in range(cfg.grid - 1):
        for _ in range(sub):
            k1 = true_field(y, c)
            y = y + h * true_field(y + 0.5 * h * k1, c)
        out.append(y)
    return torch.stack(out)                     # grid, n, state


class VectorField(nn.Module):
    def __init__(self, state, hidden):
        super().__init__()
        self.calls = 0
        self.net = nn.Sequential(
            nn.Linear(state + 1, hidden), nn.Tanh(),
            nn.Linear(hidden, hidden), nn.Tanh(),
            nn.Linear(hidden, state),
        )

    def forward(self, t, y):
        self.calls += 1
        t = t.expand(y.shape[0], 1)
        return self.net(torch.cat([y, t], dim=-1))


class BogackiShampine:
    """Third order step with an embedded second order error estimate."""

    order = 3

    def __init__(self, func):
        self.func = func

    def step(self, t, y, h):
        f = self.func
        k1 = f(t, y)
        k2 = f(t + 0.5 * h, y + 0.5 * h * k1)
        k3 = f(t + 0.75 * h, y + 0.75 * h * k2)
        y_new = y + h * (2 / 9 * k1 + 1 / 3 * k2 + 4 / 9 * k3)
        k4 = f(t + h, y_new)
        err = h * (-5 / 72 * k1 + 1 / 12 * k2 + 1 / 9 * k3 - 1 / 8 * k4)
        return y_new, err

    def integrate(self, y, ts):
        ys, penalty = [y], y.new_zeros(())
        for t0, t1 in zip(ts[:-1], ts[1:]):
            y, err = self.step(t0, y, t1 - t0)
            penalty = penalty + err.square().mean()
            ys.append(y)
        return torch.stack(ys), penalty / (len(ts) - 1)


def sample(trajectories, batch, g):
    pick = torch.randint(0, trajectories.shape[1], (batch,), generator=g)
    return trajectories[:, pick]


def main():
    cfg = Settings()
    torch.manual_seed(cfg.seed)
    g = torch.Generator().manual_seed(cfg.seed)
    data = make_trajectories(cfg, 2000, g)
    ts = torch.linspace(0.0, cfg.horizon, cfg.grid)

    field = VectorField(cfg.state, cfg.hidden)
    solver = BogackiShampine(field)
    opt = torch.optim.Adam(field.parameters(), lr=cfg.lr, fused=True)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.995)

    started = time.time()
    for it in range(cfg.steps):
        target = sample(data, cfg.batch, g)
        pred, penalty = solver.integrate(target[0], ts)
        fit = F.mse_loss(pred, target)
        loss = fit + cfg.error_weight * penalty
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if (it + 1) % 25 == 0:
            print(f"iter {it + 1:4d}  mse {fit.item():.5f}  local error {penalty.item():.2e}  "
                  f"nfe {field.calls}  {time.time() - started:.1f}s")


if __name__ == "__main__":
    main()
