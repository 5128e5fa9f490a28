"""Traffic sensor forecasting: graph smoothing + temporal MLP."""
import argparse

import torch
from torch import nn


class GraphSmoother(nn.Module):
    def __init__(self, places, c_in, c_out, precomputed=False):
        super().__init__()
        self.register_buffer("places", places)
        self.theta = nn.Linear(2 * c_in, c_out)
        self.cached = self.operator() if precomputed else None

    def operator(self):
        gap = torch.cdist(self.places, self.places)
        adj = torch.exp(-gap.square() / gap.std() ** 2)
        inv = adj.sum(1).clamp(min=1e-6).pow(-0.5)
        return inv[:, None] * adj * inv[None, :]

    def forward(self, x):
        a = self.operator() if self.cached is None else self.cached
        return torch.relu(self.theta(torch.cat([x, a @ x], -1)))


class Forecaster(nn.Module):
    def __init__(self, places, history, horizon, pre):
        super().__init__()
        self.g1 = GraphSmoother(places, history, 48, pre)
        self.g2 = GraphSmoother(places, 48, 48, pre)
        self.read = nn.Linear(48, horizon)

    def forward(self, x):
        return self.read(self.g2(self.g1(x)))


class SensorData:
    def __init__(self, n, length, history, horizon):
        t = torch.arange(length).float()
        phase = torch.rand(n, 1) * 6.28
        self.series = torch.sin(t / 24 + phase) + 0.1 * torch.randn(n, length)
        self.history, self.horizon = history, horizon

    def batch(self, size):
        starts = torch.randint(0, self.series.shape[1] - self.history - self.horizon, (size,)).tolist()
        xs = torch.stack([self.series[:, s:s + self.history] for s in starts])
        ys = torch.stack([self.series[:, s + self.history:s + self.history + self.horizon] for s in starts])
        return xs, ys


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(12)
    n = 480
    places = torch.rand(n, 2)
    data = SensorData(n, 600, 12, 6)
    model = Forecaster(places, 12, 6, args.fixed)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    ema = None
    for step in range(args.steps):
        x, y = data.batch(6)
        loss = torch.nn.functional.l1_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema = loss.detach() if ema is None else 0.9 * ema + 0.1 * loss.detach()
        if (step + 1) % 5 == 0:
            print(f"step {step + 1} mae {loss.item():.5f} smooth {ema.item():.5f}")


if __name__ == "__main__":
    main()
