"""Monocular depth from driving frames (synthetic stand-in for the recorded set)."""
import argparse
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

FRAME_H, FRAME_W = 188, 621
CROP_H, CROP_W = 96, 128
MAX_DEPTH = 80.0


class RoadFrames(Dataset):
    """uint8 frames and uint16 depth (metres * 256) kept decoded in memory."""

    def __init__(self, frames, length, crop_first):
        rng = np.random.default_rng(0)
        rows = np.linspace(0, 1, FRAME_H)[:, None, None]
        noise = rng.integers(0, 60, (frames, FRAME_H, FRAME_W, 3))
        self.frames = (noise + 190 * rows).astype(np.uint8)
        depth = MAX_DEPTH * (1.05 - rows[..., 0]) * rng.uniform(0.6, 0.95, (frames, 1, 1))
        self.depth = np.broadcast_to(depth * 256, (frames, FRAME_H, FRAME_W)).astype(np.uint16)
        self.length = length
        self.crop_first = crop_first

    def __len__(self):
        return self.length

    def photometric(self, image, rng):
        image = image.astype(np.float32) / 255.0
        gamma = np.float32(rng.uniform(0.9, 1.1))
        gain = rng.uniform(0.75, 1.25, 3).astype(np.float32)
        return np.clip(image ** gamma * gain, 0.0, 1.0)

    def crop(self, array, top, left):
        return array[top:top + CROP_H, left:left + CROP_W]

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        image = self.frames[index % len(self.frames)]
        depth = self.depth[index % len(self.depth)]
        top = rng.integers(0, FRAME_H - CROP_H)
        left = rng.integers(0, FRAME_W - CROP_W)
        flip = rng.random() < 0.5
        if self.crop_first:
            image = self.photometric(self.crop(image, top, left), rng)
        else:
            image = self.crop(self.photometric(image, rng), top, left)
        depth = self.crop(depth, top, left).astype(np.float32) / 256.0
        if flip:
            image, depth = image[:, ::-1], depth[:, ::-1]
        image = np.ascontiguousarray(image.transpose(2, 0, 1))
        return torch.from_numpy(image), torch.from_numpy(np.ascontiguousarray(depth))


def block(cin, cout, stride):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class DepthNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc1 = block(3, 16, 2)
        self.enc2 = block(16, 32, 2)
        self.enc3 = block(32, 64, 2)
        self.dec2 = block(64 + 32, 32, 1)
        self.head = nn.Conv2d(32, 16, 1)
        self.shuffle = nn.PixelShuffle(4)

    def forward(self, x):
        e2 = self.enc2(self.enc1(x))
        e3 = self.enc3(e2)
        up = nn.functional.interpolate(e3, scale_factor=2, mode="nearest")
        logits = self.shuffle(self.head(self.dec2(torch.cat([up, e2], 1))))
        return MAX_DEPTH * torch.sigmoid(logits).squeeze(1) + 1e-3


def silog(pred, target, lam=0.85):
    diff = pred.log() - target.clamp_min(1e-3).log()
    return 10 * torch.sqrt((diff ** 2).mean() - lam * diff.mean() ** 2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    frames = RoadFrames(24, args.steps * 4, args.fixed)
    loader = DataLoader(frames, batch_size=4, shuffle=True, drop_last=True)
    net = DepthNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    started = time.process_time()
    for step, (image, depth) in enumerate(loader, 1):
        loss = silog(net(image), depth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"iter {step}  silog {loss.item():.4f}")
        if step == 10:
            started = time.process_time()
    print(f"step_ms={(time.process_time() - started) * 1000 / max(1, args.steps - 10):.2f}")


if __name__ == "__main__":
    main()
