"""Semi-supervised training: consistency with the average of earlier predictions."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class WideNet(nn.Module):
    def __init__(self, n_in=48, width=128, n_class=24):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(n_in, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.out = nn.Linear(width, n_class)

    def forward(self, x):
        return self.out(self.f(x))


class TemporalEnsemble:
    """Mean of the predictions of all previous steps for the pool."""

    def __init__(self, running):
        self.running = running
        self.history, self.total, self.count = [], None, 0

    def add(self, probs):
        self.count += 1
        if self.running:
            p = probs.detach()
            self.total = p.clone() if self.total is None else self.total.add_(p)
        else:
            self.history.append(probs)

    def target(self):
        if self.running:
            return self.total / self.count
        return torch.stack(self.history).mean(0).detach()


def consistency_weight(step, ramp=10):
    frac = min(1.0, step / ramp)
    return 2.0 * frac * frac


class SemiTask:
    def __init__(self, labelled=200, pool=1500):
        centers = torch.randn(24, 48)
        self.y = torch.randint(0, 24, (labelled,))
        self.x = centers[self.y] + 0.8 * torch.randn(labelled, 48)
        py = torch.randint(0, 24, (pool,))
        self.pool = centers[py] + 0.8 * torch.randn(pool, 48)

    def noisy_pool(self):
        return self.pool + 0.2 * torch.randn_like(self.pool)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(173)
    task, net = SemiTask(), WideNet()
    ensemble = TemporalEnsemble(running=args.fixed)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3, fused=True)
    for step in range(args.steps):
        sup = F.cross_entropy(net(task.x), task.y)
        probs = net(task.noisy_pool()).softmax(-1)
        loss = sup
        if step > 0:
            loss = sup + consistency_weight(step) * (probs - ensemble.target()).square().sum(1).mean()
        ensemble.add(probs)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 4:
            print(f"step {step + 1} supervised {sup.item():.5f} total {loss.item():.5f}")


if __name__ == "__main__":
    main()
