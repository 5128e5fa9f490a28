"""Burn-scar mapping: small U-Net on pre/post fire tiles cut from scenes."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset

BANDS = 6  # blue, green, red, nir, swir1, swir2


def synth_scene(rng, size):
    """Two uint16 acquisitions (pre, post) and a sparse burn mask."""
    coarse = rng.normal(0, 1, (BANDS, size // 32, size // 32)).astype(np.float32)
    base = np.kron(coarse, np.ones((1, 32, 32), np.float32)) * 350 + 2200
    pre = base + rng.normal(0, 60, base.shape).astype(np.float32)
    mask = np.zeros((size, size), np.uint8)
    yy, xx = np.ogrid[:size, :size]
    for _ in range(7):
        cy, cx = rng.integers(0, size, 2)
        a, b = rng.uniform(20, 55, 2)
        mask |= (((yy - cy) / a) ** 2 + ((xx - cx) / b) ** 2 < 1).astype(np.uint8)
    post = base + rng.normal(0, 60, base.shape).astype(np.float32)
    post[3] -= 900.0 * mask
    post[5] += 700.0 * mask
    return pre.clip(0).astype(np.uint16), post.clip(0).astype(np.uint16), mask


def normalised_difference(a, b):
    return (a - b) / (a + b + 1e-4)


class BurnTiles(IterableDataset):
    """Random tiles with at least `min_burn` of burnt pixels, flipped at random."""

    def __init__(self, scenes, tile, min_burn, seed):
        self.scenes, self.tile, self.min_burn = scenes, tile, min_burn
        self.rng = np.random.default_rng(seed)
        self.lo = np.array([600, 600, 600, 800, 900, 900], np.float32)[:, None, None]
        self.hi = np.array([3800, 3800, 3800, 4200, 4200, 4200], np.float32)[:, None, None]

    def reflectance(self, dn):
        x = (dn.astype(np.float32) - self.lo) / (self.hi - self.lo)
        return np.clip(x, 0.0, 1.0) ** np.float32(0.8)

    def indices(self, pre, post):
        nbr0 = normalised_difference(pre[3], pre[5])
        nbr1 = normalised_difference(post[3], post[5])
        ndvi0 = normalised_difference(pre[3], pre[2])
        ndvi1 = normalised_difference(post[3], post[2])
        return np.stack([nbr0 - nbr1, ndvi0 - ndvi1])

    def sample(self):
        t = self.tile
        while True:
            pre, post, mask = self.scenes[self.rng.integers(len(self.scenes))]
            y, x = self.rng.integers(0, mask.shape[0] - t, 2)
            window = np.s_[..., y:y + t, x:x + t]
            p0, p1, m = self.reflectance(pre[window]), self.reflectance(post[window]), mask[window]
            image = np.concatenate([p0, p1, self.indices(p0, p1)])
            if m.mean() >= self.min_burn:
                break
        if self.rng.random() < 0.5:
            image, m = image[..., ::-1], m[..., ::-1]
        if self.rng.random() < 0.5:
            image, m = image[..., ::-1, :], m[..., ::-1, :]
        return torch.from_numpy(image.copy()), torch.from_numpy(m.astype(np.float32))

    def __iter__(self):
        while True:
            yield self.sample()


def double_conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
                         nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class SmallUNet(nn.Module):
    def __init__(self, c_in, w=12):
        super().__init__()
        self.d1, self.d2, self.d3 = double_conv(c_in, w), double_conv(w, 2 * w), double_conv(2 * w, 4 * w)
        self.u2 = nn.ConvTranspose2d(4 * w, 2 * w, 2, 2)
        self.c2 = double_conv(4 * w, 2 * w)
        self.u1 = nn.ConvTranspose2d(2 * w, w, 2, 2)
        self.c1 = double_conv(2 * w, w)
        self.out = nn.Conv2d(w, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.d3(F.max_pool2d(b, 2))
        b = self.c2(torch.cat([self.u2(c), b], 1))
        a = self.c1(torch.cat([self.u1(b), a], 1))
        return self.out(a).squeeze(1)


def bce_dice(logits, target):
    p = torch.sigmoid(logits)
    inter = (p * target).sum((1, 2))
    dice = 1 - (2 * inter + 1) / (p.sum((1, 2)) + target.sum((1, 2)) + 1)
    return F.binary_cross_entropy_with_logits(logits, target) + dice.mean()


def train(cfg):
    torch.manual_seed(cfg.seed)
    rng = np.random.default_rng(cfg.seed)
    scenes = [synth_scene(rng, 640) for _ in range(4)]
    tiles = iter(DataLoader(BurnTiles(scenes, cfg.tile, cfg.min_burn, cfg.seed + 1), batch_size=cfg.batch))
    net = SmallUNet(2 * BANDS + 2)
    opt = torch.optim.SGD(net.parameters(), lr=cfg.lr, momentum=0.9, nesterov=True)
    poly = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=cfg.steps, power=0.9)
    running = 0.0
    for step in range(cfg.steps):
        image, mask = next(tiles)
        loss = bce_dice(net(image), mask)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        poly.step()
        running += loss.item()
        if (step + 1) % cfg.print_every == 0:
            print(f"iter {step + 1:4d}  loss {running / cfg.print_every:.4f}")
            running = 0.0


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=3)
    ap.add_argument("--tile", type=int, default=96)
    ap.add_argument("--min-burn", type=float, default=0.35)
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--print-every", type=int, default=10)
    ap.add_argument("--seed", type=int, default=5)
    train(ap.parse_args())
