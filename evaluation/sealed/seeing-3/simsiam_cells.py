"""SimSiam pretraining on microscopy-like cell crops, with collapse diagnostics."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def render_cells(n, size, rng):
    yy, xx = np.mgrid[:size, :size].astype(np.float32)
    out = np.empty((n, 3, size, size), np.float32)
    for i in range(n):
        cy, cx = size / 2 + rng.normal(0, 2, 2)
        a, b, th = rng.uniform(6, 14), rng.uniform(6, 14), rng.uniform(0, np.pi)
        u = (xx - cx) * np.cos(th) + (yy - cy) * np.sin(th)
        v = -(xx - cx) * np.sin(th) + (yy - cy) * np.cos(th)
        r = (u / a) ** 2 + (v / b) ** 2
        body = np.exp(-r ** 2)
        nucleus = np.exp(-(r * rng.uniform(4, 9)))
        out[i] = np.stack([body, nucleus, 0.5 * body + 0.3 * nucleus]) * rng.uniform(0.6, 1.0, (3, 1, 1))
    return out + rng.normal(0, 0.04, out.shape).astype(np.float32)


class CellPairs(torch.utils.data.Dataset):
    def __init__(self, images, crop, seed):
        self.images, self.crop = torch.from_numpy(images), crop
        self.gen = torch.Generator().manual_seed(seed)

    def __len__(self):
        return len(self.images)

    def view(self, img):
        r = torch.rand(6, generator=self.gen).tolist()
        s = img.shape[-1] - self.crop
        y, x = int(r[0] * (s + 1)), int(r[1] * (s + 1))
        v = img[:, y:y + self.crop, x:x + self.crop]
        if r[2] < 0.5:
            v = v.flip(2)
        v = torch.rot90(v, int(r[3] * 4), (1, 2))
        return v * (0.7 + 0.6 * r[4]) + 0.2 * (r[5] - 0.5)

    def __getitem__(self, i):
        return self.view(self.images[i]), self.view(self.images[i])


class Backbone(nn.Module):
    def __init__(self, w, dim):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, w, 3, 2, 1, bias=False), nn.BatchNorm2d(w), nn.ReLU())
        self.stages = nn.ModuleList()
        c = w
        for o in (2 * w, 4 * w):
            self.stages.append(nn.ModuleList([
                nn.Sequential(nn.Conv2d(c, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(),
                              nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)),
                nn.Conv2d(c, o, 1, 2)]))
            c = o
        self.fc = nn.Linear(c, dim)

    def forward(self, x):
        x = self.stem(x)
        for main, skip in self.stages:
            x = F.relu(main(x) + skip(x))
        return self.fc(x.mean((2, 3)))


class SimSiam(nn.Module):
    def __init__(self, w=16, dim=128):
        super().__init__()
        self.backbone = Backbone(w, dim)
        self.projector = nn.Sequential(nn.Linear(dim, dim, bias=False), nn.BatchNorm1d(dim), nn.ReLU(),
                                       nn.Linear(dim, dim, bias=False), nn.BatchNorm1d(dim, affine=False))
        self.predictor = nn.Sequential(nn.Linear(dim, dim // 4, bias=False), nn.BatchNorm1d(dim // 4), nn.ReLU(), nn.Linear(dim // 4, dim))

    def forward(self, a, b):
        za, zb = self.projector(self.backbone(a)), self.projector(self.backbone(b))
        pa, pb = self.predictor(za), self.predictor(zb)
        loss = -(F.cosine_similarity(pa, zb.detach()).mean() + F.cosine_similarity(pb, za.detach()).mean()) / 2
        return loss, torch.cat([za, zb]).detach()


class CollapseMonitor:
    """Keeps the latest projections and reports spread and effective rank."""

    def __init__(self, capacity):
        self.capacity, self.rows = capacity, []

    def add(self, z):
        self.rows.append(z)
        while sum(len(r) for r in self.rows) > self.capacity:
            self.rows.pop(0)

    def report(self):
        z = F.normalize(torch.cat(self.rows), dim=1)
        _, s, _ = torch.linalg.svd(z - z.mean(0))
        p = s / s.sum()
        return z.std(0).mean().item(), torch.exp(-(p * (p + 1e-12).log()).sum()).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--monitor-every", type=int, default=10)
    ap.add_argument("--monitor-rows", type=int, default=2560)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    data = CellPairs(render_cells(1500, 40, np.random.default_rng(args.seed)), 32, args.seed)
    loader = torch.utils.data.DataLoader(data, args.batch, shuffle=True, drop_last=True)
    model = SimSiam()
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, max(args.steps, 200))
    monitor = CollapseMonitor(args.monitor_rows)
    step = 0
    while step < args.steps:
        for a, b in loader:
            loss, z = model(a, b)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            monitor.add(z)
            step += 1
            if step % args.monitor_every == 0:
                std, rank = monitor.report()
                print(f"step {step} loss {loss.item():.4f} std {std:.4f} erank {rank:.1f}")
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
