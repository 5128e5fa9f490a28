import argparse
import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, DataLoader


@dataclass
class Config:
    steps: int = 60
    batch: int = 3
    tile: int = 160
    classes: int = 9
    width: int = 24
    dec: int = 64
    lr: float = 0.02
    seed: int = 3


class FieldTiles(Dataset):
    """4-band aerial tiles of agricultural parcels (NIR + RGB), Voronoi-shaped."""

    def __init__(self, cfg, count=48):
        rng = np.random.default_rng(cfg.seed)
        s = cfg.tile
        yy, xx = np.mgrid[0:s, 0:s].astype(np.float32)
        spectra = rng.normal(0.0, 1.0, (cfg.classes, 4)).astype(np.float32)
        self.images = np.empty((count, 4, s, s), np.float32)
        self.masks = np.empty((count, s, s), np.uint8)
        for k in range(count):
            pts = rng.uniform(0, s, (14, 2)).astype(np.float32)
            owner = ((yy[None] - pts[:, 0, None, None]) ** 2
                     + (xx[None] - pts[:, 1, None, None]) ** 2).argmin(0)
            crop = rng.integers(0, cfg.classes, 14)
            mask = crop[owner]
            self.masks[k] = mask
            self.images[k] = spectra[mask].transpose(2, 0, 1)
        self.images += rng.normal(0, 0.6, self.images.shape).astype(np.float32)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        img, mask = torch.from_numpy(self.images[i]), torch.from_numpy(self.masks[i])
        if random.random() < 0.5:
            img, mask = img.flip(-1), mask.flip(-1)
        k = random.randrange(4)
        return torch.rot90(img, k, (-2, -1)), torch.rot90(mask, k, (-2, -1)).long()


class Unit(nn.Sequential):
    def __init__(self, i, o, stride=1, dilation=1):
        super().__init__(
            nn.Conv2d(i, o, 3, stride, dilation, dilation, bias=False),
            nn.BatchNorm2d(o),
            nn.ReLU(inplace=True))


class Encoder(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.s1 = nn.Sequential(Unit(4, w, 2), Unit(w, w, 2))
        self.s2 = nn.Sequential(Unit(w, 2 * w, 2), Unit(2 * w, 2 * w))
        self.s3 = nn.Sequential(Unit(2 * w, 4 * w, 2), Unit(4 * w, 4 * w, dilation=2))
        self.channels = (w, 2 * w, 4 * w)

    def forward(self, x):
        a = self.s1(x)
        b = self.s2(a)
        return a, b, self.s3(b)


class PyramidDecoder(nn.Module):
    def __init__(self, channels, dim):
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(c, dim, 1) for c in channels)
        self.smooth = Unit(dim, dim)

    def forward(self, feats):
        y = None
        for lat, f in zip(reversed(self.lateral), reversed(feats)):
            z = lat(f)
            y = z if y is None else z + F.interpolate(y, size=z.shape[-2:], mode="nearest")
        return self.smooth(y)


class ParcelNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.encoder = Encoder(cfg.width)
        self.decoder = PyramidDecoder(self.encoder.channels, cfg.dec)
        self.classifier = nn.Conv2d(cfg.dec, cfg.classes, 1)

    def forward(self, x):
        y = self.decoder(self.encoder(x))
        y = F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)
        return self.classifier(y)


def dice_term(logits, mask):
    p = logits.softmax(1).flatten(2)
    onehot = F.one_hot(mask, logits.shape[1]).permute(0, 3, 1, 2).flatten(2).to(p.dtype)
    inter = (p * onehot).sum(-1)
    return 1 - ((2 * inter + 1) / (p.sum(-1) + onehot.sum(-1) + 1)).mean()


def poly_lr(opt, base, step, total, power=0.9):
    lr = base * (1 - step / total) ** power
    for g in opt.param_groups:
        g["lr"] = lr
    return lr


def run(cfg):
    random.seed(cfg.seed)
    np.random.seed(cfg.seed)
    torch.manual_seed(cfg.seed)
    loader = DataLoader(FieldTiles(cfg), cfg.batch, shuffle=True, drop_last=True)
    net = ParcelNet(cfg)
    opt = torch.optim.SGD(net.parameters(), lr=cfg.lr, momentum=0.9, weight_decay=1e-4)

    step, epoch = 0, 0
    while step < cfg.steps:
        epoch += 1
        for img, mask in loader:
            lr = poly_lr(opt, cfg.lr, step, cfg.steps + 1)
            logits = net(img)
            ce = F.cross_entropy(logits, mask)
            dice = dice_term(logits, mask)
            loss = ce + 0.5 * dice
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 10 == 0:
                with torch.no_grad():
                    acc = (logits.argmax(1) == mask).float().mean().item()
                print(f"[{epoch}:{step}] ce={ce.item():.4f} dice={dice.item():.4f} acc={acc:.3f} lr={lr:.4f}", flush=True)
            if step >= cfg.steps:
                break


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=Config.steps)
    ap.add_argument("--batch", type=int, default=Config.batch)
    ap.add_argument("--seed", type=int, default=Config.seed)
    ns = ap.parse_args()
    run(Config(steps=ns.steps, batch=ns.batch, seed=ns.seed))
