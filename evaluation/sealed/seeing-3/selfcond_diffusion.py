"""Analog-bits diffusion on small binary glyph images with self-conditioning."""
import argparse
import copy
import math
import random

import torch
from torch import nn
from torch.nn import functional as F


def glyphs(n, size, seed):
    """Random strokes on a binary canvas."""
    g = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    out = torch.zeros(n, 1, size, size, dtype=torch.bool)
    for i in range(n):
        for _ in range(3):
            a, b = torch.rand(2, 2, generator=g) * (size - 6) + 3
            d = b - a
            t = (((y - a[0]) * d[0] + (x - a[1]) * d[1]) / (d @ d + 1e-6)).clamp(0, 1)
            out[i, 0] |= (y - a[0] - t * d[0]) ** 2 + (x - a[1] - t * d[1]) ** 2 < 2.5
    return out


class TimeEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("freq", torch.exp(torch.linspace(0, math.log(1000), dim // 2)))
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, t):
        z = t[:, None] * self.freq
        return self.mlp(torch.cat([z.sin(), z.cos()], 1))


class ResBlock(nn.Module):
    def __init__(self, i, o, dim):
        super().__init__()
        self.n1, self.n2 = nn.GroupNorm(4, i), nn.GroupNorm(4, o)
        self.c1, self.c2 = nn.Conv2d(i, o, 3, padding=1), nn.Conv2d(o, o, 3, padding=1)
        self.emb = nn.Linear(dim, 2 * o)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, e):
        h = self.c1(F.silu(self.n1(x)))
        scale, shift = self.emb(e)[:, :, None, None].chunk(2, 1)
        h = self.c2(F.silu(self.n2(h) * (1 + scale) + shift))
        return h + self.skip(x)


class Denoiser(nn.Module):
    def __init__(self, w=20, dim=64):
        super().__init__()
        self.time = TimeEmbedding(dim)
        self.inp = nn.Conv2d(2, w, 3, padding=1)
        self.d1, self.d2 = ResBlock(w, w, dim), ResBlock(w, 2 * w, dim)
        self.mid = ResBlock(2 * w, 2 * w, dim)
        self.u2, self.u1 = ResBlock(4 * w, w, dim), ResBlock(2 * w, w, dim)
        self.out = nn.Conv2d(w, 1, 3, padding=1)

    def forward(self, x, cond, t):
        e = F.silu(self.time(t))
        a = self.d1(self.inp(torch.cat([x, cond], 1)), e)
        b = self.d2(F.avg_pool2d(a, 2), e)
        m = self.mid(F.avg_pool2d(b, 2), e)
        b = self.u2(torch.cat([F.interpolate(m, scale_factor=2.0), b], 1), e)
        return self.out(self.u1(torch.cat([F.interpolate(b, scale_factor=2.0), a], 1), e))


class BitDiffusion:
    def __init__(self, net, self_cond_prob=0.2, seed=0):
        self.net, self.prob = net, self_cond_prob
        self.coin = random.Random(seed)

    @staticmethod
    def gamma(t):
        return torch.cos(t * math.pi / 2).square().clamp(1e-4, 0.9999)

    def loss(self, bits):
        x0 = bits.float() * 2 - 1
        t = torch.rand(len(x0))
        g = self.gamma(t)[:, None, None, None]
        xt = g.sqrt() * x0 + (1 - g).sqrt() * torch.randn_like(x0)
        cond = torch.zeros_like(x0)
        with torch.no_grad():
            estimate = self.net(xt, cond, t).clamp(-1, 1)
        if self.coin.random() < self.prob:
            cond = estimate
        return F.mse_loss(self.net(xt, cond, t), x0)

    @torch.no_grad()
    def sample(self, net, shape, n):
        x, pred = torch.randn(shape), torch.zeros(shape)
        times = torch.linspace(1, 0, n + 1)
        for now, nxt in zip(times[:-1], times[1:]):
            g0, g1 = self.gamma(now), self.gamma(nxt)
            pred = net(x, pred, now.expand(shape[0])).clamp(-1, 1)
            eps = (x - g0.sqrt() * pred) / (1 - g0).sqrt()
            x = g1.sqrt() * pred + (1 - g1).sqrt() * eps
        return pred > 0


@torch.no_grad()
def ema_update(avg, net, decay):
    for a, p in zip(avg.parameters(), net.parameters()):
        a.lerp_(p, 1 - decay)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=12)
    ap.add_argument("--size", type=int, default=32)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--sample-every", type=int, default=50)
    ap.add_argument("--sample-steps", type=int, default=8)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    data = glyphs(400, args.size, args.seed)
    net = Denoiser()
    avg = copy.deepcopy(net).requires_grad_(False)
    diffusion = BitDiffusion(net, seed=args.seed)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=0.01)
    for step in range(1, args.steps + 1):
        loss = diffusion.loss(data[torch.randint(len(data), (args.batch,))])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        ema_update(avg, net, min(0.999, (1 + step) / (10 + step)))
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")
        if step % args.sample_every == 0:
            s = diffusion.sample(avg, (8, 1, args.size, args.size), args.sample_steps)
            print(f"step {step} ink {s.float().mean().item():.3f} (data {data.float().mean().item():.3f})")


if __name__ == "__main__":
    main()
