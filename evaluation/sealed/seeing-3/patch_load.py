"""Electric load forecasting with a patched transformer encoder (channel independent)."""
import argparse
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def hourly_load(n_meters, hours, seed):
    rng = np.random.default_rng(seed)
    t = np.arange(hours)
    daily = np.sin(2 * np.pi * (t[None] / 24 + rng.random((n_meters, 1))))
    weekly = np.where((t[None] // 24) % 7 < 5, 1.0, rng.uniform(0.5, 0.9, (n_meters, 1)))
    drift = np.cumsum(rng.normal(0, 0.01, (n_meters, hours)), 1)
    return ((2 + daily) * weekly + drift + rng.normal(0, 0.15, (n_meters, hours))).astype(np.float32)


class LoadWindows:
    def __init__(self, series, context, horizon, seed):
        self.series = torch.from_numpy(series)
        self.context, self.horizon = context, horizon
        self.gen = torch.Generator().manual_seed(seed)
        self.offsets = torch.arange(context + horizon)

    def sample(self, batch, lo, hi):
        m = torch.randint(len(self.series), (batch, 1), generator=self.gen)
        s = torch.randint(lo, hi - self.context - self.horizon, (batch, 1), generator=self.gen)
        w = self.series[m, s + self.offsets]
        return w[:, :self.context], w[:, self.context:]


class Block(nn.Module):
    def __init__(self, d, heads, drop):
        super().__init__()
        self.heads, self.drop = heads, drop
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class PatchForecaster(nn.Module):
    def __init__(self, context, horizon, patch=16, d=96, heads=4, depth=3, drop=0.0):
        super().__init__()
        self.patch = patch
        n = context // patch
        self.embed = nn.Linear(patch, d)
        self.pos = nn.Parameter(0.02 * torch.randn(n, d))
        self.blocks = nn.ModuleList([Block(d, heads, drop) for _ in range(depth)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(n * d, horizon)

    def forward(self, x):
        mu, sd = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-5
        h = self.embed(((x - mu) / sd).unflatten(1, (-1, self.patch))) + self.pos
        for blk in self.blocks:
            h = blk(h)
        return self.head(self.norm(h).flatten(1)) * sd + mu


def pinball(pred, y, q=0.5):
    d = y - pred
    return torch.maximum(q * d, (q - 1) * d).mean()


@torch.no_grad()
def evaluate(net, data, lo, hi, batch):
    net.eval()
    x, y = data.sample(batch, lo, hi)
    pred = net(x)
    net.train()
    naive = x[:, -24:].repeat(1, y.shape[1] // 24)
    return (pred - y).abs().mean().item(), (naive - y).abs().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--context", type=int, default=512)
    ap.add_argument("--horizon", type=int, default=96)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--eval-every", type=int, default=50)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    series = hourly_load(60, 24 * 300, args.seed)
    cut = int(0.85 * series.shape[1])
    data = LoadWindows(series, args.context, args.horizon, args.seed)
    net = PatchForecaster(args.context, args.horizon)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=0.02, fused=True)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1, (s + 1) / 10) * 0.5 * (1 + math.cos(math.pi * min(1, s / args.steps))))
    for step in range(1, args.steps + 1):
        x, y = data.sample(args.batch, 0, cut)
        loss = pinball(net(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"step {step} pinball {loss.item():.4f}")
        if step % args.eval_every == 0:
            mae, naive = evaluate(net, data, cut, series.shape[1], 64)
            print(f"step {step} val MAE {mae:.4f} (seasonal naive {naive:.4f})")


if __name__ == "__main__":
    main()
