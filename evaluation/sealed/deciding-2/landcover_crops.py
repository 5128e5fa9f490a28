"""Land-cover segmentation from multispectral scenes kept as .npy files (one pair per scene)."""
import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset

BANDS, CLASSES = 6, 5


def synth_scene(rng, side):
    yy, xx = np.mgrid[0:side, 0:side] / side
    cover = np.zeros((side, side))
    for _ in range(4):
        fx, fy, ph = rng.uniform(2, 12, 2).tolist() + [rng.uniform(0, 6.28)]
        cover += np.sin(6.28 * (fx * xx + fy * yy) + ph)
    label = np.digitize(cover, [-1.2, -0.4, 0.4, 1.2]).astype(np.uint8)
    spectra = rng.uniform(500, 6000, (CLASSES, BANDS))
    image = spectra[label].transpose(2, 0, 1) + rng.normal(0, 400, (BANDS, side, side))
    return image.clip(0, 10000).astype(np.uint16), label


def prepare_scenes(root, n, side, seed):
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    names = []
    for i in range(n):
        img_path, lab_path = root / f"s{i:03d}_img.npy", root / f"s{i:03d}_lab.npy"
        if not lab_path.exists():
            image, label = synth_scene(rng, side)
            np.save(img_path, image)
            np.save(lab_path, label)
        names.append((img_path, lab_path))
    return names


class CropStream(IterableDataset):
    def __init__(self, scenes, side, crop, seed):
        self.scenes, self.side, self.crop, self.seed = scenes, side, crop, seed

    def read_window(self, scene, top, left):
        img_path, lab_path = self.scenes[scene]
        win = slice(top, top + self.crop), slice(left, left + self.crop)
        image = np.load(img_path)[(slice(None), *win)]
        label = np.load(lab_path)[win]
        return image, label

    def __iter__(self):
        rng = np.random.default_rng(self.seed)
        limit = self.side - self.crop
        while True:
            scene = int(rng.integers(len(self.scenes)))
            top, left = rng.integers(0, limit, size=2)
            image, label = self.read_window(scene, top, left)
            x = image.astype(np.float32) / 10000.0
            y = label.astype(np.int64)
            if rng.random() < 0.5:
                x, y = x[:, :, ::-1].copy(), y[:, ::-1].copy()
            yield torch.from_numpy(x), torch.from_numpy(y)


class DoubleConv(nn.Sequential):
    def __init__(self, cin, cout):
        super().__init__(nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(),
                         nn.Conv2d(cout, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU())


class SmallUNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.d1, self.d2 = DoubleConv(BANDS, width), DoubleConv(width, width * 2)
        self.mid = DoubleConv(width * 2, width * 4)
        self.u2 = DoubleConv(width * 6, width * 2)
        self.u1 = DoubleConv(width * 3, width)
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        m = self.mid(F.max_pool2d(b, 2))
        u = self.u2(torch.cat([F.interpolate(m, scale_factor=2.0), b], 1))
        u = self.u1(torch.cat([F.interpolate(u, scale_factor=2.0), a], 1))
        return self.head(u)


def mean_iou(pred, target):
    conf = torch.bincount(target.flatten() * CLASSES + pred.flatten(), minlength=CLASSES ** 2)
    conf = conf.view(CLASSES, CLASSES).float()
    inter = conf.diagonal()
    return (inter / (conf.sum(0) + conf.sum(1) - inter).clamp(min=1)).mean().item()


def train(args, folder):
    torch.manual_seed(args.seed)
    scenes = prepare_scenes(Path(folder), args.scenes, args.side, args.seed)
    stream = CropStream(scenes, args.side, args.crop, args.seed)
    loader = iter(DataLoader(stream, batch_size=args.batch))
    net = SmallUNet()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, fused=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=args.steps + 1)
    for step in range(args.steps):
        x, y = next(loader)
        logits = net(x)
        loss = F.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 10 == 9:
            print(f"step {step + 1:4d} ce {loss.item():.5f} miou {mean_iou(logits.argmax(1), y):.3f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--scenes", type=int, default=4)
    ap.add_argument("--side", type=int, default=1024)
    ap.add_argument("--crop", type=int, default=48)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--seed", type=int, default=9)
    ap.add_argument("--data", default=None)
    args = ap.parse_args()
    if args.data:
        os.makedirs(args.data, exist_ok=True)
        train(args, args.data)
    else:
        with tempfile.TemporaryDirectory() as tmp:
            train(args, tmp)
