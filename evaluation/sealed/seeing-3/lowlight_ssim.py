"""Low-light photo enhancement: residual curve network trained with L1 + SSIM."""
import argparse
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def procedural_photo(size, rng):
    img = np.zeros((3, size, size), np.float32)
    for octave in (4, 8, 16, 32):
        c = rng.random((3, octave, octave)).astype(np.float32)
        img += np.kron(c, np.ones((1, size // octave, size // octave), np.float32)) / math.sqrt(octave)
    yy, xx = np.mgrid[:size, :size]
    for _ in range(5):
        cy, cx, r = rng.integers(0, size), rng.integers(0, size), rng.integers(8, size // 4)
        img[:, (yy - cy) ** 2 + (xx - cx) ** 2 < r * r] += rng.random((3, 1)).astype(np.float32) - 0.5
    return (img - img.min()) / (img.max() - img.min())


class LowLightPairs(Dataset):
    def __init__(self, n, size, crop, seed):
        rng = np.random.default_rng(seed)
        self.clean = torch.from_numpy(np.stack([procedural_photo(size, rng) for _ in range(n)]))
        self.crop = crop

    def __len__(self):
        return 8 * len(self.clean)

    def __getitem__(self, i):
        img = self.clean[i % len(self.clean)]
        top, left = torch.randint(0, img.shape[1] - self.crop + 1, (2,)).tolist()
        y = img[:, top:top + self.crop, left:left + self.crop]
        gain = 0.05 + 0.25 * torch.rand(())
        x = gain * y ** (1.5 + torch.rand(()))
        x = x + torch.sqrt(0.002 * x + 1e-4) * torch.randn_like(x)
        return x.clamp(0, 1), y


class SSIM(nn.Module):
    def __init__(self, window=11, sigma=1.5, channels=3):
        super().__init__()
        x = torch.arange(window) - (window - 1) / 2
        g = torch.exp(-x ** 2 / (2 * sigma ** 2))
        g = g / g.sum()
        self.register_buffer("kernel", torch.outer(g, g).expand(channels, 1, window, window).contiguous())
        self.channels = channels
        self.c1, self.c2 = 0.01 ** 2, 0.03 ** 2

    def blur(self, x):
        return F.conv2d(x, self.kernel, groups=self.channels)

    def forward(self, a, b):
        mu_a, mu_b = self.blur(a), self.blur(b)
        var_a = self.blur(a * a) - mu_a ** 2
        var_b = self.blur(b * b) - mu_b ** 2
        cov = self.blur(a * b) - mu_a * mu_b
        s = ((2 * mu_a * mu_b + self.c1) * (2 * cov + self.c2)) / ((mu_a ** 2 + mu_b ** 2 + self.c1) * (var_a + var_b + self.c2))
        return s.mean()


class CurveNet(nn.Module):
    """Predicts per-pixel curve parameters applied several times, then a small residual."""

    def __init__(self, w=10, curves=4):
        super().__init__()
        self.curves = curves
        self.a = nn.Conv2d(3, w, 3, 2, 1)
        self.b = nn.Conv2d(w, 2 * w, 3, 2, 1)
        self.c = nn.Conv2d(2 * w, 2 * w, 3, padding=1)
        self.d = nn.Conv2d(3 * w, w, 3, padding=1)
        self.params = nn.Conv2d(w, 3 * curves, 3, padding=1)
        self.residual = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x):
        a = F.relu(self.a(x))
        b = F.relu(self.b(a))
        b = F.relu(self.c(b)) + b
        h = F.relu(self.d(torch.cat([a, F.interpolate(b, scale_factor=2.0)], 1)))
        p = torch.tanh(F.interpolate(self.params(h), scale_factor=2, mode="bilinear", align_corners=False))
        y = x
        for r in p.chunk(self.curves, 1):
            y = y + r * (y - y * y)
        return y + self.residual(y)


def psnr(a, b):
    return (-10 * torch.log10(F.mse_loss(a.clamp(0, 1), b))).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=6)
    ap.add_argument("--crop", type=int, default=96)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--ssim-weight", type=float, default=0.5)
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(LowLightPairs(24, 160 if args.crop < 160 else args.crop, args.crop, args.seed), args.batch, shuffle=True, drop_last=True)
    net, ssim = CurveNet(), SSIM()
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    step = 0
    while step < args.steps:
        for x, y in loader:
            out = net(x)
            loss = F.l1_loss(out, y) + args.ssim_weight * (1 - ssim(out, y))
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            step += 1
            if step % 10 == 0:
                print(f"step {step} loss {loss.item():.4f} psnr {psnr(out.detach(), y):.2f}")
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
