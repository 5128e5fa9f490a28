"""Momentum-contrast pre-training of a small conv encoder."""
import argparse
import copy

import torch
from torch import nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, dim),
        )

    def forward(self, x):
        return self.net(x)


class KeyQueue:
    def __init__(self, dim, use, start, cut):
        self.keys = torch.randn(start, dim)
        self.use, self.cut = use, cut

    def negatives(self):
        return F.normalize(self.keys, dim=1)[-self.use:]

    def append(self, k):
        self.keys = torch.cat([self.keys, k.detach()], 0)
        if self.cut:
            self.keys = self.keys[-self.use:]


class MoCo(nn.Module):
    def __init__(self, queue, momentum=0.99, temp=0.2):
        super().__init__()
        self.query = Encoder()
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.queue, self.m, self.temp = queue, momentum, temp

    @torch.no_grad()
    def momentum_update(self):
        for k, q in zip(self.key.parameters(), self.query.parameters()):
            k.lerp_(q, 1 - self.m)

    def forward(self, a, b):
        q = F.normalize(self.query(a), dim=1)
        with torch.no_grad():
            raw = self.key(b)
            k = F.normalize(raw, dim=1)
        pos = (q * k).sum(1, keepdim=True)
        neg = q @ self.queue.negatives().t()
        loss = F.cross_entropy(torch.cat([pos, neg], 1) / self.temp, torch.zeros(len(q), dtype=torch.long))
        self.queue.append(raw)
        return loss


def two_views(imgs):
    def view(x):
        dx, dy = torch.randint(-3, 4, (2,)).tolist()
        return torch.roll(x, (dy, dx), (2, 3)) + 0.1 * torch.randn_like(x)
    return view(imgs), view(imgs)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(151)
    images = torch.randn(1500, 3, 24, 24)
    model = MoCo(KeyQueue(64, use=512, start=20000, cut=args.fixed))
    opt = torch.optim.SGD(model.query.parameters(), lr=0.05, momentum=0.9)
    for step in range(args.steps):
        a, b = two_views(images[torch.randint(0, 1500, (128,))])
        loss = model(a, b)
        opt.zero_grad()
        loss.backward()
        opt.step()
        model.momentum_update()
        if step % 5 == 0:
            print(f"step {step} nce {loss.item():.5f}")


if __name__ == "__main__":
    main()
