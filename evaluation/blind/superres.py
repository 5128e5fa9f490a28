"""x3 super-resolution of textured patches, trained with pixel + feature loss."""
import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn


class PatchSource:
    """Procedural textures: sums of random gratings with hard edges."""

    def __init__(self, size, scale, batch, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.size, self.scale, self.batch = size, scale, batch
        axis = torch.linspace(-1, 1, size)
        self.yy, self.xx = torch.meshgrid(axis, axis, indexing="ij")

    def _uniform(self, *shape, low=0.0, high=1.0):
        return low + (high - low) * torch.rand(*shape, generator=self.g)

    def next_pair(self):
        b = self.batch
        theta = self._uniform(b, 3, 1, 1, high=3.1416)
        freq = self._uniform(b, 3, 1, 1, low=4.0, high=22.0)
        phase = self._uniform(b, 3, 1, 1, high=6.2832)
        wave = torch.sin(freq * (theta.cos() * self.xx + theta.sin() * self.yy) + phase)
        edge = (self.xx * theta[:, :1].sin() > self._uniform(b, 1, 1, 1, low=-0.7, high=0.7)).float()
        hr = (0.5 + 0.25 * wave + 0.2 * (edge - 0.5)).clamp(0, 1)
        hr = hr.contiguous(memory_format=torch.channels_last)
        lr = F.avg_pool2d(hr, self.scale)
        return lr, hr


class ResBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a = nn.Conv2d(c, c, 3, padding=1)
        self.b = nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return x + self.b(F.relu(self.a(x)))


class SRNet(nn.Module):
    def __init__(self, c=32, blocks=2, scale=3):
        super().__init__()
        self.scale = scale
        self.head = nn.Conv2d(3, c, 3, padding=1)
        self.body = nn.Sequential(*[ResBlock(c) for _ in range(blocks)])
        self.tail = nn.Conv2d(c, 3 * scale * scale, 3, padding=1)

    def forward(self, x):
        y = F.pixel_shuffle(self.tail(self.body(self.head(x))), self.scale)
        base = F.interpolate(x, scale_factor=self.scale, mode="bilinear", align_corners=False)
        return base + y


class FeatureLoss(nn.Module):
    """Distance in the activations of a fixed network.

    Plain He-initialised filters work about as well as VGG for these textures,
    and there is nothing to download.
    """

    def __init__(self, widths=(48, 96, 128), weights=(1.0, 0.7, 0.5), seed=99):
        super().__init__()
        torch.manual_seed(seed)
        stages, cin = [], 3
        for i, w in enumerate(widths):
            conv = nn.Conv2d(cin, w, 3, stride=1 if i == 0 else 2, padding=1)
            nn.init.kaiming_normal_(conv.weight)
            nn.init.zeros_(conv.bias)
            stages.append(nn.Sequential(conv, nn.ReLU()))
            cin = w
        self.stages = nn.ModuleList(stages)
        self.weights = weights
        self.eval()

    def features(self, x):
        outs = []
        for stage in self.stages:
            x = stage(x)
            outs.append(x)
        return outs

    def forward(self, sr, hr):
        with torch.no_grad():
            target = self.features(hr)
        total = 0.0
        for w, a, b in zip(self.weights, self.features(sr), target):
            total = total + w * F.l1_loss(a, b)
        return total


def psnr(sr, hr):
    return -10 * torch.log10(F.mse_loss(sr.clamp(0, 1), hr))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--patch", type=int, default=60)
    ap.add_argument("--feature-weight", type=float, default=0.05)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()

    feature_loss = FeatureLoss().to(memory_format=torch.channels_last)
    torch.manual_seed(args.seed)
    net = SRNet().to(memory_format=torch.channels_last)
    source = PatchSource(args.patch, net.scale, args.batch, args.seed)
    opt = torch.optim.Adam(net.parameters(), lr=args.lr, betas=(0.9, 0.99), fused=True)

    began = time.time()
    for it in range(1, args.steps + 1):
        lr, hr = source.next_pair()
        sr = net(lr)
        pixel = F.l1_loss(sr, hr)
        feat = feature_loss(sr, hr)
        loss = pixel + args.feature_weight * feat
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 25 == 0:
            with torch.no_grad():
                quality = psnr(sr, hr).item()
            print(f"it {it:4d}  pixel {pixel.item():.4f}  feat {feat.item():.4f}  psnr {quality:.2f}  "
                  f"{time.time() - began:.1f}s")


if __name__ == "__main__":
    main()
