"""Learned time stepper for the linear shallow-water equations with multi-horizon skill scores."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

G, DEPTH, DX, DT = 9.81, 10.0, 1.0, 0.04


def solver_step(s):
    """One forward-backward step on a periodic grid; s = (eta, u, v)."""
    eta, u, v = s.unbind(1)
    u = u - DT * G / (2 * DX) * (eta.roll(-1, 2) - eta.roll(1, 2))
    v = v - DT * G / (2 * DX) * (eta.roll(-1, 1) - eta.roll(1, 1))
    div = (u.roll(-1, 2) - u.roll(1, 2) + v.roll(-1, 1) - v.roll(1, 1)) / (2 * DX)
    return torch.stack([eta - DT * DEPTH * div, u, v], 1)


def initial_states(n, size, gen):
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    eta = torch.zeros(n, size, size)
    for _ in range(4):
        k = torch.randint(-3, 4, (n, 2, 1, 1), generator=gen)
        ph = 2 * math.pi * torch.rand(n, 1, 1, generator=gen)
        amp = 0.3 * torch.randn(n, 1, 1, generator=gen)
        eta += amp * torch.cos(2 * math.pi * (k[:, 0] * x + k[:, 1] * y) / size + ph)
    vel = 0.05 * torch.randn(n, 2, 1, 1, generator=gen).expand(n, 2, size, size)
    return torch.cat([eta[:, None], vel], 1)


def make_trajectories(n, size, frames, substeps, seed):
    gen = torch.Generator().manual_seed(seed)
    s = initial_states(n, size, gen)
    out = [s]
    for _ in range(frames - 1):
        for _ in range(substeps):
            s = solver_step(s)
        out.append(s)
    return torch.stack(out, 1)


class PeriodicConv(nn.Conv2d):
    def __init__(self, i, o, k=5):
        super().__init__(i, o, k, padding=k // 2, padding_mode="circular")


class Stepper(nn.Module):
    def __init__(self, width=24, layers=3):
        super().__init__()
        mods = [PeriodicConv(3, width), nn.GELU()]
        for _ in range(layers - 1):
            mods += [PeriodicConv(width, width), nn.GELU()]
        self.net = nn.Sequential(*mods, nn.Conv2d(width, 3, 1))
        nn.init.zeros_(self.net[-1].weight)

    def forward(self, s):
        return s + self.net(s)


def advance(model, s, n):
    for _ in range(n):
        s = model(s)
    return s


@torch.no_grad()
def skill(model, traj, horizons):
    """RMSE of eta against the reference at each lead time, relative to climatology."""
    clim = traj[:, :, 0].std()
    scores = {}
    for h in horizons:
        pred = advance(model, traj[:, 0], h)
        scores[h] = ((pred[:, 0] - traj[:, h, 0]).square().mean().sqrt() / clim).item()
    return scores


def energy(s):
    return (0.5 * G * s[:, 0] ** 2 + 0.5 * DEPTH * (s[:, 1] ** 2 + s[:, 2] ** 2)).mean((1, 2))


def train(steps, batch, size, lr, unroll, eval_every, horizons, seed):
    torch.manual_seed(seed)
    traj = make_trajectories(24, size, 24, 3, seed)
    held_out = make_trajectories(4, size, max(horizons) + 1, 3, seed + 1)
    model = Stepper()
    opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, lr, total_steps=steps + 1, pct_start=0.2)
    gen = torch.Generator().manual_seed(seed + 2)
    for step in range(1, steps + 1):
        i = torch.randint(len(traj), (batch,), generator=gen)
        t = torch.randint(traj.shape[1] - unroll, (batch,), generator=gen)
        s = traj[i, t] + 0.005 * torch.randn(batch, 3, size, size, generator=gen)
        e0, loss = energy(s), 0.0
        for k in range(1, unroll + 1):
            s = model(s)
            loss = loss + F.mse_loss(s, traj[i, t + k]) / unroll
        loss = loss + 0.01 * F.l1_loss(energy(s), e0)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % eval_every == 0:
            scores = skill(model, held_out, horizons)
            print(f"step {step} loss {loss.item():.5f} | " + " ".join(f"+{h}: {v:.3f}" for h, v in scores.items()))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=3)
    ap.add_argument("--size", type=int, default=40)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--unroll", type=int, default=2)
    ap.add_argument("--eval-every", type=int, default=10)
    ap.add_argument("--horizons", type=int, nargs="+", default=[1, 2, 4, 8, 12, 16])
    ap.add_argument("--seed", type=int, default=0)
    train(**vars(ap.parse_args()))
