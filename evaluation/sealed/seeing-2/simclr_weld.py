"""Contrastive pre-training on weld-seam images (NT-Xent, batch-wise tensor augmentations)."""
import argparse
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def weld_images(n, size, seed):
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[0:size, 0:size].astype(np.float32) / size
    xx, yy = xx[:1], yy[:, :1]
    out = np.empty((n, 3, size, size), np.uint8)
    for i in range(n):
        wave = np.sin(8 * xx + np.float32(rng.uniform(0, 6)))
        seam = np.exp(-((yy - 0.5 - 0.05 * wave) / np.float32(rng.uniform(0.04, 0.1))) ** 2)
        ripples = 0.3 * np.sin(np.float32(rng.uniform(30, 70)) * xx + 4 * yy)
        base = 0.35 + 0.4 * seam * (1 + ripples) + 0.05 * rng.standard_normal((size, size), dtype=np.float32)
        tint = rng.uniform(0.85, 1.1, (3, 1, 1)).astype(np.float32)
        out[i] = (base[None] * tint * 255).clip(0, 255)
    return torch.from_numpy(out)


class WeldBank:
    def __init__(self, n, size, seed):
        self.raw = weld_images(n, size, seed)
        self.order = torch.empty(0, dtype=torch.long)

    @property
    def pixels(self):
        """Images scaled to [0, 1]."""
        return self.raw.float() / 255.0

    def draw(self, b):
        if len(self.order) < b:
            self.order = torch.randperm(len(self.raw))
        idx, self.order = self.order[:b], self.order[b:]
        return self.pixels[idx]


class RandomResizedCrop(nn.Module):
    def __init__(self, size, scale=(0.35, 1.0)):
        super().__init__()
        self.size, self.scale = size, scale

    def forward(self, x):
        b = x.shape[0]
        s = torch.empty(b).uniform_(*self.scale).sqrt()
        flip = torch.where(torch.rand(b) < 0.5, -1.0, 1.0)
        tx, ty = ((torch.rand(2, b) * 2 - 1) * (1 - s)).unbind(0)
        zero = torch.zeros(b)
        theta = torch.stack([torch.stack([s * flip, zero, tx], -1), torch.stack([zero, s, ty], -1)], 1)
        grid = F.affine_grid(theta, (b, x.shape[1], self.size, self.size), align_corners=False)
        return F.grid_sample(x, grid, align_corners=False, padding_mode="reflection")


class ColorJitter(nn.Module):
    def __init__(self, strength):
        super().__init__()
        self.s = strength

    def forward(self, x):
        b = x.shape[0]
        f = 1 + self.s * (2 * torch.rand(3, b, 1, 1, 1) - 1)
        x = x * f[0]
        m = x.mean((1, 2, 3), keepdim=True)
        x = (x - m) * f[1] + m
        g = x.mean(1, keepdim=True)
        return (g + (x - g) * f[2]).clamp(0, 1)


class SoftFocus(nn.Module):
    """Blend with a box-filtered copy."""

    def forward(self, x):
        w = torch.rand(x.shape[0], 1, 1, 1)
        return torch.lerp(x, F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), w)


class TwoViews(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.ops = nn.Sequential(RandomResizedCrop(size), ColorJitter(0.4), SoftFocus())

    @torch.no_grad()
    def forward(self, x):
        return torch.cat([self.ops(x), self.ops(x)]) * 2 - 1


class PatchResNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 4, 4), nn.BatchNorm2d(width), nn.ReLU())
        self.b1 = self._block(width, width, 1)
        self.b2 = self._block(width, 2 * width, 2)
        self.s2 = nn.Conv2d(width, 2 * width, 1, 2)
        self.b3 = self._block(2 * width, 4 * width, 2)
        self.s3 = nn.Conv2d(2 * width, 4 * width, 1, 2)
        self.dim = 4 * width

    @staticmethod
    def _block(i, o, s):
        return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(),
                             nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        x = self.stem(x)
        x = F.relu(x + self.b1(x))
        x = F.relu(self.s2(x) + self.b2(x))
        return F.relu(self.s3(x) + self.b3(x)).mean((2, 3))


class SimCLR(nn.Module):
    def __init__(self, width, proj):
        super().__init__()
        self.encoder = PatchResNet(width)
        d = self.encoder.dim
        self.projector = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, proj))

    def forward(self, x):
        return F.normalize(self.projector(self.encoder(x)), dim=-1)


def nt_xent(z, tau):
    n = z.shape[0] // 2
    sim = z @ z.t() / tau
    sim.fill_diagonal_(float("-inf"))
    target = torch.arange(2 * n).roll(n)
    return F.cross_entropy(sim, target), (sim.argmax(1) == target).float().mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--images", type=int, default=1600)
    ap.add_argument("--size", type=int, default=64)
    ap.add_argument("--width", type=int, default=32)
    ap.add_argument("--proj", type=int, default=64)
    ap.add_argument("--tau", type=float, default=0.2)
    ap.add_argument("--lr", type=float, default=0.06)
    ap.add_argument("--seed", type=int, default=81)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    bank = WeldBank(a.images, a.size, a.seed)
    views = TwoViews(a.size)
    model = SimCLR(a.width, a.proj)
    opt = torch.optim.SGD(model.parameters(), lr=a.lr, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 0.5 * (1 + math.cos(math.pi * s / a.steps)))
    for step in range(1, a.steps + 1):
        loss, hit = nt_xent(model(views(bank.draw(a.batch))), a.tau)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"step {step:3d} nt-xent {loss.item():.4f} top1 {hit.item():.3f} lr {sched.get_last_lr()[0]:.4f}", flush=True)


if __name__ == "__main__":
    main()
