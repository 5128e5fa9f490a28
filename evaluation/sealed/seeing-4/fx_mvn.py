"""Joint density forecasts of currency returns: attention over the past, full-covariance Gaussian output."""
import argparse
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import MultivariateNormal


def simulate_returns(pairs, length, seed):
    """Factor model with stochastic volatility."""
    rng = np.random.default_rng(seed)
    load = rng.normal(0, 0.6, (pairs, 3))
    h = np.zeros(3)
    out = np.empty((length, pairs))
    for t in range(length):
        h = 0.97 * h + rng.normal(0, 0.2, 3)
        out[t] = load @ (np.exp(h / 2) * rng.normal(size=3)) + 0.4 * rng.standard_t(6, pairs)
    return torch.from_numpy(out / out.std(0)).float()


class ReturnWindows:
    def __init__(self, returns, window, batch, seed):
        self.returns, self.window, self.batch = returns, window, batch
        self.gen = torch.Generator().manual_seed(seed)

    def __iter__(self):
        return self

    def __next__(self):
        start = torch.randint(len(self.returns) - self.window - 1, (self.batch, 1), generator=self.gen)
        chunk = self.returns[start + torch.arange(self.window + 1)]
        return chunk[:, :-1], chunk[:, 1:]


class CausalBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class CholeskyHead(nn.Module):
    """Maps features to a mean and a lower-triangular factor with positive diagonal."""

    def __init__(self, dim, n):
        super().__init__()
        self.n = n
        self.mean = nn.Linear(dim, n)
        self.factor = nn.Linear(dim, n * (n + 1) // 2)
        rows, cols = torch.tril_indices(n, n)
        self.register_buffer("slot", rows * n + cols)
        self.register_buffer("diag", rows == cols)
        nn.init.normal_(self.factor.weight, 0, 0.01)

    def forward(self, h):
        raw = self.factor(h)
        raw = torch.where(self.diag, F.softplus(raw + 0.54) + 1e-2, raw)
        flat = raw.new_zeros(*raw.shape[:-1], self.n * self.n)
        flat = flat.index_copy(-1, self.slot, raw)
        return self.mean(h), flat.unflatten(-1, (self.n, self.n))


class FXModel(nn.Module):
    def __init__(self, pairs, dim=64, heads=4, depth=3, window=64):
        super().__init__()
        self.inp = nn.Linear(2 * pairs, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(window, dim))
        self.blocks = nn.ModuleList(CausalBlock(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = CholeskyHead(dim, pairs)

    def forward(self, r):
        x = self.inp(torch.cat([r, r.abs()], -1)) + self.pos[: r.shape[1]]
        for b in self.blocks:
            x = b(x)
        mean, factor = self.head(self.norm(x))
        cov = factor @ factor.transpose(-1, -2)
        return MultivariateNormal(mean, covariance_matrix=cov)


def warm_cosine(step, warm, total):
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))


def fit(args):
    torch.manual_seed(args.seed)
    returns = simulate_returns(args.pairs, 6000, args.seed)
    stream = ReturnWindows(returns, args.window, args.batch, args.seed)
    model = FXModel(args.pairs, window=args.window)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=0.05)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: warm_cosine(s, 10, args.steps))
    total = 0.0
    for step, (past, target) in zip(range(1, args.steps + 1), stream):
        dist = model(past)
        loss = -dist.log_prob(target).mean() / args.pairs
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        total += loss.item()
        if step % 10 == 0:
            print(f"step {step}: nll per pair {total / 10:.4f}")
            total = 0.0


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--pairs", type=int, default=10)
    p.add_argument("--window", type=int, default=64)
    p.add_argument("--batch", type=int, default=24)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=41)
    fit(p.parse_args())
