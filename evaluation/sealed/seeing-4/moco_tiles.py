"""Self-supervised pretraining on histology tiles with a momentum encoder and a bank of negatives."""
import argparse
import copy

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F


def make_tiles(n, size, seed):
    rng = np.random.default_rng(seed)
    base = rng.normal(0, 1, (n, 3, size // 4, size // 4)).astype(np.float32)
    tiles = F.interpolate(torch.from_numpy(base), size=(size, size), mode="bicubic", align_corners=False)
    stain = torch.from_numpy(rng.uniform(0.5, 1.5, (n, 3, 1, 1)).astype(np.float32))
    return ((tiles * stain * 32) + 128).clamp(0, 255).to(torch.uint8)


class TileViews:
    """Yields two stain-jittered crops of each tile in a batch."""

    def __init__(self, tiles, batch, crop, seed):
        self.tiles, self.batch, self.crop = tiles, batch, crop
        self.gen = torch.Generator().manual_seed(seed)

    def _view(self, x):
        span = self.tiles.shape[-1] - self.crop
        dy, dx = torch.randint(0, span + 1, (2,), generator=self.gen).tolist()
        x = x[..., dy:dy + self.crop, dx:dx + self.crop]
        gain = 1 + 0.3 * (torch.rand(len(x), 3, 1, 1, generator=self.gen) - 0.5)
        if torch.rand((), generator=self.gen) < 0.5:
            x = x.flip(-1)
        return x * gain

    def __iter__(self):
        while True:
            order = torch.randperm(len(self.tiles), generator=self.gen)
            for idx in order.split(self.batch):
                if len(idx) < self.batch:
                    break
                x = (self.tiles[idx].float() - 128) / 64
                yield self._view(x), self._view(x)


class TileEncoder(nn.Module):
    def __init__(self, width, dim):
        super().__init__()
        chans = [3, width, 2 * width, 4 * width]
        layers = []
        for a, b in zip(chans[:-1], chans[1:]):
            layers += [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.GroupNorm(4, b), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        self.body = nn.Sequential(*layers)
        self.proj = nn.Sequential(nn.Linear(4 * width, 4 * width), nn.ReLU(inplace=True), nn.Linear(4 * width, dim))

    def forward(self, x):
        return F.normalize(self.proj(self.body(x).mean((2, 3))), dim=1)


class MomentumContrast(nn.Module):
    def __init__(self, width=16, dim=128, bank=98304, momentum=0.99, temperature=0.15):
        super().__init__()
        self.query = TileEncoder(width, dim)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.momentum, self.temperature = momentum, temperature
        self.register_buffer("negatives", F.normalize(torch.randn(bank, dim), dim=1))

    @torch.no_grad()
    def update_key(self):
        for k, q in zip(self.key.parameters(), self.query.parameters()):
            k.lerp_(q, 1 - self.momentum)

    @torch.no_grad()
    def enqueue(self, keys):
        bank = self.negatives.shape[0]
        self.negatives = torch.cat([keys, self.negatives])[:bank]

    def forward(self, xq, xk):
        q = self.query(xq)
        with torch.no_grad():
            k = self.key(xk)
        pos = (q * k).sum(1, keepdim=True)
        neg = q @ self.negatives.t()
        logits = torch.cat([pos, neg], 1) / self.temperature
        return logits, k


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--lr", type=float, default=0.03)
    ap.add_argument("--log-every", type=int, default=10)
    ap.add_argument("--seed", type=int, default=3)
    cfg = ap.parse_args()
    torch.manual_seed(cfg.seed)

    views = iter(TileViews(make_tiles(600, 56, cfg.seed), cfg.batch, 48, cfg.seed))
    model = MomentumContrast()
    optim = torch.optim.SGD(model.query.parameters(), lr=cfg.lr, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(optim, T_max=cfg.steps)
    target = torch.zeros(cfg.batch, dtype=torch.long)

    for step in range(cfg.steps):
        xq, xk = next(views)
        model.update_key()
        logits, keys = model(xq, xk)
        loss = F.cross_entropy(logits, target)
        optim.zero_grad(set_to_none=True)
        loss.backward()
        optim.step()
        sched.step()
        model.enqueue(keys)
        if step % cfg.log_every == 0:
            rank = (logits.detach()[:, 1:] > logits.detach()[:, :1]).sum(1).float().mean()
            print(f"[{step:05d}] nce {loss.item():.4f} mean rank {rank.item():.1f}")
    print(f"final nce {loss.item():.4f}")


if __name__ == "__main__":
    main()
