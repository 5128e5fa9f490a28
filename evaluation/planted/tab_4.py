"""Demand forecasting MLP with stochastic weight averaging."""
import argparse

import torch
from torch import nn


class DemandNet(nn.Module):
    def __init__(self, n_in, width=256):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_in, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)


class SnapshotAverage:
    def __init__(self):
        self.snapshots = []
        self.mean = None

    def collect(self, model):
        self.snapshots.append([p.detach().clone() for p in model.parameters()])
        self.mean = [torch.stack(group).mean(0) for group in zip(*self.snapshots)]


class RunningAverage:
    def __init__(self):
        self.n, self.mean = 0, None

    @torch.no_grad()
    def collect(self, model):
        self.n += 1
        if self.mean is None:
            self.mean = [p.detach().clone() for p in model.parameters()]
        for m, p in zip(self.mean, model.parameters()):
            m.lerp_(p, 1 / self.n)


def apply_average(model, averager):
    twin = DemandNet(model.net[0].in_features)
    with torch.no_grad():
        for p, m in zip(twin.parameters(), averager.mean):
            p.copy_(m)
    return twin


def simulate(n):
    x = torch.rand(n, 20)
    season = torch.sin(6.283 * x[:, 0]) + 0.5 * torch.cos(12.566 * x[:, 1])
    return x, 3 + season * x[:, 2] + 0.1 * torch.randn(n)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--lr", type=float, default=0.05)
    args = ap.parse_args()
    torch.manual_seed(163)
    x, y = simulate(6000)
    model = DemandNet(20)
    averager = RunningAverage() if args.fixed else SnapshotAverage()
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for step in range(args.steps):
        rows = torch.randint(0, 5500, (512,))
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        averager.collect(model)
        if step % 10 == 9:
            twin = apply_average(model, averager)
            with torch.no_grad():
                val = nn.functional.mse_loss(twin(x[5500:]), y[5500:])
            print(f"step {step + 1} mse {loss.item():.5f} averaged {val.item():.5f}")


if __name__ == "__main__":
    main()
