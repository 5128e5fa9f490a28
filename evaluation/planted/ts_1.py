"""Sequence autoencoder whose latent paths are regularised by a Gaussian-process prior."""
import argparse

import torch
from torch import nn


class SmoothPrior(nn.Module):
    """0.5 * z^T K^-1 z for every latent channel, K an RBF kernel on the time grid."""

    def __init__(self, times, length=0.1, noise=1e-2, keep=False):
        super().__init__()
        self.register_buffer("times", times)
        self.length, self.noise = length, noise
        self.kept = self.precision() if keep else None

    def precision(self):
        gap = self.times[:, None] - self.times[None, :]
        k = torch.exp(-0.5 * (gap / self.length) ** 2)
        k = k + self.noise * torch.eye(len(self.times))
        return torch.cholesky_inverse(torch.linalg.cholesky(k))

    def forward(self, z):
        prec = self.precision() if self.kept is None else self.kept
        return 0.5 * (z * torch.matmul(prec, z)).sum((1, 2)).mean()


class PathAutoencoder(nn.Module):
    def __init__(self, n_obs, latent=8, width=128):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(n_obs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                                 nn.Linear(width, latent))
        self.dec = nn.Sequential(nn.Linear(latent, width), nn.Tanh(), nn.Linear(width, n_obs))

    def forward(self, x):
        z = self.enc(x)
        return self.dec(z), z


def ecg_like(n, steps, channels):
    t = torch.linspace(0, 1, steps)
    f = 2 + 6 * torch.rand(n, 1, channels)
    p = 6.28 * torch.rand(n, 1, channels)
    return torch.sin(6.28 * f * t[None, :, None] + p) + 0.05 * torch.randn(n, steps, channels)


class Experiment:
    def __init__(self, keep):
        torch.manual_seed(4)
        self.data = ecg_like(300, 448, 12)
        self.model = PathAutoencoder(12)
        self.prior = SmoothPrior(torch.linspace(0, 1, 448), keep=keep)
        self.opt = torch.optim.RMSprop(self.model.parameters(), lr=5e-4)

    def step(self):
        x = self.data[torch.randint(0, 300, (4,))]
        rec, z = self.model(x)
        fit = (rec - x).square().sum((1, 2)).mean()
        loss = fit + 0.01 * self.prior(z)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach(), fit.detach()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    exp = Experiment(keep=args.fixed)
    for i in range(1, args.steps + 1):
        loss, fit = exp.step()
        if i % 10 == 0:
            print(f"iteration {i}: loss {loss.item():.4f} fit {fit.item():.4f}")


if __name__ == "__main__":
    main()
