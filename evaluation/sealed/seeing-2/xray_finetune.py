#!/usr/bin/env python
"""Fine-tune a radiograph backbone for multi-label findings."""
import argparse
import json
import pathlib
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

FINDINGS = ["atelectasis", "cardiomegaly", "effusion", "infiltration", "mass", "nodule", "pneumothorax"]


class Radiographs(Dataset):
    def __init__(self, root, split):
        self.images = np.load(root / f"{split}_images.npy")
        self.labels = np.load(root / f"{split}_labels.npy")
        self.train = split == "train"

    @staticmethod
    def prepare(root, n, size, seed):
        rng = np.random.default_rng(seed)
        yy, xx = np.mgrid[0:size, 0:size] / size
        for split, m in (("train", n), ("val", 48)):
            lab = (rng.random((m, len(FINDINGS))) < 0.25).astype(np.float32)
            img = np.repeat((120 + 60 * np.cos(4 * np.pi * xx) * np.sin(np.pi * yy))[None], m, 0)
            for j in range(len(FINDINGS)):
                blob = 50 * np.exp(-((xx - 0.15 - 0.1 * j) ** 2 + (yy - 0.5) ** 2) * 90)
                img += lab[:, j, None, None] * blob
            img += rng.normal(0, 12, img.shape)
            np.save(root / f"{split}_images.npy", img.clip(0, 255).astype(np.uint8))
            np.save(root / f"{split}_labels.npy", lab)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        img = torch.from_numpy(self.images[i])[None]
        if self.train and torch.rand(()) < 0.5:
            img = img.flip(-1).roll(int(torch.randint(-3, 4, ())), -2)
        return img, torch.from_numpy(self.labels[i])


class Bottleneck(nn.Module):
    def __init__(self, cin, mid, cout, stride=1):
        super().__init__()
        self.f = nn.Sequential(
            nn.Conv2d(cin, mid, 1, bias=False), nn.GroupNorm(4, mid), nn.ReLU(inplace=True),
            nn.Conv2d(mid, mid, 3, stride, 1, bias=False), nn.GroupNorm(4, mid), nn.ReLU(inplace=True),
            nn.Conv2d(mid, cout, 1, bias=False), nn.GroupNorm(4, cout))
        self.s = nn.Sequential() if cin == cout and stride == 1 else nn.Conv2d(cin, cout, 1, stride, bias=False)

    def forward(self, x):
        return F.relu(self.f(x) + self.s(x))


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 24, 5, 2, 2, bias=False), nn.GroupNorm(4, 24), nn.ReLU(inplace=True))
        self.stage1 = nn.Sequential(Bottleneck(24, 24, 48), Bottleneck(48, 24, 48))
        self.stage2 = nn.Sequential(Bottleneck(48, 48, 96, 2), Bottleneck(96, 48, 96))
        self.stage3 = nn.Sequential(Bottleneck(96, 96, 192, 2), Bottleneck(192, 96, 192))

    def forward(self, x):
        return self.stage3(self.stage2(self.stage1(self.stem(x))))


class FindingsModel(nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.query = nn.Parameter(torch.randn(len(FINDINGS), 192) * 0.05)
        self.value = nn.Conv2d(192, 192, 1)
        self.out = nn.Linear(192, 1)

    def forward(self, x):
        f = self.backbone((x.float() - 128) / 64)
        v = self.value(f).flatten(2)
        att = (self.query @ f.flatten(2) / 14).softmax(-1)
        return self.out(att @ v.transpose(1, 2)).squeeze(-1)


def pretrained(path, seed):
    net = Backbone()
    if not path.exists():
        torch.save(net.state_dict(), path)
    net.load_state_dict(torch.load(path, weights_only=True))
    return net


def parameter_groups(model, rates):
    """One group per stage; `rates` maps stage name -> learning-rate multiplier."""
    groups = []
    for name, mult in rates.items():
        params = list(getattr(model.backbone, name).parameters())
        groups.append({"params": params, "lr": mult, "name": name})
    head = [p for n, p in model.named_parameters() if not n.startswith("backbone.")]
    groups.append({"params": head, "lr": 1.0, "name": "head"})
    return groups


@torch.no_grad()
def validate(model, loader):
    model.eval()
    loss = n = 0.0
    for x, y in loader:
        loss += F.binary_cross_entropy_with_logits(model(x), y, reduction="sum").item()
        n += y.numel()
    model.train()
    return loss / n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--size", type=int, default=88)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--rates", type=json.loads, default={"stem": 0.0, "stage1": 0.0, "stage2": 0.0, "stage3": 0.1})
    ap.add_argument("--seed", type=int, default=19)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    with tempfile.TemporaryDirectory() as d:
        root = pathlib.Path(d)
        Radiographs.prepare(root, 400, a.size, a.seed)
        train = DataLoader(Radiographs(root, "train"), a.batch, shuffle=True, drop_last=True)
        val = DataLoader(Radiographs(root, "val"), 16)
        model = FindingsModel(pretrained(root / "backbone.pt", a.seed))
        groups = parameter_groups(model, a.rates)
        for g in groups:
            g["lr"] *= a.lr
        opt = torch.optim.AdamW(groups, weight_decay=1e-4)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.steps)
        pos_weight = torch.full((len(FINDINGS),), 2.0)
        step = 0
        while step < a.steps:
            for x, y in train:
                loss = F.binary_cross_entropy_with_logits(model(x), y, pos_weight=pos_weight)
                opt.zero_grad(set_to_none=True)
                loss.backward()
                opt.step()
                sched.step()
                step += 1
                if step % 10 == 0:
                    print(f"step {step} loss {loss.item():.4f} lr(head) {opt.param_groups[-1]['lr']:.2e}", flush=True)
                if step % 40 == 0:
                    print(f"step {step} val {validate(model, val):.4f}", flush=True)
                if step == a.steps:
                    break


if __name__ == "__main__":
    main()
