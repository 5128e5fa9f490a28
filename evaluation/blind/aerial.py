"""Land-cover segmentation on aerial tiles (toy version of the real pipeline)."""
from dataclasses import dataclass
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler


@dataclass
class Config:
    steps: int = 150
    batch_size: int = 8
    tile: int = 384
    crop: int = 96
    n_tiles: int = 24
    classes: int = 5
    width: int = 24
    lr: float = 2e-3
    seed: int = 7


def make_tiles(cfg):
    """Voronoi-ish fields, each class has its own colour and texture."""
    rng = np.random.default_rng(cfg.seed)
    palette = rng.uniform(40, 215, size=(cfg.classes, 3))
    yy, xx = np.mgrid[: cfg.tile, : cfg.tile]
    tiles = []
    for _ in range(cfg.n_tiles):
        centers = rng.uniform(0, cfg.tile, size=(25, 2))
        labels = rng.integers(0, cfg.classes, size=25)
        d = (yy[..., None] - centers[:, 0]) ** 2 + (xx[..., None] - centers[:, 1]) ** 2
        mask = labels[d.argmin(-1)]
        img = palette[mask] + rng.normal(0, 18, size=(cfg.tile, cfg.tile, 3))
        tiles.append((img.clip(0, 255).astype(np.uint8), mask.astype(np.int64)))
    return tiles


class AerialDataset(Dataset):
    mean = np.array([0.45, 0.46, 0.42], dtype=np.float32)
    std = np.array([0.22, 0.21, 0.21], dtype=np.float32)

    def __init__(self, tiles, crop):
        self.tiles = tiles
        self.crop = crop

    def __len__(self):
        return len(self.tiles)

    def photometric(self, img, gamma, gain, mix):
        x = img.astype(np.float32) / 255.0
        x = np.power(x, np.float32(gamma))
        x = x @ mix.T                       # cross-channel colour shift
        x = (x - 0.5) * np.float32(gain) + 0.5
        np.clip(x, 0.0, 1.0, out=x)
        return (x - self.mean) / self.std

    def __getitem__(self, i):
        img, mask = self.tiles[i]
        gamma = random.uniform(0.75, 1.3)
        gain = random.uniform(0.8, 1.2)
        mix = np.eye(3, dtype=np.float32) + np.array(
            [[random.uniform(-0.06, 0.06) for _ in range(3)] for _ in range(3)], dtype=np.float32)
        img = self.photometric(img, gamma, gain, mix)

        # dihedral augmentation
        k = random.randrange(4)
        img, mask = np.rot90(img, k), np.rot90(mask, k)
        if random.random() < 0.5:
            img, mask = img[:, ::-1], mask[:, ::-1]

        h, w = mask.shape
        top = random.randint(0, h - self.crop)
        left = random.randint(0, w - self.crop)
        img = img[top: top + self.crop, left: left + self.crop]
        mask = mask[top: top + self.crop, left: left + self.crop]
        img = torch.from_numpy(np.ascontiguousarray(img.transpose(2, 0, 1)))
        return img, torch.from_numpy(np.ascontiguousarray(mask))


def conv_block(cin, cout, stride=1):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


class TinyUNet(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.stem = conv_block(3, width, stride=2)
        self.down1 = conv_block(width, width * 2, stride=2)
        self.down2 = conv_block(width * 2, width * 4, stride=2)
        self.mid = conv_block(width * 4, width * 2)
        self.up1 = conv_block(width * 4, width)
        self.up2 = conv_block(width * 2, width)
        self.head = nn.Conv2d(width, classes, 1)

    @staticmethod
    def _up(x):
        return F.interpolate(x, scale_factor=2, mode="nearest")

    def forward(self, x):
        s = self.stem(x)
        d1 = self.down1(s)
        d2 = self.mid(self.down2(d1))
        u = self.up1(torch.cat([self._up(d2), d1], 1))
        u = self.up2(torch.cat([self._up(u), s], 1))
        return self._up(self.head(u))


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        torch.manual_seed(cfg.seed)
        random.seed(cfg.seed)
        dataset = AerialDataset(make_tiles(cfg), cfg.crop)
        sampler = RandomSampler(dataset, replacement=True, num_samples=cfg.steps * cfg.batch_size)
        self.loader = DataLoader(dataset, batch_size=cfg.batch_size, sampler=sampler)
        self.model = TinyUNet(cfg.width, cfg.classes).to(memory_format=torch.channels_last)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, fused=True)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, cfg.steps)
        self.history = []

    def train_step(self, img, mask):
        img = img.contiguous(memory_format=torch.channels_last)
        logits = self.model(img)
        loss = F.cross_entropy(logits, mask)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.sched.step()
        return loss.detach(), logits.detach()

    def fit(self):
        t0 = time.time()
        for step, (img, mask) in enumerate(self.loader, 1):
            loss, logits = self.train_step(img, mask)
            self.history.append(loss)
            if step % 25 == 0:
                acc = (logits.argmax(1) == mask).float().mean().item()
                avg = torch.stack(self.history[-25:]).mean().item()
                print(f"[{step:4d}/{self.cfg.steps}] loss {avg:.4f} pixel-acc {acc:.3f} ({time.time() - t0:.1f}s)")


if __name__ == "__main__":
    Trainer(Config()).fit()
