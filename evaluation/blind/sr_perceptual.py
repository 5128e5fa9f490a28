"""x2 super-resolution on procedurally generated textures, pixel + feature loss."""
import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def make_textures(n, size, rng):
    yy, xx = np.mgrid[0:size, 0:size].astype(np.float32) / size
    out = np.empty((n, 3, size, size), dtype=np.float32)
    for i in range(n):
        base = np.zeros((size, size), dtype=np.float32)
        for _ in range(5):
            fx, fy = rng.uniform(-12, 12, size=2)
            base += rng.uniform(0.2, 1.0) * np.sin(2 * np.pi * (fx * xx + fy * yy) + rng.uniform(0, 6.28))
        base = (base - base.min()) / (np.ptp(base) + 1e-6)
        tint = rng.uniform(0.3, 1.0, size=(3, 1, 1)).astype(np.float32)
        out[i] = base[None] * tint
    return torch.from_numpy(out)


class TextureDataset(Dataset):
    def __init__(self, n=256, size=64, seed=0, train=True):
        self.train = train
        self.hr = make_textures(n, size, np.random.default_rng(seed))
        self.lr = F.interpolate(self.hr, scale_factor=0.5, mode="area")

    def __len__(self):
        return len(self.hr)

    def __getitem__(self, i):
        lr, hr = self.lr[i], self.hr[i]
        if self.train:
            dims = [d for d in (1, 2) if torch.rand(()) < 0.5]
            lr, hr = lr.flip(dims), hr.flip(dims)
        return lr, hr


class ResBlock(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.conv1 = nn.Conv2d(ch, ch, 3, padding=1)
        self.conv2 = nn.Conv2d(ch, ch, 3, padding=1)

    def forward(self, x):
        return x + 0.1 * self.conv2(F.relu(self.conv1(x)))


class SRNet(nn.Module):
    def __init__(self, ch=32, blocks=4):
        super().__init__()
        self.head = nn.Conv2d(3, ch, 3, padding=1)
        self.body = nn.Sequential(*[ResBlock(ch) for _ in range(blocks)])
        self.tail = nn.Sequential(nn.Conv2d(ch, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x):
        up = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        h = self.head(x)
        return up + self.tail(self.body(h) + h)


def build_backbone(seed=1234):
    """Small VGG-style trunk. Stands in for the checkpoint we ship internally."""
    gen_state = torch.get_rng_state()
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(),
        nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(24, 48, 3, padding=1), nn.ReLU(),
        nn.Conv2d(48, 48, 3, padding=1),
    )
    torch.set_rng_state(gen_state)
    return net


class FeatureLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = build_backbone()
        self.backbone.eval()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def features(self, img):
        return self.backbone((img - self.mean) / self.std)

    def forward(self, pred, target):
        return F.mse_loss(self.features(pred), self.features(target))


def psnr(pred, target):
    mse = F.mse_loss(pred.clamp(0, 1), target)
    return -10.0 * torch.log10(mse + 1e-10)


@torch.no_grad()
def validate(model, data, batch_size):
    model.eval()
    scores = [psnr(model(lr), hr).item() for lr, hr in DataLoader(data, batch_size=batch_size)]
    model.train()
    return sum(scores) / len(scores)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=40)
    ap.add_argument("--batch-size", type=int, default=6)
    ap.add_argument("--lr", type=float, default=2e-4)
    ap.add_argument("--feature-weight", type=float, default=0.05)
    args = ap.parse_args()

    torch.manual_seed(0)
    train = TextureDataset(n=480, seed=0)
    val = TextureDataset(n=32, seed=1, train=False)
    loader = DataLoader(train, batch_size=args.batch_size, shuffle=True, drop_last=True)

    model = SRNet()
    feature_loss = FeatureLoss()
    opt = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.99), fused=True)
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=1000, gamma=0.5)

    step, t0 = 0, time.time()
    for epoch in range(args.epochs):
        for lr_img, hr_img in loader:
            sr = model(lr_img)
            pix = F.l1_loss(sr, hr_img)
            feat = feature_loss(sr, hr_img)
            loss = pix + args.feature_weight * feat
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            step += 1
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} pix {pix.item():.4f} feat {feat.item():.4f} "
                      f"psnr {psnr(sr.detach(), hr_img).item():.2f} {time.time() - t0:.1f}s", flush=True)
        print(f"epoch {epoch} val psnr {validate(model, val, args.batch_size):.2f}", flush=True)


if __name__ == "__main__":
    main()
