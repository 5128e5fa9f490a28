"""Lung nodule patch segmentation on CT volumes with a small 3-D U-Net."""
import argparse

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset


def phantom(rng, side):
    z, y, x = np.mgrid[0:side, 0:side, 0:side].astype(np.float32)
    vol = np.full((side,) * 3, -850, np.float32)
    vol[(y - side / 2) ** 2 + (x - side / 2) ** 2 > (0.46 * side) ** 2] = 30
    vessels = np.sin(x / 5 + rng.uniform(0, 6)) * np.sin(y / 7) * np.sin(z / 6)
    vol[vessels > 0.85] = -50
    mask = np.zeros(vol.shape, np.uint8)
    centres = rng.uniform(0.3, 0.7, (4, 3)) * side
    for c in centres:
        ball = (z - c[0]) ** 2 + (y - c[1]) ** 2 + (x - c[2]) ** 2 < rng.uniform(3, 6) ** 2
        vol[ball], mask[ball] = rng.uniform(-50, 80), 1
    vol += rng.normal(0, 40, vol.shape)
    return {"ct": vol, "mask": mask, "centres": centres, "spacing": np.array([1.25, 0.7, 0.7]), "uid": f"1.3.6.{rng.integers(10**6)}"}


class CropAround:
    def __init__(self, size, rng, positive=0.7):
        self.size, self.rng, self.positive = size, rng, positive

    def __call__(self, s):
        top = np.array(s["ct"].shape) - self.size
        if self.rng.random() < self.positive:
            c = s["centres"][self.rng.integers(len(s["centres"]))]
            start = c - self.size / 2 + self.rng.uniform(-4, 4, 3)
        else:
            start = self.rng.uniform(0, top)
        start = np.clip(start, 0, top).astype(int)
        box = tuple(slice(a, a + self.size) for a in start)
        s["ct"], s["mask"] = s["ct"][box], s["mask"][box]
        return s


class Flip:
    def __init__(self, rng):
        self.rng = rng

    def __call__(self, s):
        for axis in range(3):
            if self.rng.random() < 0.5:
                s["ct"], s["mask"] = np.flip(s["ct"], axis), np.flip(s["mask"], axis)
        return s


class Hounsfield:
    def __init__(self, low, high, rng):
        self.low, self.high, self.rng = low, high, rng

    def __call__(self, s):
        ct = np.clip((s["ct"] - self.low) / (self.high - self.low), 0, 1)
        s["ct"] = (ct ** self.rng.uniform(0.85, 1.15) - 0.25) / 0.3
        return s


class ToTensors:
    def __call__(self, s):
        ct = torch.from_numpy(np.ascontiguousarray(s["ct"], dtype=np.float32)).unsqueeze(0)
        return ct, torch.from_numpy(np.ascontiguousarray(s["mask"])).unsqueeze(0).float()


class CTCases(Dataset):
    def __init__(self, n, side, patch, seed, per_epoch=256):
        rng = np.random.default_rng(seed)
        self.cases = [phantom(rng, side) for _ in range(n)]
        self.per_epoch = per_epoch
        self.transforms = [CropAround(patch, rng), Flip(rng), Hounsfield(-1000, 400, rng), ToTensors()]

    def __len__(self):
        return self.per_epoch

    def __getitem__(self, i):
        sample = dict(self.cases[i % len(self.cases)])
        for t in self.transforms:
            sample = t(sample)
        return sample


class Double(nn.Sequential):
    def __init__(self, cin, cout, lean=True):
        super().__init__(
            nn.Conv3d(cin, cout, 3, padding=1), nn.GroupNorm(4, cout), nn.ReLU(inplace=True),
            nn.Conv3d(cout, cout, 3, padding=1), nn.GroupNorm(4, cout), nn.ReLU(inplace=True))
        self.lean = lean

    def forward(self, x):
        if self.lean and torch.is_grad_enabled():
            return checkpoint(super().forward, x, use_reentrant=False)
        return super().forward(x)


class UNet3d(nn.Module):
    def __init__(self, base=8):
        super().__init__()
        self.reduce = nn.Conv3d(1, base, 4, 2, 1)
        self.e1, self.e2, self.mid = Double(base, base), Double(base, 2 * base), Double(2 * base, 4 * base)
        self.u2, self.u1 = nn.ConvTranspose3d(4 * base, 2 * base, 2, 2), nn.ConvTranspose3d(2 * base, base, 2, 2)
        self.d2, self.d1 = Double(4 * base, 2 * base), Double(2 * base, base)
        self.out = nn.ConvTranspose3d(base, 1, 2, 2)

    def forward(self, x):
        a = self.e1(self.reduce(x))
        b = self.e2(F.max_pool3d(a, 2))
        c = self.mid(F.max_pool3d(b, 2))
        b = self.d2(torch.cat([self.u2(c), b], 1))
        return self.out(self.d1(torch.cat([self.u1(b), a], 1)))


def dice_bce(logits, mask):
    p = torch.sigmoid(logits)
    inter, size = (p * mask).sum((1, 2, 3, 4)), p.sum((1, 2, 3, 4)) + mask.sum((1, 2, 3, 4))
    return F.binary_cross_entropy_with_logits(logits, mask) + (1 - (2 * inter + 1) / (size + 1)).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--patch", type=int, default=40)
    ap.add_argument("--side", type=int, default=96)
    ap.add_argument("--cases", type=int, default=10)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=19)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(CTCases(args.cases, args.side, args.patch, args.seed), args.batch, shuffle=True)
    net = UNet3d()
    opt = torch.optim.RAdam(net.parameters(), lr=args.lr)

    step = 0
    while step < args.steps:
        for ct, mask in loader:
            opt.zero_grad()
            loss = dice_bce(net(ct), mask)
            loss.backward()
            opt.step()
            step += 1
            if step % 5 == 0:
                print(f"step {step:03d} dice+bce {loss.item():.4f}")
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
