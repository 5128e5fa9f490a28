"""Momentum contrast on sensor windows with a fixed-size ring of keys."""
import argparse
import copy

import torch
from torch import nn
import torch.nn.functional as F


class SensorEncoder(nn.Module):
    def __init__(self, channels=6, ch=48, dim=48):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(channels, ch, 7, 2, 3), nn.ReLU(), nn.Conv1d(ch, ch, 5, 2, 2), nn.ReLU(),
            nn.Conv1d(ch, ch, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(ch, dim),
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


class RingQueue:
    def __init__(self, size, dim):
        self.keys = F.normalize(torch.randn(size, dim), dim=1)
        self.at = 0

    def push(self, k):
        self.keys[self.at:self.at + len(k)] = k
        self.at = (self.at + len(k)) % len(self.keys)


class Contrast:
    def __init__(self, temp=0.1, momentum=0.99):
        self.q = SensorEncoder()
        self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.queue = RingQueue(1024, 48)
        self.temp, self.momentum = temp, momentum
        self.zeros = torch.zeros(64, dtype=torch.long)
        self.pairs = list(self.k.parameters()), list(self.q.parameters())

    def loss(self, a, b):
        q = self.q(a)
        with torch.no_grad():
            k = self.k(b)
        pos = (q * k).sum(1, keepdim=True)
        loss = F.cross_entropy(torch.cat([pos, q @ self.queue.keys.t()], 1) / self.temp, self.zeros)
        return loss, k

    @torch.no_grad()
    def after_step(self, k):
        torch._foreach_lerp_(*self.pairs, 1 - self.momentum)
        self.queue.push(k)


def augment(x):
    gain = 1 + 0.2 * torch.randn(len(x), x.shape[1], 1)
    shift = int(torch.randint(0, 16, ()))
    return torch.addcmul(0.1 * torch.randn_like(x), x.roll(shift, -1), gain)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(373)
    windows = torch.randn(2000, 6, 96).cumsum(-1) * 0.2
    model = Contrast()
    opt = torch.optim.SGD(model.q.parameters(), lr=0.05, momentum=0.9, fused=True)
    for step in range(args.steps):
        x = windows[torch.randint(0, 2000, (64,))]
        loss, k = model.loss(augment(x), augment(x))
        opt.zero_grad()
        loss.backward()
        opt.step()
        model.after_step(k)
        if step % 5 == 0:
            print(f"step {step} nce {loss.item():.5f}")


if __name__ == "__main__":
    main()
