"""Patch-based channel-independent forecaster for multivariate load curves."""
import argparse
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Settings:
    channels: int = 21
    context: int = 96
    horizon: int = 24
    patch: int = 12
    dim: int = 32
    batch: int = 40
    lr: float = 1e-3


class PatchEncoder(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        n = s.context // s.patch
        self.embed = nn.Linear(s.patch, s.dim)
        self.pos = nn.Parameter(torch.zeros(n, s.dim))
        self.norm = nn.LayerNorm(s.dim)
        self.qkv = nn.Linear(s.dim, 3 * s.dim)
        self.ff = nn.Sequential(nn.Linear(s.dim, 2 * s.dim), nn.GELU(), nn.Linear(2 * s.dim, s.dim))
        self.head = nn.Linear(n * s.dim, s.horizon)

    def forward(self, series):
        h = self.embed(series.unflatten(-1, (-1, self.s.patch))) + self.pos
        q, k, v = self.qkv(self.norm(h)).chunk(3, -1)
        h = h + F.scaled_dot_product_attention(q, k, v)
        h = h + self.ff(h)
        return self.head(h.flatten(-2))


class ChannelIndependent(nn.Module):
    def __init__(self, s, folded):
        super().__init__()
        self.encoder = PatchEncoder(s)
        self.folded = folded

    def forward(self, x):
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True) + 1e-4
        z = (x - mean) / std
        if self.folded:
            out = self.encoder(z.flatten(0, 1)).view(*x.shape[:2], -1)
        else:
            out = torch.stack([self.encoder(z[:, c]) for c in range(x.shape[1])], 1)
        return out * std + mean


def load_curves(s, n=1500):
    t = torch.arange(n).float()
    period = 12 + 30 * torch.rand(s.channels, 1)
    return torch.sin(6.283 * t / period) + 0.2 * torch.randn(s.channels, n)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    s = Settings()
    torch.manual_seed(61)
    curves = load_curves(s)
    windows = curves.unfold(1, s.context + s.horizon, 1)
    model = ChannelIndependent(s, args.fixed)
    opt = torch.optim.Adam(model.parameters(), lr=s.lr)
    for step in range(args.steps):
        starts = torch.randint(0, windows.shape[1], (s.batch,))
        w = windows[:, starts].transpose(0, 1)
        loss = F.mse_loss(model(w[..., :s.context]), w[..., s.context:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if (step + 1) % 5 == 0:
            print(f"{step + 1:3d} mse={loss.item():.5f}")


if __name__ == "__main__":
    main()
