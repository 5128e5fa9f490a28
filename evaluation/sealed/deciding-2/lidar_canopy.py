"""Airborne lidar: ground / vegetation / building labels for points, PointNet-style patches."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


SCALE = np.float32(0.01)


class FlightLine:
    def __init__(self, rng, n, offset):
        xy = rng.uniform(0, 400, (n, 2)).astype(np.float32) + offset
        ground = 8 * np.sin(xy[:, 0] / 60) + 5 * np.cos(xy[:, 1] / 45)
        kind = rng.choice(3, n, p=[0.5, 0.3, 0.2])
        lift = np.where(kind == 1, rng.uniform(0.5, 18, n), np.where(kind == 2, 7.0, 0.0))
        z = ground + lift + rng.normal(0, 0.1, n)
        self.raw = np.round(np.column_stack([xy, z]) / SCALE).astype(np.int32)
        self.intensity = (1000 * (rng.normal(0.4, 0.1, n) + 0.1 * (kind == 2))).clip(0, 65535).astype(np.uint16)
        self.returns = np.where(kind == 1, rng.integers(1, 5, n), 1).astype(np.uint16)
        self.label = kind.astype(np.int64)


class Survey:
    """All flight lines of one acquisition, addressed by a global point number."""

    def __init__(self, n_lines, points, seed):
        rng = np.random.default_rng(seed)
        self.lines = [FlightLine(rng, points, np.float32([350 * i, 0])) for i in range(n_lines)]
        cells = np.floor(self.xyz[:, :2] / 12.0).astype(np.int64)
        key = cells[:, 0] * 10000 + cells[:, 1]
        self.order = np.argsort(key, kind="stable")
        _, self.starts, self.counts = np.unique(key[self.order], return_index=True, return_counts=True)

    @property
    def xyz(self):
        raw = np.concatenate([line.raw for line in self.lines])
        return raw.astype(np.float32) * SCALE

    @property
    def attributes(self):
        both = [np.stack([line.intensity, line.returns], 1) for line in self.lines]
        return np.concatenate(both).astype(np.float32) * np.float32([1e-3, 1.0])

    @property
    def label(self):
        return np.concatenate([line.label for line in self.lines])

    def cell_points(self, cell):
        lo = self.starts[cell]
        return self.order[lo : lo + self.counts[cell]]


class PatchSampler:
    def __init__(self, survey, per_patch, patches, seed):
        self.survey, self.per_patch, self.patches = survey, per_patch, patches
        self.rng = np.random.default_rng(seed)
        self.usable = np.flatnonzero(survey.counts >= 32)

    def next_batch(self):
        s = self.survey
        cells = self.rng.choice(self.usable, self.patches)
        idx = np.stack([self.rng.choice(s.cell_points(c), self.per_patch) for c in cells])
        xyz = s.xyz[idx]
        attr = s.attributes[idx]
        label = s.label[idx]
        xyz = xyz - xyz.mean(1, keepdims=True)
        turn = self.rng.uniform(0, 2 * np.pi, self.patches).astype(np.float32)
        c, n = np.cos(turn), np.sin(turn)
        rot = np.stack([np.stack([c, -n], -1), np.stack([n, c], -1)], -2)
        xyz[..., :2] = xyz[..., :2] @ rot
        feats = np.concatenate([xyz / 10.0, attr], -1)
        return torch.from_numpy(feats), torch.from_numpy(label)


class PointLabeller(nn.Module):
    def __init__(self, d_in=5, width=96, classes=3):
        super().__init__()
        self.local = nn.Sequential(nn.Linear(d_in, width), nn.LayerNorm(width), nn.ReLU(),
                                   nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU())
        self.context = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.joint = nn.Sequential(nn.Linear(2 * width, width), nn.LayerNorm(width), nn.ReLU(),
                                   nn.Linear(width, classes))

    def forward(self, pts):
        h = self.local(pts)
        g = self.context(h.amax(1))
        return self.joint(torch.cat([h, g.unsqueeze(1).expand_as(h)], -1))


def main(args):
    torch.manual_seed(args.seed)
    survey = Survey(args.lines, args.points, args.seed)
    sampler = PatchSampler(survey, per_patch=256, patches=args.patches, seed=args.seed + 1)
    net = PointLabeller()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3, fused=True)
    share = np.bincount(survey.label, minlength=3) / len(survey.label)
    weight = torch.tensor(1.0 / np.sqrt(share), dtype=torch.float32)
    for step in range(1, args.steps + 1):
        pts, label = sampler.next_batch()
        logits = net(pts)
        loss = F.cross_entropy(logits.flatten(0, 1), label.flatten(), weight=weight)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            acc = (logits.argmax(-1) == label).float().mean()
            print(f"step {step:4d} | loss {loss.item():.5f} | acc {acc.item():.4f}")


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--steps", type=int, default=60)
    cli.add_argument("--lines", type=int, default=8)
    cli.add_argument("--points", type=int, default=180000)
    cli.add_argument("--patches", type=int, default=40)
    cli.add_argument("--seed", type=int, default=13)
    main(cli.parse_args())
