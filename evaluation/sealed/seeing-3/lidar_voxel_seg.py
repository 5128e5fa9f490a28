#!/usr/bin/env python
"""Voxel-pooled point segmentation on synthetic street scans."""
import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = ["ground", "facade", "pole", "vehicle", "clutter"]


def make_scan(rng, n):
    """One sweep: xyz + intensity, and a class per return."""
    frac = rng.dirichlet([9, 6, 1, 3, 1])
    cls = rng.choice(5, size=n, p=frac)
    xyz = np.empty((n, 3), np.float32)
    xyz[:, :2] = rng.normal(0, 14, (n, 2))
    xyz[:, 2] = rng.normal(0, 0.05, n)
    m = cls == 1
    xyz[m, 0] = rng.choice([-9.0, 9.0], m.sum()) + rng.normal(0, 0.1, m.sum())
    xyz[m, 2] = rng.uniform(0, 8, m.sum())
    m = cls == 2
    centres = rng.normal(0, 12, (6, 2))
    xyz[m, :2] = centres[rng.integers(0, 6, m.sum())] + rng.normal(0, 0.08, (m.sum(), 2))
    xyz[m, 2] = rng.uniform(0, 5, m.sum())
    m = cls == 3
    centres = rng.normal(0, 8, (4, 2))
    xyz[m, :2] = centres[rng.integers(0, 4, m.sum())] + rng.uniform(-2, 2, (m.sum(), 2))
    xyz[m, 2] = rng.uniform(0.2, 1.7, m.sum())
    m = cls == 4
    xyz[m, 2] = np.abs(rng.normal(0, 1.5, m.sum()))
    inten = (0.2 * cls + rng.normal(0, 0.2, n)).astype(np.float32)
    return np.c_[xyz, inten].astype(np.float32), cls.astype(np.int64)


class Scans(Dataset):
    def __init__(self, n_scans, n_points, voxel=0.4, seed=0):
        rng = np.random.default_rng(seed)
        self.items = [make_scan(rng, n_points) for _ in range(n_scans)]
        self.voxel = voxel
        self.rng = np.random.default_rng(seed + 1)

    def __len__(self):
        return len(self.items)

    def augment(self, pts):
        a = self.rng.uniform(0, 2 * np.pi)
        rot = np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]], np.float32)
        pts = pts.copy()
        pts[:, :2] = pts[:, :2] @ rot.T * self.rng.uniform(0.95, 1.05)
        return pts

    def __getitem__(self, i):
        pts, cls = self.items[i]
        pts = self.augment(pts)
        grid = np.floor(pts[:, :3] / self.voxel).astype(np.int64)
        grid -= grid.min(0)
        cells, inverse = np.unique(grid, axis=0, return_inverse=True)
        inverse = inverse.reshape(-1)
        offset = pts[:, :3] - (grid + 0.5) * self.voxel - (pts[:, :3].min(0) // self.voxel) * self.voxel
        feat = np.c_[pts, offset].astype(np.float32)
        return feat, inverse.astype(np.int64), len(cells), cls


def collate(batch):
    feats, inv, cls, base = [], [], [], 0
    for f, v, n, c in batch:
        feats.append(torch.from_numpy(f))
        inv.append(torch.from_numpy(v) + base)
        cls.append(torch.from_numpy(c))
        base += n
    return torch.cat(feats), torch.cat(inv), base, torch.cat(cls)


class VoxelMix(nn.Module):
    """Point MLP, mean over the voxel, and back to the points."""

    def __init__(self, d_in, d_out):
        super().__init__()
        self.point = nn.Sequential(nn.Linear(d_in, d_out), nn.LayerNorm(d_out), nn.ReLU())
        self.cell = nn.Sequential(nn.Linear(d_out, d_out), nn.ReLU())

    def forward(self, x, inv, n, count):
        h = self.point(x)
        pooled = h.new_zeros(n, h.shape[1]).index_add(0, inv, h) / count
        return torch.cat([h, self.cell(pooled)[inv]], 1)


class SegNet(nn.Module):
    def __init__(self, width=32, n_cls=5):
        super().__init__()
        self.m1 = VoxelMix(7, width)
        self.m2 = VoxelMix(2 * width, width)
        self.head = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, n_cls))

    def forward(self, x, inv, n):
        count = torch.bincount(inv, minlength=n).clamp(min=1).unsqueeze(1).to(x.dtype)
        return self.head(self.m2(self.m1(x, inv, n, count), inv, n, count))


def iou(logits, target):
    pred = logits.argmax(1)
    conf = torch.bincount(target * 5 + pred, minlength=25).view(5, 5).double()
    return (conf.diag() / (conf.sum(0) + conf.sum(1) - conf.diag()).clamp(min=1)).mean().item()


def main(opts):
    torch.manual_seed(opts.seed)
    data = Scans(24, opts.points, seed=opts.seed)
    loader = DataLoader(data, batch_size=opts.batch, shuffle=True, collate_fn=collate, drop_last=True)
    net = SegNet()
    optim = torch.optim.Adam(net.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(optim, 1e-2, total_steps=opts.steps + 1)
    weight = torch.tensor([0.5, 0.7, 2.0, 1.0, 2.0])
    step = 0
    while step < opts.steps:
        for feat, inv, n, cls in loader:
            logits = net(feat, inv, n)
            loss = nn.functional.cross_entropy(logits, cls, weight=weight)
            optim.zero_grad()
            loss.backward()
            optim.step()
            sched.step()
            step += 1
            if step % 10 == 0:
                print(f"[{step}] loss {loss.item():.4f} miou {iou(logits.detach(), cls):.3f} voxels {n}")
            if step >= opts.steps:
                break


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=3)
    p.add_argument("--points", type=int, default=12000)
    p.add_argument("--seed", type=int, default=3)
    main(p.parse_args())
