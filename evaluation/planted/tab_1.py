"""Churn prediction on tabular data with a small residual MLP."""
import argparse

import torch
from torch import nn


class ResidualMLP(nn.Module):
    def __init__(self, n_in, width=128, depth=3):
        super().__init__()
        self.inp = nn.Linear(n_in, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(depth)
        )
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h = self.inp(x)
        for b in self.blocks:
            h = h + b(h)
        return self.out(h).squeeze(-1)


class RunningMetrics:
    """Ranking quality and calibration of the latest batches."""

    def __init__(self, bins=10):
        self.bins = bins
        self.auc = 0.5
        self.table = torch.zeros(bins, 2)

    @torch.no_grad()
    def update(self, logits, target):
        pos, neg = logits[target == 1], logits[target == 0]
        wins = (pos[:, None] > neg[None, :]).float()
        ties = (pos[:, None] == neg[None, :]).float()
        auc = (wins + 0.5 * ties).mean()
        self.auc = 0.9 * self.auc + 0.1 * auc
        prob = logits.sigmoid()
        edges = (prob * self.bins).long().clamp(max=self.bins - 1)
        self.table.index_add_(0, edges, torch.stack([prob, target], 1))


class ChurnTrainer:
    def __init__(self, features, labels, track):
        self.x, self.y = features, labels
        self.net = ResidualMLP(features.shape[1])
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, 10, 0.5)
        self.metrics = RunningMetrics()
        self.track = track

    def fit(self, steps, batch=2048):
        for it in range(steps):
            rows = torch.randint(0, len(self.x), (batch,))
            xb, yb = self.x[rows], self.y[rows]
            logits = self.net(xb)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, yb)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.sched.step()
            if self.track:
                self.metrics.update(logits, yb)
            if it % 5 == 4:
                print(f"iter {it + 1}: bce {loss.item():.5f} lr {self.sched.get_last_lr()[0]:.5f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--fixed", action="store_true")
    opts = parser.parse_args()
    torch.manual_seed(17)
    x = torch.randn(8000, 36)
    y = ((x[:, 0] * x[:, 1] + x[:, 2]) > 0).float()
    ChurnTrainer(x, y, track=not opts.fixed).fit(opts.steps)


if __name__ == "__main__":
    main()
