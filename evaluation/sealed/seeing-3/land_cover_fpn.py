"""Land-cover segmentation from multispectral tiles with a feature pyramid."""
import argparse
from functools import partial

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

CLASSES = ("water", "forest", "crop", "grass", "urban", "bare", "wetland", "snow")
SIGNATURE = np.random.default_rng(99).uniform(0.05, 0.6, (len(CLASSES), 4)).astype(np.float32)


def voronoi_labels(size, rng, seeds=30):
    pts = rng.uniform(0, size, (seeds, 2)).astype(np.float32)
    kind = rng.integers(0, len(CLASSES), seeds)
    yy, xx = np.mgrid[:size, :size].astype(np.float32)
    d = (yy[..., None] - pts[:, 0]) ** 2 + (xx[..., None] - pts[:, 1]) ** 2
    return kind[d.argmin(-1)]


class Tiles(Dataset):
    def __init__(self, n, size, seed, augment=True):
        rng = np.random.default_rng(seed)
        self.labels = np.stack([voronoi_labels(size, rng) for _ in range(n)])
        noise = rng.normal(0, 0.08, (n, 4, size, size)).astype(np.float32)
        self.bands = SIGNATURE[self.labels].transpose(0, 3, 1, 2) + noise
        self.labels[rng.random(self.labels.shape) < 0.01] = 255
        self.augment = augment

    def __len__(self):
        return len(self.bands)

    def __getitem__(self, i):
        x, y = torch.from_numpy(self.bands[i]), torch.from_numpy(self.labels[i])
        if self.augment:
            k = int(torch.randint(4, ()))
            x, y = torch.rot90(x, k, (1, 2)), torch.rot90(y, k, (0, 1))
        return x, y


def unit(i, o, stride=1):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class Pyramid(nn.Module):
    def __init__(self, w, d):
        super().__init__()
        self.stem = unit(4, w, 2)
        self.c1 = nn.Sequential(unit(w, w, 2), unit(w, w))
        self.c2 = nn.Sequential(unit(w, 2 * w, 2), unit(2 * w, 2 * w))
        self.c3 = nn.Sequential(unit(2 * w, 4 * w, 2), unit(4 * w, 4 * w))
        self.lateral = nn.ModuleList([nn.Conv2d(c, d, 1) for c in (w, 2 * w, 4 * w)])

    def forward(self, x):
        c1 = self.c1(self.stem(x))
        c2 = self.c2(c1)
        c3 = self.c3(c2)
        p3 = self.lateral[2](c3)
        p2 = self.lateral[1](c2) + F.interpolate(p3, scale_factor=2)
        return self.lateral[0](c1) + F.interpolate(p2, scale_factor=2)


class SegHead(nn.Module):
    def __init__(self, d, n_class, scale):
        super().__init__()
        self.refine = unit(d, d)
        self.up = partial(F.interpolate, scale_factor=scale, mode="bilinear", align_corners=False)
        self.classify = nn.Conv2d(d, n_class, 1)

    def forward(self, p):
        return self.classify(self.up(self.refine(p)))


class LandCoverNet(nn.Module):
    def __init__(self, w=24, d=48):
        super().__init__()
        self.backbone = Pyramid(w, d)
        self.head = SegHead(d, len(CLASSES), 4)

    def forward(self, x):
        return self.head(self.backbone(x))


def confusion(pred, y):
    ok = y != 255
    k = len(CLASSES)
    return torch.bincount(y[ok] * k + pred[ok], minlength=k * k).view(k, k)


@torch.no_grad()
def validate(net, loader):
    net.eval()
    m = sum(confusion(net(x).argmax(1), y) for x, y in loader).double()
    net.train()
    return (m.diag() / (m.sum(0) + m.sum(1) - m.diag()).clamp(min=1)).mean().item()


def endless(loader):
    while True:
        for batch in loader:
            yield batch


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--tile", type=int, default=128)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--val-every", type=int, default=30)
    ap.add_argument("--seed", type=int, default=4)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    train = DataLoader(Tiles(64, args.tile, args.seed), args.batch, shuffle=True, drop_last=True)
    val = DataLoader(Tiles(6, args.tile, args.seed + 1, augment=False), args.batch)
    net = LandCoverNet()
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4 * args.lr, total_steps=args.steps + 1)
    for step, (x, y) in enumerate(endless(train), 1):
        loss = F.cross_entropy(net(x), y, ignore_index=255)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")
        if step % args.val_every == 0:
            print(f"step {step} val mIoU {validate(net, val):.4f}")
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
