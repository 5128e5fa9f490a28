"""Conditional coupling flow for calorimeter-shower features (fast detector simulation)."""
import argparse
import math

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def shower_table(rows, seed):
    """Longitudinal/lateral shower moments driven by particle energy and angle."""
    rng = np.random.default_rng(seed)
    energy = rng.uniform(1.0, 100.0, rows)
    angle = rng.uniform(0.0, 1.2, rows)
    depth = np.linspace(0.2, 3.0, 24)[None]
    peak = (0.6 + 0.25 * np.log(energy) + 0.15 * rng.normal(size=rows))[:, None]
    width = (0.5 + 0.1 * rng.gamma(3.0, 1.0, rows))[:, None]
    profile = energy[:, None] * np.exp(-((depth / np.cos(angle)[:, None] - peak) / width) ** 2)
    profile *= rng.gamma(30.0, 1 / 30.0, profile.shape)
    lateral = np.stack([rng.normal(np.tan(angle), 0.1), rng.gamma(2.0, 0.2, rows) + 0.02 * energy,
                        rng.normal(0, 0.1 + angle), rng.beta(2, 5, rows)], axis=1)
    feats = np.concatenate([np.log(profile + 1e-2), lateral,
                            np.log(profile.sum(1, keepdims=True) + 1e-2),
                            rng.normal(size=(rows, 3)) * angle[:, None]], axis=1)
    feats = (feats - feats.mean(0)) / feats.std(0)
    cond = np.stack([np.log(energy), angle], axis=1)
    cond = (cond - cond.mean(0)) / cond.std(0)
    return torch.tensor(feats, dtype=torch.float32), torch.tensor(cond, dtype=torch.float32)


class ActNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(dim))
        self.shift = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        return (x + self.shift) * self.log_scale.exp(), self.log_scale.sum()

    def inverse(self, z):
        return z * (-self.log_scale).exp() - self.shift


class LULinear(nn.Module):
    """Invertible mixing W = L U P with a fixed permutation P."""

    def __init__(self, dim):
        super().__init__()
        self.register_buffer("perm", torch.randperm(dim))
        self.register_buffer("inv_perm", torch.argsort(self.perm))
        self.lower = nn.Parameter(1e-2 * torch.randn(dim, dim))
        self.upper = nn.Parameter(1e-2 * torch.randn(dim, dim))
        self.log_diag = nn.Parameter(torch.zeros(dim))
        self.register_buffer("eye", torch.eye(dim))

    def factors(self):
        return (torch.tril(self.lower, -1) + self.eye,
                torch.triu(self.upper, 1) + torch.diag(self.log_diag.exp()))

    def forward(self, x):
        low, up = self.factors()
        weight = (low @ up).index_select(1, self.inv_perm)
        return x @ weight.T, self.log_diag.sum()

    def inverse(self, z):
        low, up = self.factors()
        y = torch.linalg.solve_triangular(low, z.T, upper=False, unitriangular=True)
        y = torch.linalg.solve_triangular(up, y, upper=True).T
        return y[:, self.inv_perm]


class Conditioner(nn.Module):
    def __init__(self, d_in, d_out, hidden):
        super().__init__()
        self.inp = nn.Linear(d_in, hidden)
        self.mid = nn.ModuleList([nn.Linear(hidden, hidden) for _ in range(2)])
        self.out = nn.Linear(hidden, d_out)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x):
        h = torch.relu(self.inp(x))
        for layer in self.mid:
            h = h + torch.relu(layer(h))
        return self.out(h)


class AffineCoupling(nn.Module):
    def __init__(self, dim, cond, hidden):
        super().__init__()
        self.keep = dim // 2
        self.net = Conditioner(self.keep + cond, 2 * (dim - self.keep), hidden)

    def params(self, a, c):
        s, t = self.net(torch.cat([a, c], dim=1)).chunk(2, dim=1)
        return 1.5 * torch.tanh(s / 1.5), t

    def forward(self, x, c):
        a, b = x[:, :self.keep], x[:, self.keep:]
        s, t = self.params(a, c)
        return torch.cat([a, b * s.exp() + t], dim=1), s.sum(1)

    def inverse(self, z, c):
        a, b = z[:, :self.keep], z[:, self.keep:]
        s, t = self.params(a, c)
        return torch.cat([a, (b - t) * (-s).exp()], dim=1)


class Flow(nn.Module):
    def __init__(self, dim, cond, hidden, depth):
        super().__init__()
        self.dim = dim
        self.norms = nn.ModuleList([ActNorm(dim) for _ in range(depth)])
        self.mixes = nn.ModuleList([LULinear(dim) for _ in range(depth)])
        self.couplings = nn.ModuleList([AffineCoupling(dim, cond, hidden) for _ in range(depth)])

    def log_prob(self, x, c):
        logdet = x.new_zeros(len(x))
        for norm, mix, coupling in zip(self.norms, self.mixes, self.couplings):
            x, a = norm(x)
            x, b = mix(x)
            x, s = coupling(x, c)
            logdet = logdet + a + b + s
        return logdet - 0.5 * x.square().sum(1) - 0.5 * self.dim * math.log(2 * math.pi)

    @torch.no_grad()
    def sample(self, c):
        z = torch.randn(len(c), self.dim)
        for norm, mix, coupling in reversed(list(zip(self.norms, self.mixes, self.couplings))):
            z = norm.inverse(mix.inverse(coupling.inverse(z, c)))
        return z


def main(args):
    torch.manual_seed(args.seed)
    feats, cond = shower_table(args.rows, args.seed)
    n_val = args.rows // 10
    loader = DataLoader(TensorDataset(feats[n_val:], cond[n_val:]), batch_size=None,
                        sampler=torch.utils.data.BatchSampler(
                            torch.utils.data.RandomSampler(range(args.rows - n_val)), args.batch, True))
    flow = Flow(feats.shape[1], cond.shape[1], args.hidden, args.depth)
    opt = torch.optim.AdamW(flow.parameters(), lr=args.lr, weight_decay=1e-5, fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=max(args.steps, 500))

    step = 0
    while step < args.steps:
        for x, c in loader:
            nll = -flow.log_prob(x + 0.01 * torch.randn_like(x), c).mean()
            opt.zero_grad()
            nll.backward()
            norm = nn.utils.clip_grad_norm_(flow.parameters(), 10.0)
            opt.step()
            sched.step()
            step += 1
            if step % args.log_every == 0:
                print(f"step {step} nll {nll.item():.4f} grad {norm.item():.3f}")
            if step % args.eval_every == 0:
                with torch.no_grad():
                    val = -flow.log_prob(feats[:n_val], cond[:n_val]).mean().item()
                gap = (flow.sample(cond[:n_val]).mean(0) - feats[:n_val].mean(0)).abs().max().item()
                print(f"  val nll {val:.4f} worst mean gap {gap:.3f}")
            if step == args.steps:
                break


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--rows", type=int, default=12000)
    p.add_argument("--batch", type=int, default=1024)
    p.add_argument("--hidden", type=int, default=192)
    p.add_argument("--depth", type=int, default=8)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=12)
    p.add_argument("--log-every", type=int, default=10)
    p.add_argument("--eval-every", type=int, default=200)
    main(p.parse_args())
