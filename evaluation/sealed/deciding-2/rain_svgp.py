"""Rainfall surface: stochastic variational Gaussian process with learned inducing sites and a
small feature warp."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def gauge_network(n, seed):
    g = torch.Generator().manual_seed(seed)
    xy = torch.rand(n, 2, generator=g) * 4 - 2
    height = torch.sin(2 * xy[:, 0]) * torch.cos(1.5 * xy[:, 1])
    aspect = torch.stack([torch.cos(3 * xy[:, 0]), torch.sin(2 * xy[:, 1])], 1)
    x = torch.cat([xy, height[:, None], aspect], 1)
    f = torch.sin(3 * xy[:, 0] + xy[:, 1]) + 0.5 * height + 0.3 * torch.cos(5 * xy[:, 1])
    return x, f + 0.2 * torch.randn(n, generator=g)


class MaternKernel(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.raw_len = nn.Parameter(torch.full((dim,), 0.5))
        self.raw_amp = nn.Parameter(torch.tensor(0.5))

    @property
    def amplitude(self):
        return F.softplus(self.raw_amp)

    def forward(self, a, b):
        length = F.softplus(self.raw_len)
        a, b = a / length, b / length
        sq = (a.square().sum(1, keepdim=True) + b.square().sum(1) - 2 * a @ b.t()).clamp(min=1e-10)
        d = sq.sqrt() * math.sqrt(3.0)
        return self.amplitude * (1 + d) * torch.exp(-d)


class Warp(nn.Module):
    def __init__(self, dim, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, width), nn.Tanh(), nn.Linear(width, dim))

    def forward(self, x):
        return x + 0.1 * self.net(x)


class SparseGP(nn.Module):
    def __init__(self, sites, total):
        super().__init__()
        m, dim = sites.shape
        self.warp, self.kernel = Warp(dim), MaternKernel(dim)
        self.sites = nn.Parameter(sites.clone())
        self.mean = nn.Parameter(torch.zeros(m))
        self.chol = nn.Parameter(0.3 * torch.eye(m))
        self.const = nn.Parameter(torch.zeros(()))
        self.log_noise = nn.Parameter(torch.tensor(-1.0))
        self.total = total
        self.register_buffer("jitter", 1e-3 * torch.eye(m))

    def predictive(self, x):
        kzz = self.kernel(self.sites, self.sites) + self.jitter
        lz = torch.linalg.cholesky(kzz)
        a = torch.linalg.solve_triangular(lz, self.kernel(self.sites, self.warp(x)), upper=False)
        s = self.chol.tril()
        mu = self.const + a.t() @ self.mean
        var = self.kernel.amplitude - a.square().sum(0) + (s.t() @ a).square().sum(0)
        return mu, var.clamp(min=1e-6), s

    def forward(self, x, y):
        mu, var, s = self.predictive(x)
        noise = self.log_noise.exp()
        fit = -0.5 * (math.log(2 * math.pi) + self.log_noise + ((y - mu).square() + var) / noise)
        kl = 0.5 * (s.square().sum() + self.mean.square().sum() - len(self.mean)) \
            - s.diagonal().abs().clamp(min=1e-8).log().sum()
        return -(fit.mean() - kl / self.total)


def natural_order(n, size, gen):
    while True:
        yield from torch.randperm(n, generator=gen)[: n - n % size].view(-1, size)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--gauges", type=int, default=20000)
    ap.add_argument("--sites", type=int, default=256)
    ap.add_argument("--batch", type=int, default=2048)
    args = ap.parse_args()
    torch.manual_seed(130)
    x, y = gauge_network(args.gauges, 130)
    n_train = args.gauges - 1000
    gp = SparseGP(x[torch.randperm(n_train)[: args.sites]], n_train)
    opt = torch.optim.Adam(gp.parameters(), lr=1e-2, fused=True)
    sched = torch.optim.lr_scheduler.StepLR(opt, 40, 0.5)
    for step, rows in zip(range(1, args.steps + 1),
                          natural_order(n_train, args.batch, torch.Generator().manual_seed(131))):
        loss = gp(x[rows], y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"step {step:4d} -elbo {loss.item():.5f} noise {gp.log_noise.exp().item():.4f}")
    with torch.no_grad():
        mu, _, _ = gp.predictive(x[n_train:])
    print(f"held-out rmse {(mu - y[n_train:]).square().mean().sqrt().item():.4f}")


if __name__ == "__main__":
    main()
