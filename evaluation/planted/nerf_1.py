"""Radiance field fitting on random rays of a toy scene."""
import argparse
import math

import torch
from torch import nn


class Field(nn.Module):
    def __init__(self, bands=4, width=48):
        super().__init__()
        self.register_buffer("freqs", 2.0 ** torch.arange(bands) * math.pi)
        self.net = nn.Sequential(
            nn.Linear(6 * bands, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)
        )

    def forward(self, pts):
        ang = (pts.unsqueeze(-1) * self.freqs).flatten(-2)
        out = self.net(torch.cat([ang.sin(), ang.cos()], -1))
        return nn.functional.softplus(out[..., 0] - 1), out[..., 1:].sigmoid()


def march(sigma, rgb, delta):
    alive = torch.ones_like(sigma[:, 0])
    color = torch.zeros_like(rgb[:, 0])
    for s in range(sigma.shape[1]):
        alpha = 1 - torch.exp(-sigma[:, s] * delta)
        color = color + (alive * alpha).unsqueeze(-1) * rgb[:, s]
        alive = alive * (1 - alpha)
    return color, 1 - alive


def composite(sigma, rgb, delta):
    alpha = 1 - torch.exp(-sigma * delta)
    after = torch.cumprod(1 - alpha, 1)
    before = torch.cat([torch.ones_like(after[:, :1]), after[:, :-1]], 1)
    color = ((before * alpha).unsqueeze(-1) * rgb).sum(1)
    return color, 1 - after[:, -1]


class RayCaster:
    def __init__(self, n_samples=64, near=0.2, far=1.8, accumulate=march):
        self.near, self.far, self.n = near, far, n_samples
        self.accumulate = accumulate

    def __call__(self, field, origins, dirs):
        width = (self.far - self.near) / self.n
        z = self.near + width * (torch.arange(self.n) + torch.rand(len(origins), self.n))
        pts = origins[:, None] + z.unsqueeze(-1) * dirs[:, None]
        sigma, rgb = field(pts)
        return self.accumulate(sigma, rgb, width)


def random_rays(n):
    origin = torch.nn.functional.normalize(torch.randn(n, 3), dim=-1)
    look = torch.nn.functional.normalize(0.3 * torch.randn(n, 3) - origin, dim=-1)
    closest = (origin - (origin * look).sum(-1, keepdim=True) * look).norm(dim=-1)
    hit = (closest < 0.4).float()
    color = torch.stack([hit, hit * closest, 1 - hit], -1)
    return origin, look, color, hit


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(9)
    field = Field()
    caster = RayCaster(accumulate=composite if args.fixed else march)
    opt = torch.optim.Adam(field.parameters(), lr=5e-3)
    for step in range(args.steps):
        o, d, target, hit = random_rays(128)
        color, opacity = caster(field, o, d)
        loss = (color - target).square().mean() + 0.1 * (opacity - hit).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0:
            print(f"step {step} photometric {loss.item():.5f}")


if __name__ == "__main__":
    main()
