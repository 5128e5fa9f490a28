"""Fit a neural signed distance field with eikonal regularisation to an oriented scan."""
import argparse
import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    steps: int = 60
    surface: int = 2048
    space: int = 1024
    scan_points: int = 1_000_000
    width: int = 112
    depth: int = 4
    lr: float = 1e-3
    eikonal: float = 0.1
    normal: float = 0.5
    seed: int = 0


def torus_scan(n, seed, R=0.6, r=0.22):
    rng = np.random.default_rng(seed)
    a = rng.random(n, dtype=np.float32) * np.float32(2 * np.pi)
    b = rng.random(n, dtype=np.float32) * np.float32(2 * np.pi)
    normal = np.stack([np.cos(a) * np.cos(b), np.sin(a) * np.cos(b), np.sin(b)], 1)
    centre = np.stack([np.cos(a), np.sin(a), np.zeros_like(a)], 1) * np.float32(R)
    bump = np.float32(r) + np.float32(0.01) * np.sin(9 * a)[:, None]
    return (centre + bump * normal).astype(np.float32), normal.astype(np.float32)


class PointPool:
    """Surface samples of the scan plus uniform and near-surface space samples."""

    def __init__(self, xyz, normals, cfg):
        self.xyz, self.normals = xyz, normals
        self.n_surface, self.n_space = cfg.surface, cfg.space
        self.sigma = 0.05

    def draw(self):
        pick = np.random.choice(len(self.xyz), self.n_surface, replace=False)
        on = torch.from_numpy(self.xyz[pick])
        nrm = torch.from_numpy(self.normals[pick])
        near = on[: self.n_space // 2] + self.sigma * torch.randn(self.n_space // 2, 3)
        uni = torch.rand(self.n_space - len(near), 3) * 2 - 1
        return on, nrm, torch.cat([near, uni])


class FourierSDF(nn.Module):
    def __init__(self, width, depth, bands=5, skip=2):
        super().__init__()
        self.register_buffer("freq", math.pi * 2.0 ** torch.arange(bands))
        d_in = 3 + 6 * bands
        self.skip = skip
        self.layers = nn.ModuleList()
        d = d_in
        for i in range(depth):
            self.layers.append(nn.Linear(d + (d_in if i == skip else 0), width))
            d = width
        self.last = nn.Linear(width, 1)
        nn.init.constant_(self.last.bias, 0.1)

    def encode(self, x):
        z = (x[:, :, None] * self.freq).flatten(1)
        return torch.cat([x, z.sin(), z.cos()], 1)

    def forward(self, x):
        e = self.encode(x)
        h = e
        for i, layer in enumerate(self.layers):
            if i == self.skip:
                h = torch.cat([h, e], 1)
            h = F.softplus(layer(h), beta=50)
        return self.last(h).squeeze(1)


def field_gradient(net, x):
    x.requires_grad_(True)
    d = net(x)
    g, = torch.autograd.grad(d.sum(), x, create_graph=True)
    return d, g


def losses(net, on, normals, space, cfg):
    n = len(on)
    d, g = field_gradient(net, torch.cat([on, space]))
    data = d[:n].abs().mean()
    align = (1 - F.cosine_similarity(g[:n], normals, dim=1)).mean()
    eik = ((g.norm(dim=1) - 1) ** 2).mean()
    off = torch.exp(-40 * d[n:].abs()).mean()
    total = data + cfg.normal * align + cfg.eikonal * eik + 0.05 * off
    return total, {"data": data, "align": align, "eik": eik, "off": off}


def fit(cfg):
    torch.manual_seed(cfg.seed)
    np.random.seed(cfg.seed)
    pool = PointPool(*torus_scan(cfg.scan_points, cfg.seed), cfg)
    net = FourierSDF(cfg.width, cfg.depth)
    opt = torch.optim.Adam(net.parameters(), lr=cfg.lr)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.1 ** (1 / max(cfg.steps, 200)))
    for it in range(1, cfg.steps + 1):
        on, normals, space = pool.draw()
        total, parts = losses(net, on, normals, space, cfg)
        opt.zero_grad()
        total.backward()
        opt.step()
        sched.step()
        if it % 20 == 0 or it == 1:
            print(f"{it:5d} total {total.item():.4f} " + " ".join(f"{k} {v.item():.4f}" for k, v in parts.items()))
    return net


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in Config().__dict__.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(default), default=default)
    fit(Config(**vars(parser.parse_args())))
