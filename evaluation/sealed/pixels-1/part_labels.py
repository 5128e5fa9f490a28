"""Per-point part labelling of scanned furniture with a graph network over k nearest neighbours."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset

PARTS = 5  # seat, back, leg, arm, other


def synth_chair(rng, points):
    share = rng.dirichlet([6, 6, 4, 2, 1])
    labels = rng.choice(PARTS, size=points, p=share)
    u = rng.uniform(-1, 1, size=(points, 3))
    xyz = np.empty((points, 3))
    h = rng.uniform(0.6, 1.2)
    centre = np.array([[0, 0, 0], [0, -0.9, h / 2], [0, 0, -0.5], [0, 0, 0.3], [0, 0, 0]])
    extent = np.array([[1, 1, 0.08], [1, 0.08, h / 2], [0.9, 0.9, 0.5], [1, 0.8, 0.06], [1.2, 1.2, 1.2]])
    xyz[:] = centre[labels] + extent[labels] * u
    leg, arm = labels == 2, labels == 3
    xyz[leg, :2] = np.sign(xyz[leg, :2]) * (0.85 + 0.06 * u[leg, :2])
    xyz[arm, 0] = np.sign(u[arm, 0]) * (0.95 + 0.05 * u[arm, 0])
    return xyz + rng.normal(0, 0.01, xyz.shape), labels


class ScanStream(IterableDataset):
    """Endless stream of rotated, scaled and jittered scans."""

    def __init__(self, points, seed):
        self.points, self.seed = points, seed

    def __iter__(self):
        rng = np.random.default_rng(self.seed)
        while True:
            xyz, labels = synth_chair(rng, self.points)
            a = rng.uniform(0, 2 * np.pi)
            rot = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
            xyz = (xyz @ rot.T) * rng.uniform(0.8, 1.2)
            xyz -= xyz.mean(0)
            yield torch.from_numpy(xyz.astype(np.float32)), torch.from_numpy(labels)


def neighbours(xyz, k):
    dist = torch.cdist(xyz, xyz)
    return dist.topk(k + 1, dim=-1, largest=False, sorted=False).indices


def take(feats, idx):
    b, n, c = feats.shape
    k = idx.shape[-1]
    flat = (idx + torch.arange(b).view(b, 1, 1) * n).reshape(-1)
    return feats.reshape(b * n, c).index_select(0, flat).view(b, n, k, c)


class EdgeLayer(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.proj = nn.Linear(2 * cin, cout)
        self.norm = nn.LayerNorm(cout)
        self.cin = cin

    def forward(self, x, idx):
        near = take(x, idx)
        here = x.unsqueeze(2).expand_as(near)
        edge = self.proj(torch.cat([here, near - here], dim=-1))
        return F.leaky_relu(self.norm(edge).amax(dim=2), 0.2)


class GlobalContext(nn.Module):
    def __init__(self, cin, width):
        super().__init__()
        self.up = nn.Sequential(nn.Linear(cin, width), nn.LayerNorm(width), nn.GELU())

    def forward(self, x):
        return self.up(x).amax(dim=1)


class PartNet(nn.Module):
    def __init__(self, k=16, widths=(32, 48, 64)):
        super().__init__()
        self.k = k
        self.lift = nn.Linear(3, 32)
        dims = (32,) + tuple(widths)
        self.layers = nn.ModuleList(EdgeLayer(a, b) for a, b in zip(dims[:-1], dims[1:]))
        total = sum(widths)
        self.context = GlobalContext(total, 256)
        self.local_in = nn.Linear(total, 128)
        self.context_in = nn.Linear(256, 128, bias=False)
        self.head = nn.Sequential(nn.LayerNorm(128), nn.GELU(), nn.Dropout(0.3),
                                  nn.Linear(128, 64), nn.GELU(), nn.Linear(64, PARTS))

    def forward(self, xyz):
        with torch.no_grad():
            idx = neighbours(xyz, self.k)
        x, stack = self.lift(xyz), []
        for layer in self.layers:
            x = layer(x, idx)
            stack.append(x)
        x = torch.cat(stack, -1)
        ctx = self.context_in(self.context(x)).unsqueeze(1)
        return self.head(self.local_in(x) + ctx)


@torch.no_grad()
def mean_iou(logits, labels):
    pred = logits.argmax(-1).reshape(-1)
    counts = torch.bincount(labels.reshape(-1) * PARTS + pred, minlength=PARTS ** 2).view(PARTS, PARTS)
    inter = counts.diag().float()
    return (inter / (counts.sum(0) + counts.sum(1) - inter).clamp(min=1)).mean().item()


class Runner:
    def __init__(self, args):
        self.args = args
        torch.manual_seed(args.seed)
        self.model = PartNet(k=args.k)
        self.loader = iter(DataLoader(ScanStream(args.points, args.seed), batch_size=args.batch))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=args.lr, fused=True)
        self.sched = torch.optim.lr_scheduler.OneCycleLR(self.opt, max_lr=args.lr, total_steps=args.steps + 1)

    def step(self):
        xyz, labels = next(self.loader)
        logits = self.model(xyz)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.05)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        self.sched.step()
        return loss, logits, labels

    def run(self):
        for i in range(1, self.args.steps + 1):
            loss, logits, labels = self.step()
            if i % self.args.every == 0:
                print(f"{i:5d} loss={loss.item():.5f} miou={mean_iou(logits, labels):.3f}", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=3)
    ap.add_argument("--points", type=int, default=768)
    ap.add_argument("--k", type=int, default=15)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=5)
    ap.add_argument("--every", type=int, default=10)
    Runner(ap.parse_args()).run()
