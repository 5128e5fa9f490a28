"""Radiance field fitted to posed renderings of a few coloured balls."""
import argparse
from typing import NamedTuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Rays(NamedTuple):
    origin: np.ndarray
    direction: np.ndarray
    colour: np.ndarray


def look_at(eye):
    fwd = -eye / np.linalg.norm(eye)
    right = np.cross(fwd, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    return np.stack([right, np.cross(right, fwd), fwd], 1)


def shoot(view, side, balls, rng):
    ang = rng.uniform(0, 2 * np.pi)
    eye = np.array([4 * np.cos(ang), 4 * np.sin(ang), rng.uniform(0.8, 2.0)])
    pose = look_at(eye)
    u, v = np.meshgrid(np.linspace(-0.45, 0.45, side), np.linspace(0.45, -0.45, side))
    d = np.stack([u, v, np.ones_like(u)], -1).reshape(-1, 3) @ pose.T
    d /= np.linalg.norm(d, axis=1, keepdims=True)
    best = np.full(len(d), np.inf)
    rgb = np.ones((len(d), 3))
    for centre, radius, colour in balls:
        oc = eye - centre
        b = d @ oc
        disc = b * b - (oc @ oc - radius ** 2)
        t = -b - np.sqrt(np.maximum(disc, 0))
        hit = (disc > 0) & (t < best)
        normal = (eye + t[:, None] * d - centre) / radius
        shade = 0.4 + 0.6 * np.clip(normal @ np.array([0.3, 0.5, 0.8]), 0, 1)
        rgb[hit] = colour * shade[hit, None]
        best[hit] = t[hit]
    return np.broadcast_to(eye, d.shape), d, rgb


def capture(views, side, seed):
    rng = np.random.default_rng(seed)
    balls = [(rng.uniform(-0.8, 0.8, 3), rng.uniform(0.25, 0.5), rng.uniform(0, 1, 3)) for _ in range(4)]
    parts = [shoot(i, side, balls, rng) for i in range(views)]
    return Rays(*[np.concatenate(p).astype(np.float32) for p in zip(*parts)])


def fourier(x, freqs):
    ang = (x.unsqueeze(-1) * freqs).flatten(-2)
    return torch.cat([x, torch.sin(ang), torch.cos(ang)], -1)


class Field(nn.Module):
    def __init__(self, width=96, n_pos=6, n_dir=3):
        super().__init__()
        self.register_buffer("fp", 2.0 ** torch.arange(n_pos))
        self.register_buffer("fd", 2.0 ** torch.arange(n_dir))
        self.trunk = nn.Sequential(nn.Linear(3 + 6 * n_pos, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                                   nn.Linear(width, width), nn.ReLU())
        self.sigma = nn.Linear(width, 1)
        self.colour = nn.Sequential(nn.Linear(width + 3 + 6 * n_dir, width // 2), nn.ReLU(), nn.Linear(width // 2, 3))

    def forward(self, pts, dirs):
        h = self.trunk(fourier(pts, self.fp))
        d = fourier(dirs, self.fd).unsqueeze(1).expand(-1, pts.shape[1], -1)
        return F.softplus(self.sigma(h).squeeze(-1) - 1), torch.sigmoid(self.colour(torch.cat([h, d], -1)))


def march(field, o, d, near, far, n):
    edges = torch.linspace(near, far, n + 1)
    t = edges[:-1] + torch.rand(len(o), n) * (far - near) / n
    sigma, rgb = field(o.unsqueeze(1) + d.unsqueeze(1) * t.unsqueeze(-1), d)
    delta = torch.cat([t[:, 1:] - t[:, :-1], torch.full_like(t[:, :1], (far - near) / n)], 1)
    tau = sigma * delta
    trans = torch.exp(-(torch.cumsum(tau, 1) - tau))
    w = trans * (1 - torch.exp(-tau))
    return (w.unsqueeze(-1) * rgb).sum(1) + (1 - w.sum(1, keepdim=True))


class RaySampler:
    """Draws batches of distinct rays from all the training pixels."""

    def __init__(self, rays, batch, seed):
        self.rays, self.batch = rays, batch
        self.rng = np.random.RandomState(seed)

    def next(self):
        sel = self.rng.choice(len(self.rays.colour), self.batch, replace=False)
        return [torch.from_numpy(a[sel]) for a in self.rays]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--views", type=int, default=24)
    ap.add_argument("--side", type=int, default=200)
    ap.add_argument("--rays", type=int, default=576)
    ap.add_argument("--samples", type=int, default=24)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    torch.manual_seed(args.seed)

    sampler = RaySampler(capture(args.views, args.side, args.seed), args.rays, args.seed)
    field = Field()
    opt = torch.optim.Adam(field.parameters(), lr=args.lr, betas=(0.9, 0.99))
    decay = 0.1 ** (1 / 5000)
    for step in range(args.steps):
        o, d, rgb = sampler.next()
        pred = march(field, o, d, 2.0, 6.0, args.samples)
        loss = F.mse_loss(pred, rgb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        for g in opt.param_groups:
            g["lr"] *= decay
        if step % 10 == 0:
            print(f"{step:6d}  mse {loss.item():.5f}  psnr {-10 * torch.log10(loss.detach()).item():.2f}")


if __name__ == "__main__":
    main()
