import argparse
import time
from itertools import chain, repeat

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MEAN = np.array([0.41, 0.43, 0.40], dtype=np.float32)
STD = np.array([0.24, 0.23, 0.25], dtype=np.float32)

def synth_frame(rng, h, w, classes):
    yy, xx = np.mgrid[:h, :w]
    mask = np.zeros((h, w), dtype=np.uint8)
    for c in range(1, classes):
        for _ in range(4):
            cy, cx = rng.integers(0, h), rng.integers(0, w)
            ry, rx = rng.integers(15, 50, 2)
            mask[((yy - cy) / ry) ** 2 + ((xx - cx) / rx) ** 2 < 1] = c
    colours = np.random.default_rng(99).integers(30, 220, (classes, 3))
    image = colours[mask] + rng.normal(0, 20, (h, w, 3))
    return image.clip(0, 255).astype(np.uint8), mask

class Photometric:
    """Gamma, contrast and exposure, then channel normalisation."""
    def __call__(self, image, p):
        x = image.astype(np.float32) / 255.0
        x = np.power(x, np.float32(p["gamma"]))
        x = np.clip((x - 0.5) * np.float32(p["contrast"]) + np.float32(0.5 + p["exposure"]), 0, 1)
        return (x - MEAN) / STD

class Crop:
    def __init__(self, size):
        self.size = size

    def __call__(self, image, p):
        y, x = p["origin"]
        return image[y:y + self.size, x:x + self.size]

class StreetScenes(Dataset):
    def __init__(self, count=32, h=288, w=448, classes=6, crop=96, crop_first=False):
        rng = np.random.default_rng(3)
        self.frames = [synth_frame(rng, h, w, classes) for _ in range(count)]
        self.rng = np.random.default_rng(11)
        self.h, self.w, self.size = h, w, crop
        self.crop, self.photo = Crop(crop), Photometric()
        self.image_ops = [self.crop, self.photo] if crop_first else [self.photo, self.crop]

    def __len__(self):
        return len(self.frames)

    def draw(self):
        r = self.rng
        return {
            "gamma": r.uniform(0.7, 1.4), "contrast": r.uniform(0.8, 1.25), "exposure": r.uniform(-0.1, 0.1),
            "flip": r.random() < 0.5,
            "origin": (r.integers(0, self.h - self.size), r.integers(0, self.w - self.size)),
        }

    def __getitem__(self, i):
        image, mask = self.frames[i]
        p = self.draw()
        for op in self.image_ops:
            image = op(image, p)
        mask = self.crop(mask, p)
        if p["flip"]:
            image, mask = image[:, ::-1], mask[:, ::-1]
        image = np.ascontiguousarray(image.transpose(2, 0, 1))
        return torch.from_numpy(image), torch.from_numpy(mask.astype(np.int64))

def conv(i, o, stride=1):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))

class SmallUNet(nn.Module):
    def __init__(self, classes=6, w=12):
        super().__init__()
        self.enc = nn.ModuleList([conv(3, w, 2), conv(w, 2 * w, 2), conv(2 * w, 4 * w, 2)])
        self.mid = conv(4 * w, 4 * w)
        self.dec = nn.ModuleList([conv(6 * w, 2 * w), conv(3 * w, w)])
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.out = nn.Conv2d(w, classes, 1)

    def forward(self, x):
        skips = []
        for layer in self.enc:
            x = layer(x)
            skips.append(x)
        x = self.mid(x)
        for layer, skip in zip(self.dec, (skips[1], skips[0])):
            x = layer(torch.cat([self.up(x), skip], 1))
        return self.up(self.out(x))

class Trainer:
    def __init__(self, args):
        torch.manual_seed(0)
        self.args = args
        self.loader = DataLoader(StreetScenes(crop_first=args.fixed), batch_size=4, shuffle=True)
        self.model = SmallUNet()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.criterion = nn.CrossEntropyLoss()

    def run(self):
        start = time.perf_counter()
        for step, (image, mask) in zip(range(1, self.args.steps + 1), chain.from_iterable(repeat(self.loader))):
            loss = self.criterion(self.model(image), mask)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
            if step % 50 == 0:
                print(f"{step:5d}  loss={loss.item():.5f}")
            if step == 10:
                start = time.perf_counter()
        print(f"step_ms={(time.perf_counter() - start) * 1e3 / max(1, self.args.steps - 10):.2f}")

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--fixed", action="store_true")
    Trainer(parser.parse_args()).run()
