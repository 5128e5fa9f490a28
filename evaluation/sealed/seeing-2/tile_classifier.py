"""Land-cover classification of compressed multispectral tiles."""
import argparse
import zlib

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler


class CompressedTiles(Dataset):
    """Tiles stay zlib-compressed in memory (as shipped in the shards) and are decoded on access."""

    def __init__(self, n, bands, size, classes, seed):
        rng = np.random.default_rng(seed)
        self.shape = (bands, size, size)
        self.labels = rng.integers(0, classes, n)
        spectra = rng.integers(200, 3000, (classes, bands, 1, 1))
        self.blobs = []
        for y in self.labels:
            img = spectra[y] + 40 * rng.integers(-6, 7, (bands, size // 4, size // 4)).repeat(4, 1).repeat(4, 2)
            self.blobs.append(zlib.compress(img.astype(np.int16).tobytes(), 1))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        img = np.frombuffer(zlib.decompress(self.blobs[i]), np.int16).reshape(self.shape)
        img = np.log1p(img.astype(np.float32).clip(0)) - 6.5
        lo, hi = np.quantile(img, (0.02, 0.98), axis=(1, 2), keepdims=True)
        img = (img - lo) / (hi - lo + 1.0) + lo * 0.5
        return torch.from_numpy(img.astype(np.float32)), int(self.labels[i])


class DepthwiseBlock(nn.Module):
    def __init__(self, ch, expand):
        super().__init__()
        self.dw = nn.Conv2d(ch, ch, 5, padding=2, groups=ch)
        self.norm = nn.GroupNorm(1, ch)
        self.up = nn.Conv2d(ch, expand * ch, 1)
        self.down = nn.Conv2d(expand * ch, ch, 1)
        self.gamma = nn.Parameter(1e-2 * torch.ones(ch, 1, 1))

    def forward(self, x):
        return x + self.gamma * self.down(F.gelu(self.up(self.norm(self.dw(x)))))


class TileNet(nn.Module):
    def __init__(self, bands, classes, widths=(32, 64, 96), depth=1):
        super().__init__()
        layers, cin = [], bands
        for k, w in enumerate(widths):
            layers.append(nn.Conv2d(cin, w, 4 if k == 0 else 2, 4 if k == 0 else 2))
            layers += [DepthwiseBlock(w, 3) for _ in range(depth)]
            cin = w
        self.body = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.LayerNorm(cin), nn.Linear(cin, classes))

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def dihedral(x):
    k = int(torch.randint(0, 4, ()))
    x = torch.rot90(x, k, (2, 3))
    return x.flip(3) if torch.rand(()) < 0.5 else x


def make_loader(args):
    data = CompressedTiles(args.tiles, args.bands, args.size, args.classes, args.seed)
    order = RandomSampler(data, generator=torch.Generator().manual_seed(args.seed))
    return DataLoader(data, args.batch, sampler=order, drop_last=True, generator=torch.Generator(),
                      num_workers=args.workers, prefetch_factor=2)


class Fitter:
    def __init__(self, args):
        self.args = args
        self.loader = make_loader(args)
        self.model = TileNet(args.bands, args.classes)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr, weight_decay=0.05)
        self.step = 0

    def set_lr(self):
        warm, total = 10, self.args.steps
        s = self.step
        f = (s + 1) / warm if s < warm else 0.5 * (1 + np.cos(np.pi * (s - warm) / max(1, total - warm)))
        for g in self.opt.param_groups:
            g["lr"] = self.args.lr * f

    def train_batch(self, x, y):
        self.set_lr()
        logits = self.model(dihedral(x))
        loss = F.cross_entropy(logits, y, label_smoothing=0.1)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        self.step += 1
        return loss.item(), (logits.argmax(1) == y).float().mean().item()

    def epoch(self, number):
        losses, accs = [], []
        for x, y in self.loader:
            l, a = self.train_batch(x, y)
            losses.append(l)
            accs.append(a)
            if self.step >= self.args.steps:
                break
        print(f"epoch {number:2d} step {self.step:3d} loss {np.mean(losses):.4f} acc {np.mean(accs):.3f}", flush=True)

    def run(self):
        number = 0
        while self.step < self.args.steps:
            number += 1
            self.epoch(number)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--tiles", type=int, default=120)
    ap.add_argument("--bands", type=int, default=6)
    ap.add_argument("--size", type=int, default=64)
    ap.add_argument("--classes", type=int, default=8)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=50)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    Fitter(args).run()


if __name__ == "__main__":
    main()
