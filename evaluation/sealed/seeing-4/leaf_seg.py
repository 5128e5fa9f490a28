"""Leaf disease segmentation on greenhouse photographs (six classes)."""
import argparse
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

CLASSES = ["soil", "healthy", "rust", "mildew", "blight", "stem"]


def render_plate(rng, size):
    """One photograph: soil texture, a few elliptic leaves, spots on the leaves."""
    yy, xx = np.mgrid[0:size, 0:size].astype(np.float32) / size
    img = np.stack([0.35 + 0.05 * np.sin(17 * xx + rng.uniform(0, 6)),
                    0.25 + 0.05 * np.sin(13 * yy + rng.uniform(0, 6)),
                    np.full_like(xx, 0.2)])
    lab = np.zeros((size, size), np.int64)
    for _ in range(rng.integers(3, 6)):
        cx, cy = rng.uniform(0.1, 0.9, 2)
        a, b = rng.uniform(0.1, 0.3, 2)
        inside = ((xx - cx) / a) ** 2 + ((yy - cy) / b) ** 2 < 1
        lab[inside] = 1
        img[:, inside] = np.array([0.2, 0.6, 0.2])[:, None]
        kind = int(rng.integers(2, 6))
        sx, sy = cx + rng.uniform(-a, a) / 2, cy + rng.uniform(-b, b) / 2
        spot = ((xx - sx) ** 2 + (yy - sy) ** 2 < rng.uniform(0.03, 0.1) ** 2) & inside
        lab[spot] = kind
        img[:, spot] = (np.array([0.3, 0.2, 0.1]) + 0.12 * kind)[:, None]
    img += rng.normal(0, 0.03, img.shape)
    return img.astype(np.float32), lab


class LeafPlates(Dataset):
    def __init__(self, n, size, crop, seed):
        rng = np.random.default_rng(seed)
        plates = [render_plate(rng, size) for _ in range(n)]
        self.images = torch.from_numpy(np.stack([p[0] for p in plates]))
        self.labels = torch.from_numpy(np.stack([p[1] for p in plates]))
        self.crop, self.span = crop, size - crop
        self.rng = np.random.default_rng(seed + 1)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        y, x = self.rng.integers(0, self.span + 1, 2)
        window = (..., slice(y, y + self.crop), slice(x, x + self.crop))
        img, lab = self.images[i][window], self.labels[i][window]
        if self.rng.random() < 0.5:
            img, lab = img.flip(-1), lab.flip(-1)
        return img, lab


class Stage(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)))


class LeafNet(nn.Module):
    def __init__(self, n_classes, width=24):
        super().__init__()
        w = width
        self.stem = nn.Sequential(nn.Conv2d(3, w, 5, 2, 2, bias=False), nn.BatchNorm2d(w), nn.ReLU())
        self.down1 = Stage(w, 2 * w, 2)
        self.down2 = Stage(2 * w, 3 * w, 2)
        self.down3 = Stage(3 * w, 4 * w, 2)
        self.lat1 = nn.Conv2d(2 * w, 2 * w, 1)
        self.lat2 = nn.Conv2d(3 * w, 2 * w, 1)
        self.lat3 = nn.Conv2d(4 * w, 2 * w, 1)
        self.smooth = nn.Conv2d(2 * w, 2 * w, 3, padding=1)
        self.classify = nn.Conv2d(2 * w, n_classes, 1)

    def forward(self, x):
        full = x.shape[-2:]
        c1 = self.down1(self.stem(x))
        c2 = self.down2(c1)
        c3 = self.down3(c2)
        p = self.lat2(c2) + F.interpolate(self.lat3(c3), size=c2.shape[-2:], mode="nearest")
        p = self.lat1(c1) + F.interpolate(p, size=c1.shape[-2:], mode="nearest")
        p = F.relu(self.smooth(p))
        p = F.interpolate(p, size=full, mode="bilinear", align_corners=False)
        return self.classify(p)


def poly_lr(step, total, power=0.9):
    return max(1.0 - step / max(total, 1), 1e-3) ** power


def endless(loader):
    while True:
        yield from loader


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=10)
    ap.add_argument("--crop", type=int, default=128)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--seed", type=int, default=11)
    args = ap.parse_args()
    torch.manual_seed(args.seed)

    data = LeafPlates(80, 160, args.crop, args.seed)
    loader = DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True)
    net = LeafNet(len(CLASSES))
    opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: poly_lr(s, args.steps))
    freq = torch.bincount(data.labels.flatten(), minlength=len(CLASSES)).float()
    weight = 1.0 / torch.log(1.1 + freq / freq.sum())

    stream = endless(loader)
    for step in range(1, args.steps + 1):
        img, lab = next(stream)
        logits = net(img)
        loss = F.cross_entropy(logits, lab, weight=weight)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 10 == 0 or step == 1:
            acc = (logits.argmax(1) == lab).float().mean().item()
            print(f"step {step:4d}  loss {loss.item():.4f}  pixel acc {acc:.3f}  lr {sched.get_last_lr()[0]:.4f}")
    assert math.isfinite(loss.item())


if __name__ == "__main__":
    main()
