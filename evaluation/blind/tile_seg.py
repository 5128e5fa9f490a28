"""Land-cover segmentation on synthetic 4-band scenes, trained on random tiles."""
import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

CLASSES = 5
SIGNATURES = np.array([[420, 510, 380, 2600], [900, 1100, 1300, 1900], [300, 420, 250, 180],
                       [1800, 1900, 2000, 2200], [700, 900, 650, 3300]], dtype=np.float32)
BAND_MEAN = np.array([0.09, 0.10, 0.10, 0.21], dtype=np.float32).reshape(4, 1, 1)
BAND_STD = np.array([0.06, 0.06, 0.07, 0.11], dtype=np.float32).reshape(4, 1, 1)


def synth_scene(rng, size):
    coarse = rng.integers(0, CLASSES, size=(size // 16, size // 16))
    mask = np.kron(coarse, np.ones((16, 16), dtype=np.int64)).astype(np.uint8)
    mask = np.roll(mask, rng.integers(0, 16, size=2), axis=(0, 1))
    img = SIGNATURES[mask].transpose(2, 0, 1) * rng.uniform(0.9, 1.1, size=(4, 1, 1))
    img = img + rng.normal(scale=120.0, size=img.shape)
    return np.clip(img, 0, 10000).astype(np.uint16), mask


class ToReflectance:
    def __call__(self, img, mask):
        return img.astype(np.float32) / 10000.0, mask


class GainBias:
    """Per-band sensor gain and offset jitter."""

    def __init__(self, gain=0.15, bias=0.02, seed=0):
        self.gain, self.bias, self.rng = gain, bias, np.random.default_rng(seed)

    def __call__(self, img, mask):
        g = self.rng.uniform(1 - self.gain, 1 + self.gain, size=(4, 1, 1)).astype(np.float32)
        b = self.rng.uniform(-self.bias, self.bias, size=(4, 1, 1)).astype(np.float32)
        return np.clip(img * g + b, 0.0, 1.0), mask


class Gamma:
    def __init__(self, spread=0.2, seed=3):
        self.spread, self.rng = spread, np.random.default_rng(seed)

    def __call__(self, img, mask):
        g = self.rng.uniform(1 - self.spread, 1 + self.spread, size=(4, 1, 1)).astype(np.float32)
        return np.power(img, g), mask


class Standardize:
    def __call__(self, img, mask):
        return (img - BAND_MEAN) / BAND_STD, mask


class RandomTile:
    def __init__(self, size, seed=1):
        self.size, self.rng = size, np.random.default_rng(seed)

    def __call__(self, img, mask):
        y = self.rng.integers(0, img.shape[1] - self.size + 1)
        x = self.rng.integers(0, img.shape[2] - self.size + 1)
        return img[:, y:y + self.size, x:x + self.size], mask[y:y + self.size, x:x + self.size]


class RandomDihedral:
    def __init__(self, seed=2):
        self.rng = np.random.default_rng(seed)

    def __call__(self, img, mask):
        k = int(self.rng.integers(4))
        img, mask = np.rot90(img, k, axes=(1, 2)), np.rot90(mask, k)
        if self.rng.random() < 0.5:
            img, mask = img[:, :, ::-1], mask[:, ::-1]
        return img, mask


class ToTensor:
    def __call__(self, img, mask):
        return torch.from_numpy(np.ascontiguousarray(img)), torch.from_numpy(mask.astype(np.int64))


class SceneDataset(Dataset):
    def __init__(self, n_scenes, scene_size, tiles_per_scene, transforms, seed):
        rng = np.random.default_rng(seed)
        self.scenes = [synth_scene(rng, scene_size) for _ in range(n_scenes)]
        self.tiles_per_scene = tiles_per_scene
        self.transforms = transforms

    def __len__(self):
        return len(self.scenes) * self.tiles_per_scene

    def __getitem__(self, i):
        img, mask = self.scenes[i // self.tiles_per_scene]
        for t in self.transforms:
            img, mask = t(img, mask)
        return img, mask


def conv_block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
                         nn.Conv2d(cout, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class MiniUNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.enc1, self.enc2 = conv_block(4, width), conv_block(width, 2 * width)
        self.mid = conv_block(2 * width, 4 * width)
        self.dec2, self.dec1 = conv_block(6 * width, 2 * width), conv_block(3 * width, width)
        self.out = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x):
        a = self.enc1(x)
        b = self.enc2(F.max_pool2d(a, 2))
        c = self.mid(F.max_pool2d(b, 2))
        b = self.dec2(torch.cat([F.interpolate(c, scale_factor=2.0), b], dim=1))
        a = self.dec1(torch.cat([F.interpolate(b, scale_factor=2.0), a], dim=1))
        return self.out(a)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=30)
    ap.add_argument("--tile", type=int, default=64)
    ap.add_argument("--batch-size", type=int, default=8)
    args = ap.parse_args()
    torch.manual_seed(11)

    transforms = [ToReflectance(), GainBias(), Gamma(), Standardize(), RandomTile(args.tile), RandomDihedral(), ToTensor()]
    data = SceneDataset(n_scenes=16, scene_size=320, tiles_per_scene=64, transforms=transforms, seed=11)
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = MiniUNet()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4, fused=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=args.epochs * len(loader))

    step, t0 = 0, time.time()
    for epoch in range(args.epochs):
        for img, mask in loader:
            logits = model(img)
            loss = F.cross_entropy(logits, mask, label_smoothing=0.05)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            step += 1
            if step % 20 == 0:
                acc = (logits.argmax(1) == mask).float().mean()
                print(f"[{epoch}] {step} loss {loss.item():.4f} acc {acc.item():.3f} {time.time() - t0:.1f}s", flush=True)


if __name__ == "__main__":
    main()
