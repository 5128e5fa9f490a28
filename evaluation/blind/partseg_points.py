import argparse
import dataclasses
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

@dataclasses.dataclass
class Config:
    steps: int = 300
    fixed: bool = False
    batch: int = 3
    points: int = 384
    k: int = 8
    width: int = 32
    depth: int = 4
    parts: int = 4
    clouds: int = 128
    lr: float = 2e-3

def make_tables(cfg):
    """Random table-like objects: slab, legs, shelf and a lamp ball."""
    g = torch.Generator().manual_seed(5)
    n, m = cfg.clouds, cfg.points
    label = torch.randint(0, cfg.parts, (n, m), generator=g)
    u = torch.rand(n, m, 3, generator=g) * 2 - 1
    slab = u * torch.tensor([1.0, 1.0, 0.06]) + torch.tensor([0.0, 0.0, 0.5])
    legs = torch.stack([u[..., 0].sign() * 0.9, u[..., 1].sign() * 0.9, u[..., 2] * 0.5], -1)
    shelf = u * torch.tensor([0.8, 0.8, 0.04]) - torch.tensor([0.0, 0.0, 0.2])
    ball = F.normalize(u, dim=-1) * 0.25 + torch.tensor([0.0, 0.0, 0.85])
    xyz = torch.stack([slab, legs, shelf, ball], 2)
    xyz = xyz.gather(2, label[..., None, None].expand(-1, -1, 1, 3)).squeeze(2)
    scale = 0.8 + 0.4 * torch.rand(n, 1, 3, generator=g)
    return TensorDataset(xyz * scale + 0.02 * torch.randn(n, m, 3, generator=g), label)

def knn(xyz, k):
    dist = torch.cdist(xyz, xyz)
    return dist.topk(k, dim=-1, largest=False).indices

def gather(x, idx):
    b, n, k = idx.shape
    flat = (idx + torch.arange(b, device=x.device).view(-1, 1, 1) * n).view(-1)
    return x.reshape(b * n, -1).index_select(0, flat).view(b, n, k, -1)

class LocalAggregation(nn.Module):
    def __init__(self, dim, k):
        super().__init__()
        self.k = k
        self.center, self.neighbour = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False)
        self.rel = nn.Linear(3, dim, bias=False)
        self.norm = nn.LayerNorm(dim)

    def forward(self, xyz, feat, idx=None):
        if idx is None:
            idx = knn(xyz, self.k)
        offset = gather(xyz, idx) - xyz.unsqueeze(2)
        edge = gather(self.neighbour(feat), idx) + self.rel(offset)
        pooled = F.relu(edge + self.center(feat).unsqueeze(2)).amax(2)
        return feat + self.norm(pooled)

class PartSegmenter(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embed = nn.Linear(3, cfg.width)
        self.layers = nn.ModuleList(LocalAggregation(cfg.width, cfg.k) for _ in range(cfg.depth))
        self.head = nn.Sequential(nn.Linear(2 * cfg.width, 64), nn.ReLU(), nn.Linear(64, cfg.parts))

    def forward(self, xyz):
        feat = self.embed(xyz)
        idx = knn(xyz, self.cfg.k) if self.cfg.fixed else None
        for layer in self.layers:
            feat = layer(xyz, feat, idx)
        scene = feat.amax(1, keepdim=True).expand_as(feat)
        return self.head(torch.cat([feat, scene], -1))

def rotate_z(xyz):
    theta = torch.rand(len(xyz)) * 6.2832
    c, s, z = theta.cos(), theta.sin(), torch.zeros(len(xyz))
    rot = torch.stack([c, -s, z, s, c, z, z, z, z + 1], -1).view(-1, 3, 3)
    return xyz @ rot

def train(cfg):
    torch.manual_seed(0)
    loader = DataLoader(make_tables(cfg), batch_size=cfg.batch, shuffle=True, drop_last=True)
    model = PartSegmenter(cfg)
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.steps)
    step, t0 = 0, time.perf_counter()
    while step < cfg.steps:
        for xyz, label in loader:
            logits = model(rotate_z(xyz))
            loss = F.cross_entropy(logits.flatten(0, 1), label.flatten(), label_smoothing=0.05)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            step += 1
            if step % 50 == 0:
                print(f"step {step}: loss {loss.item():.5f}")
            if step == 10:
                t0 = time.perf_counter()
            if step >= cfg.steps:
                break
    print(f"step_ms={(time.perf_counter() - t0) * 1e3 / max(1, step - 10):.2f}")

if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--fixed", action="store_true")
    train(Config(**vars(p.parse_args())))
