"""x2 super-resolution of scanned film frames (residual-in-residual network, Charbonnier loss)."""
import argparse
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]], np.float32)
RGB = np.linalg.inv(YIQ).astype(np.float32)


def write_scans(root, n, size, seed):
    rng = np.random.default_rng(seed)
    for k in range(n):
        coarse = rng.random((size // 16, size // 16, 3), dtype=np.float32).repeat(16, 0).repeat(16, 1)
        fine = rng.random((size // 2, size // 2, 1), dtype=np.float32).repeat(2, 0).repeat(2, 1)
        np.save(os.path.join(root, f"scan_{k:03d}.npy"), ((0.75 * coarse + 0.25 * fine) * 255).astype(np.uint8))


class FilmGrade:
    """Random print-stock look: exposure, gamma, hue rotation and saturation."""

    def __init__(self, rng):
        self.rng = rng

    def __call__(self, img):
        ev = self.rng.uniform(-0.25, 0.25)
        gamma = self.rng.uniform(0.85, 1.2)
        hue = self.rng.uniform(-0.15, 0.15)
        sat = self.rng.uniform(0.7, 1.2)
        c, s = np.cos(hue) * sat, np.sin(hue) * sat
        rot = np.array([[1, 0, 0], [0, c, -s], [0, s, c]], np.float32)
        img = (img * np.float32(2.0 ** ev)).clip(0, 1) ** np.float32(gamma)
        return (img @ (RGB @ rot @ YIQ).T).clip(0, 1)


class FilmPairs(Dataset):
    def __init__(self, root, patch, scale, length, seed):
        self.paths = sorted(os.path.join(root, f) for f in os.listdir(root))
        self.scans = [np.load(p, mmap_mode="r") for p in self.paths]
        self.patch, self.scale, self.length = patch, scale, length
        self.rng = np.random.default_rng(seed)
        self.grade = FilmGrade(self.rng)

    def __len__(self):
        return self.length

    def crop(self, img):
        h, w, _ = img.shape
        y = self.rng.integers(0, h - self.patch + 1)
        x = self.rng.integers(0, w - self.patch + 1)
        return img[y:y + self.patch, x:x + self.patch]

    def flip(self, img):
        if self.rng.random() < 0.5:
            img = img[:, ::-1]
        if self.rng.random() < 0.5:
            img = img.transpose(1, 0, 2)
        return img

    def __getitem__(self, i):
        scan = self.scans[i % len(self.scans)]
        frame = np.asarray(scan, dtype=np.float32) / 255.0
        frame = self.grade(frame)
        hr = torch.from_numpy(np.ascontiguousarray(self.flip(self.crop(frame)).transpose(2, 0, 1)))
        lr = F.avg_pool2d(hr, self.scale)
        return lr, hr


class DenseUnit(nn.Module):
    def __init__(self, ch, growth):
        super().__init__()
        self.c1 = nn.Conv2d(ch, growth, 3, padding=1)
        self.c2 = nn.Conv2d(ch + growth, growth, 3, padding=1)
        self.c3 = nn.Conv2d(ch + 2 * growth, ch, 3, padding=1)
        self.act = nn.LeakyReLU(0.2)

    def forward(self, x):
        a = self.act(self.c1(x))
        b = self.act(self.c2(torch.cat([x, a], 1)))
        return x + 0.2 * self.c3(torch.cat([x, a, b], 1))


class FilmSR(nn.Module):
    def __init__(self, scale, ch=24, units=3):
        super().__init__()
        self.head = nn.Conv2d(3, ch, 3, padding=1)
        self.body = nn.Sequential(*[DenseUnit(ch, 16) for _ in range(units)])
        self.tail = nn.Sequential(nn.Conv2d(ch, 3 * scale ** 2, 3, padding=1), nn.PixelShuffle(scale))
        self.scale = scale

    def forward(self, x):
        h = self.head(x)
        base = F.interpolate(x, scale_factor=self.scale, mode="bilinear", align_corners=False)
        return base + self.tail(self.body(h) + h)


def charbonnier(a, b, eps=1e-3):
    return torch.sqrt((a - b) ** 2 + eps ** 2).mean()


def psnr(a, b):
    return -10 * torch.log10(F.mse_loss(a.clamp(0, 1), b)).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=6)
    ap.add_argument("--patch", type=int, default=72)
    ap.add_argument("--scale", type=int, default=2)
    ap.add_argument("--scan-size", type=int, default=448)
    ap.add_argument("--lr", type=float, default=5e-4)
    ap.add_argument("--seed", type=int, default=27)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    with tempfile.TemporaryDirectory() as root:
        write_scans(root, 16, args.scan_size, args.seed)
        pairs = FilmPairs(root, args.patch, args.scale, args.steps * args.batch, args.seed)
        loader = DataLoader(pairs, args.batch)
        net = FilmSR(args.scale)
        opt = torch.optim.Adam(net.parameters(), lr=args.lr, betas=(0.9, 0.99))
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps, eta_min=1e-6)
        for step, (lr, hr) in enumerate(loader, 1):
            sr = net(lr)
            loss = charbonnier(sr, hr)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            if step % 10 == 0:
                print(f"{step:4d} loss {loss.item():.4f} psnr {psnr(sr.detach(), hr):.2f}", flush=True)


if __name__ == "__main__":
    main()
