"""Grasp quality from partial point clouds: PointNet with two set-abstraction levels on fixed-size neighbourhoods."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def objects(n, points, seed):
    rng = np.random.default_rng(seed)
    half = rng.uniform(0.2, 0.6, (n, 1, 3))
    round_ = rng.uniform(2, 8, (n, 1, 1))
    d = rng.normal(size=(n, points, 3))
    d[:, :, 0] = np.abs(d[:, :, 0])
    d /= np.linalg.norm(d, axis=2, keepdims=True)
    r = (np.abs(d / half) ** round_).sum(2, keepdims=True) ** (-1 / round_)
    xyz = d * r + rng.normal(0, 0.005, d.shape)
    narrow = np.sort(half[:, 0], axis=1)
    quality = 1 / (1 + np.exp(-12 * (0.38 - narrow[:, 0]))) * (0.6 + 0.05 * round_[:, 0, 0])
    return torch.from_numpy(xyz).float(), torch.from_numpy(quality).float().clamp(0, 1)


def random_turn(xyz):
    q = F.normalize(torch.randn(len(xyz), 4), dim=1)
    w, x, y, z = q.unbind(1)
    rot = torch.stack([
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], 1).view(-1, 3, 3)
    return xyz @ rot


def take(x, idx):
    """Rows idx [B, ...] of x [B, N, C]."""
    b = torch.arange(len(x)).view(-1, *[1] * (idx.ndim - 1))
    return x[b, idx]


class Abstraction(nn.Module):
    def __init__(self, centres, neighbours, cin, dims):
        super().__init__()
        self.centres, self.neighbours = centres, neighbours
        self.offset = nn.Linear(3, dims[0])
        self.carry = nn.Linear(cin, dims[0], bias=False) if cin else None
        mods = []
        for a, b in zip(dims[:-1], dims[1:]):
            mods += [nn.ReLU(), nn.Linear(a, b)]
        self.mlp = nn.Sequential(*mods)

    def forward(self, xyz, feat):
        centre = xyz[:, : self.centres]
        idx = torch.cdist(centre, xyz).topk(self.neighbours, largest=False, sorted=False).indices
        local = self.offset(take(xyz, idx) - centre.unsqueeze(2))
        if self.carry is not None:
            local = local + take(self.carry(feat), idx)
        return centre, F.relu(self.mlp(local).max(2).values)


class GraspNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.sa1 = Abstraction(96, 24, 0, [48, 48, 96])
        self.sa2 = Abstraction(24, 16, 96, [128, 128])
        self.all = nn.Sequential(nn.Linear(131, 192), nn.ReLU(), nn.Linear(192, 192))
        self.head = nn.Sequential(nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, xyz):
        c, f = self.sa1(xyz, None)
        c, f = self.sa2(c, f)
        return self.head(self.all(torch.cat([c, f], -1)).max(1).values).squeeze(1)


def train(a):
    torch.manual_seed(a.seed)
    xyz, quality = objects(600, a.points, a.seed)
    net = GraspNet()
    opt = torch.optim.AdamW(net.parameters(), lr=a.lr, weight_decay=1e-3, fused=True)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 10) * 0.9995 ** s)
    for step in range(1, a.steps + 1):
        pick = torch.randint(len(xyz), (a.batch,))
        keep = torch.randperm(a.points)[: a.points * 3 // 4]
        cloud = random_turn(xyz[pick][:, keep])
        cloud = cloud + 0.01 * torch.randn_like(cloud)
        pred = net(cloud)
        loss = F.binary_cross_entropy_with_logits(pred, quality[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 10 == 0:
            err = (torch.sigmoid(pred.detach()) - quality[pick]).abs().mean().item()
            print(f"step {step:4d} bce {loss.item():.4f} abs err {err:.4f}")


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--points", type=int, default=512)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=54)
    train(p.parse_args())
