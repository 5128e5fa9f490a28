"""Supervised contrastive pre-training on tabular sensor windows."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


def supcon_rowwise(z, y, temp):
    sim = z @ z.t() / temp
    total = z.new_zeros(())
    for i in range(len(z)):
        keep = torch.arange(len(z)) != i
        logp = sim[i] - torch.logsumexp(sim[i][keep], 0)
        pos = keep & (y == y[i])
        total = total - logp[pos].mean()
    return total / len(z)


def supcon_matrix(z, y, temp):
    eye = torch.eye(len(z), dtype=torch.bool)
    sim = z @ z.t() / temp
    logp = sim - torch.logsumexp(sim.masked_fill(eye, float("-inf")), 1, keepdim=True)
    pos = (y[:, None] == y[None, :]) & ~eye
    return -((logp * pos).sum(1) / pos.sum(1)).mean()


class WindowEncoder(nn.Module):
    def __init__(self, channels=9, width=96, out=64):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(channels, width, 7, 2, 3), nn.GELU(),
            nn.Conv1d(width, width, 5, 2, 2), nn.GELU(),
            nn.Conv1d(width, width, 5, 2, 2), nn.GELU(),
        )
        self.proj = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out))

    def forward(self, x):
        return F.normalize(self.proj(self.conv(x).mean(-1)), dim=-1)


class ActivityWindows:
    def __init__(self, n_act=6, n=600):
        self.y = torch.arange(n) % n_act
        base = torch.randn(n_act, 9, 128)
        self.x = base[self.y] + torch.randn(n, 9, 128)

    def balanced(self, per_class):
        perm = torch.randperm(len(self.y) // 6)[:per_class]
        rows = (perm[:, None] * 6 + torch.arange(6)).flatten()
        jitter = 1 + 0.1 * torch.randn(len(rows), 9, 1)
        return self.x[rows] * jitter, self.y[rows]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--temp", type=float, default=0.2)
    args = parser.parse_args()
    torch.manual_seed(19)
    data, enc = ActivityWindows(), WindowEncoder()
    opt = torch.optim.Adam(enc.parameters(), lr=1e-3)
    criterion = supcon_matrix if args.fixed else supcon_rowwise
    for step in range(args.steps):
        x, y = data.balanced(12)
        loss = criterion(enc(x), y, args.temp)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0:
            print(f"step {step} supcon {loss.item():.5f}")


if __name__ == "__main__":
    main()
