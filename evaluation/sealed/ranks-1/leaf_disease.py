"""Leaf-disease classification at several image scales, data parallel."""
import argparse
import random
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

DISEASES = 6
NATIVE = 128


class LeafPhotos(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        y, x = np.mgrid[-1:1:NATIVE * 1j, -1:1:NATIVE * 1j]
        leaf = ((x / 0.7) ** 2 + (y / 0.9) ** 2 < 1).astype(np.float32)
        self.labels = rng.integers(0, DISEASES, n)
        self.images = np.empty((n, 3, NATIVE, NATIVE), dtype=np.uint8)
        for i, k in enumerate(self.labels):
            tint = np.array([0.25, 0.6, 0.2])[:, None, None] + 0.05 * rng.standard_normal((3, 1, 1))
            img = tint * leaf + 0.1
            for _ in range(int(k) * 3):
                cy, cx = rng.uniform(-0.6, 0.6, 2)
                spot = np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / (0.003 + 0.002 * k))
                img = img + np.array([0.4, -0.2, -0.05])[:, None, None] * spot * leaf
            img += 0.04 * rng.standard_normal(img.shape)
            self.images[i] = (img.clip(0, 1) * 255).astype(np.uint8)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return torch.from_numpy(self.images[i]), int(self.labels[i])


class Separable(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.depth = nn.Conv2d(cin, cin, 3, stride=stride, padding=1, groups=cin, bias=False)
        self.point = nn.Conv2d(cin, cout, 1, bias=False)
        self.norm = nn.GroupNorm(8, cout)

    def forward(self, x):
        return F.silu(self.norm(self.point(self.depth(x))))


class LeafNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, stride=2, padding=1), nn.GroupNorm(8, width), nn.SiLU())
        self.stages = nn.Sequential(
            Separable(width, 2 * width, 1), Separable(2 * width, 3 * width, 2),
            Separable(3 * width, 4 * width, 1), Separable(4 * width, 6 * width, 2))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(6 * width, DISEASES))

    def forward(self, x):
        return self.head(self.stages(self.stem(x)))


class Augment:
    """Random scale, flips and colour gain for a whole batch of uint8 images."""

    def __init__(self, scales, rank, seed):
        self.scales = scales
        self.rng = random.Random(1000 * seed + rank)

    def __call__(self, images):
        side = self.rng.choice(self.scales)
        x = images.float().div_(255).sub_(0.4)
        if side != NATIVE:
            x = F.interpolate(x, size=(side, side), mode="bilinear", align_corners=False)
        if self.rng.random() < 0.5:
            x = x.flip(3)
        if self.rng.random() < 0.5:
            x = x.flip(2)
        return x * self.rng.uniform(0.8, 1.2)


class Runner:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        data = LeafPhotos(400, args.seed)
        self.sampler = DistributedSampler(data, seed=args.seed, drop_last=True)
        self.loader = DataLoader(data, args.batch_size, sampler=self.sampler, drop_last=True)
        self.augment = Augment(args.scales, self.rank, args.seed)
        torch.manual_seed(args.seed)
        self.model = DistributedDataParallel(LeafNet())
        self.opt = torch.optim.SGD(self.model.parameters(), lr=args.lr, momentum=0.9, nesterov=True)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, args.steps)

    def batches(self):
        epoch = 0
        while True:
            self.sampler.set_epoch(epoch)
            yield from self.loader
            epoch += 1

    def report(self, step, loss, logits, labels, began):
        stats = torch.tensor([loss.item(), (logits.argmax(1) == labels).float().mean().item()])
        dist.all_reduce(stats)
        if self.rank == 0:
            a, b = (stats / self.world).tolist()
            print(f"step {step} loss {a:.4f} acc {b:.3f} {(time.time() - began) / step * 1e3:.0f} ms", flush=True)

    def fit(self):
        began = time.time()
        for step, (images, labels) in enumerate(self.batches(), 1):
            logits = self.model(self.augment(images))
            loss = F.cross_entropy(logits, labels, label_smoothing=0.1)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.sched.step()
            if step % self.args.log_every == 0:
                self.report(step, loss, logits, labels, began)
            if step == self.args.steps:
                return


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--scales", type=int, nargs="+", default=[64, 80, 96, 112, 128])
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--log-every", type=int, default=10)
    ap.add_argument("--seed", type=int, default=6)
    options = ap.parse_args()
    dist.init_process_group("gloo")
    Runner(options).fit()
    dist.destroy_process_group()
