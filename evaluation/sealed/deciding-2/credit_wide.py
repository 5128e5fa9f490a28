"""Default risk on a wide bureau table: residual MLP, mini-batches drawn from one DataFrame."""
import argparse

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F


def load_bureau(rows, cols, seed):
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((rows, 12), dtype=np.float32)
    data = {}
    for c in range(cols):
        mix = rng.standard_normal(12).astype(np.float32) / 3.5
        data[f"b{c:03d}"] = base @ mix + rng.standard_normal(rows, dtype=np.float32)
    frame = pd.DataFrame(data)
    risk = base[:, 0] - 0.5 * base[:, 1] * base[:, 2] + 0.3 * base[:, 3]
    frame["default_12m"] = (risk + rng.standard_normal(rows, dtype=np.float32) > 1.0).astype(np.float32)
    return frame


class BureauTable:
    def __init__(self, frame, target):
        features = frame.drop(columns=[target])
        self.columns = list(features.columns)
        values = features.to_numpy(dtype=np.float32, copy=True)
        self.mean = torch.from_numpy(values[:20000].mean(0))
        self.std = torch.from_numpy(values[:20000].std(0)).clamp(min=1e-3)
        self.x = torch.from_numpy(values)
        self.y = torch.from_numpy(frame[target].to_numpy(copy=True))

    def __len__(self):
        return self.x.shape[0]

    def fetch(self, rows):
        return (self.x[rows] - self.mean) / self.std, self.y[rows]


class ResidualUnit(nn.Module):
    def __init__(self, width, drop):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)
        self.drop = drop

    def forward(self, x):
        h = F.relu(self.a(self.norm(x)))
        return x + self.b(F.dropout(h, self.drop, self.training))


class TabularResNet(nn.Module):
    def __init__(self, n_in, width=96, depth=2):
        super().__init__()
        self.stem = nn.Linear(n_in, width)
        self.units = nn.ModuleList(ResidualUnit(width, 0.1) for _ in range(depth))
        self.out = nn.Sequential(nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        h = self.stem(x)
        for unit in self.units:
            h = unit(h)
        return self.out(h).squeeze(1)


def auc(score, y):
    order = score.argsort()
    ranks = torch.empty_like(order, dtype=torch.float64)
    ranks[order] = torch.arange(1, len(score) + 1, dtype=torch.float64)
    pos = y > 0.5
    n1, n0 = pos.sum().item(), (~pos).sum().item()
    return ((ranks[pos].sum() - n1 * (n1 + 1) / 2) / max(1, n1 * n0)).item()


def epochs(n, batch, gen):
    while True:
        perm = torch.randperm(n, generator=gen)
        yield from (c for c in perm.split(batch) if len(c) == batch)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--rows", type=int, default=80000)
    ap.add_argument("--cols", type=int, default=240)
    ap.add_argument("--batch", type=int, default=4096)
    ap.add_argument("--valid", type=int, default=4000)
    args = ap.parse_args()
    torch.manual_seed(31)
    table = BureauTable(load_bureau(args.rows, args.cols, 31), "default_12m")
    gen = torch.Generator().manual_seed(32)
    n_train = len(table) - args.valid
    valid_rows = torch.arange(n_train, len(table))
    net = TabularResNet(len(table.columns))
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-3, fused=True)
    rows_iter = epochs(n_train, args.batch, gen)
    for step in range(1, args.steps + 1):
        x, y = table.fetch(next(rows_iter))
        loss = F.binary_cross_entropy_with_logits(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            net.eval()
            with torch.no_grad():
                vx, vy = table.fetch(valid_rows)
                score = net(vx)
            net.train()
            print(f"step {step:4d} bce {loss.item():.5f} valid auc {auc(score, vy):.4f}")


if __name__ == "__main__":
    main()
