"""Temporal action localisation on short untrimmed clips.

Frame encoder (2-D CNN) -> windowed temporal transformer -> per-window class / offset heads.
"""
import argparse
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch-size", type=int, default=4)
    p.add_argument("--frames", type=int, default=28)
    p.add_argument("--window", type=int, default=8)
    p.add_argument("--stride", type=int, default=4)
    p.add_argument("--size", type=int, default=40)
    p.add_argument("--classes", type=int, default=6)
    p.add_argument("--lr", type=float, default=4e-4)
    p.add_argument("--seed", type=int, default=11)
    p.add_argument("--log-every", type=int, default=10)
    return p.parse_args()


class UntrimmedClips(Dataset):
    """uint8 clips kept in memory; one moving blob = one action, direction = class."""

    def __init__(self, n, frames, size, classes, seed):
        rng = np.random.default_rng(seed)
        self.clips = rng.integers(0, 60, size=(n, frames, 3, size, size), dtype=np.uint8)
        self.labels = rng.integers(0, classes, size=n)
        self.spans = np.zeros((n, 2), dtype=np.float32)
        for i in range(n):
            start = int(rng.integers(0, frames // 2))
            length = int(rng.integers(6, frames // 2))
            ang = 2 * math.pi * self.labels[i] / classes
            cx, cy = size / 2, size / 2
            for t in range(start, min(start + length, frames)):
                k = t - start
                x = int(cx + k * math.cos(ang)) % (size - 6)
                y = int(cy + k * math.sin(ang)) % (size - 6)
                self.clips[i, t, self.labels[i] % 3, y:y + 6, x:x + 6] = 230
            self.spans[i] = start, min(start + length, frames)

    def __len__(self):
        return len(self.clips)

    def __getitem__(self, i):
        clip = torch.from_numpy(self.clips[i])
        if torch.rand(()) < 0.5:
            clip = clip + torch.randint(0, 20, (1, 3, 1, 1), dtype=torch.uint8)
        return clip, int(self.labels[i]), torch.from_numpy(self.spans[i])


def conv_gn(cin, cout, stride=1):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, stride, 1, bias=False),
        nn.GroupNorm(8, cout),
        nn.ReLU(inplace=True),
    )


class FrameEncoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.body = nn.Sequential(
            conv_gn(3, 24, 2), conv_gn(24, 48, 2), conv_gn(48, 64), conv_gn(64, 96, 2))
        self.proj = nn.Linear(96, dim)

    def forward(self, x):
        return self.proj(self.body(x).mean((2, 3)))


class WindowLocaliser(nn.Module):
    def __init__(self, window, stride, classes, dim=128):
        super().__init__()
        self.window, self.stride = window, stride
        self.encoder = FrameEncoder(dim)
        self.pos = nn.Parameter(torch.randn(1, window, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, 4, dim * 2, dropout=0.0, batch_first=True, norm_first=True)
        self.temporal = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.cls_head = nn.Linear(dim, classes + 1)
        self.reg_head = nn.Linear(dim, 2)

    def forward(self, frames):
        b, _, c, h, w = frames.shape
        frames = (frames.float() - 30.0) / 64.0
        clips = frames.unfold(1, self.window, self.stride)          # b n c h w l
        n = clips.shape[1]
        clips = clips.permute(0, 1, 5, 2, 3, 4).reshape(-1, c, h, w)
        feats = self.encoder(clips).view(b * n, self.window, -1)
        feats = self.temporal(feats + self.pos).mean(1)
        return self.cls_head(feats).view(b, n, -1), self.reg_head(feats).view(b, n, 2)


def window_targets(labels, spans, n, window, stride, background):
    starts = torch.arange(n, dtype=torch.float32) * stride
    ends = starts + window
    inter = (torch.minimum(ends, spans[:, 1:]) - torch.maximum(starts, spans[:, :1])).clamp(min=0)
    frac = inter / torch.minimum(torch.full_like(inter, window), (spans[:, 1:] - spans[:, :1]))
    pos = frac > 0.5
    cls = torch.where(pos, labels[:, None], torch.full_like(labels[:, None], background))
    off = torch.stack([spans[:, :1] - starts, spans[:, 1:] - ends], -1) / window
    return cls, off, pos


def cycle(loader):
    while True:
        yield from loader


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    data = UntrimmedClips(160, args.frames, args.size, args.classes, args.seed)
    batches = cycle(DataLoader(data, args.batch_size, shuffle=True, drop_last=True))

    model = WindowLocaliser(args.window, args.stride, args.classes)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.02)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.steps + 1, pct_start=0.2)

    running = 0.0
    for step in range(1, args.steps + 1):
        clip, label, span = next(batches)
        cls_logits, offsets = model(clip)
        tgt_cls, tgt_off, pos = window_targets(
            label, span, cls_logits.shape[1], args.window, args.stride, args.classes)
        loss_cls = F.cross_entropy(cls_logits.flatten(0, 1), tgt_cls.flatten())
        reg = F.smooth_l1_loss(offsets, tgt_off, reduction="none").mean(-1)
        loss_reg = (reg * pos).sum() / pos.sum().clamp(min=1)
        loss = loss_cls + 0.5 * loss_reg

        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        running += loss.item()
        if step % args.log_every == 0:
            print(f"step {step:4d} loss {running / args.log_every:.4f} "
                  f"cls {loss_cls.item():.4f} reg {loss_reg.item():.4f}", flush=True)
            running = 0.0


if __name__ == "__main__":
    main()
