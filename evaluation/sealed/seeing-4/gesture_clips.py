#!/usr/bin/env python
"""Hand gesture recognition from low-resolution depth video, one archive per recorded subject."""
import argparse
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

GESTURES = 9


def record_subject(path, subject, clips, frames, size):
    rng = np.random.default_rng(1000 + subject)
    label = rng.integers(0, GESTURES, clips)
    yy, xx = np.mgrid[0:size, 0:size]
    video = np.empty((clips, frames, size, size), np.uint8)
    for i, g in enumerate(label):
        phase = rng.uniform(0, 2 * np.pi)
        for t in range(frames):
            ang = phase + (g - 4) * t / frames
            cx, cy = size / 2 + size / 4 * np.cos(ang), size / 2 + size / 4 * np.sin(ang * (1 + g % 3))
            d = np.exp(-((xx - cx) ** 2 + (yy - cy) ** 2) / (2 * (size / 10) ** 2))
            video[i, t] = np.clip(200 * d + rng.integers(0, 12, (size, size)), 0, 255)
    np.savez_compressed(path, depth=video, gesture=label, hand=rng.integers(0, 2, clips))


class GestureArchive(Dataset):
    def __init__(self, root, subjects, clips=36, frames=12, size=32):
        os.makedirs(root, exist_ok=True)
        self.index, self.archives = [], []
        for s in subjects:
            path = os.path.join(root, f"subject{s:02d}.npz")
            if not os.path.exists(path):
                record_subject(path, s, clips, frames, size)
            archive = np.load(path)
            n = len(archive["gesture"])
            self.index += [(len(self.archives), i) for i in range(n)]
            self.archives.append(archive)

    def __len__(self):
        return len(self.index)

    def __getitem__(self, k):
        a, i = self.index[k]
        archive = self.archives[a]
        clip = archive["depth"][i].astype(np.float32) / 255.0
        if archive["hand"][i] == 1:
            clip = clip[:, :, ::-1].copy()
        return torch.from_numpy(clip), int(archive["gesture"][i])


class FrameNet(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, dim, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.out = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return self.out(self.net(x).flatten(1))


class GestureModel(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.frame = FrameNet(dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.LayerNorm(2 * dim), nn.Linear(2 * dim, GESTURES))

    def forward(self, clips):
        b, t, h, w = clips.shape
        f = self.frame(clips.reshape(b * t, 1, h, w)).view(b, t, -1)
        out, _ = self.rnn(f)
        return self.head(out.mean(1))


class Trainer:
    def __init__(self, args):
        torch.manual_seed(args.seed)
        root = args.data or os.path.join(tempfile.gettempdir(), "gesture_depth_v1")
        self.train = DataLoader(GestureArchive(root, range(8)), args.batch, shuffle=True, drop_last=True)
        self.model = GestureModel()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.args, self.step = args, 0

    def fit(self):
        self.model.train()
        epoch = 0
        while self.step < self.args.steps:
            hits = seen = 0
            for clips, target in self.train:
                logits = self.model(clips)
                loss = F.cross_entropy(logits, target)
                self.opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
                self.opt.step()
                self.step += 1
                hits += (logits.argmax(1) == target).sum().item()
                seen += len(target)
                if self.step % 10 == 0:
                    print(f"epoch {epoch} step {self.step} loss {loss.item():.4f} acc {hits / seen:.3f}", flush=True)
                if self.step >= self.args.steps:
                    return
            epoch += 1


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--data", default=None)
    p.add_argument("--seed", type=int, default=0)
    Trainer(p.parse_args()).fit()
