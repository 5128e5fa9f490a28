"""Depth, surface normals and room layout from one shared encoder (indoor scenes)."""
import argparse
from collections import defaultdict

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class RoomScenes:
    def __init__(self, n, size, seed):
        rng = np.random.default_rng(seed)
        yy, xx = np.mgrid[0:size, 0:size].astype(np.float32) / size
        self.rgb = np.empty((n, 3, size, size), np.float32)
        self.depth = np.empty((n, 1, size, size), np.float32)
        self.normal = np.zeros((n, 3, size, size), np.float32)
        self.layout = np.empty((n, size, size), np.int64)
        for i in range(n):
            vx, vy = rng.uniform(0.3, 0.7, 2)
            dx, dy = xx - vx, yy - vy
            horiz = np.abs(dx) > np.abs(dy)
            region = np.where(horiz, np.where(dx < 0, 0, 1), np.where(dy < 0, 2, 3))
            back = np.maximum(np.abs(dx), np.abs(dy)) < rng.uniform(0.1, 0.2)
            region[back] = 4
            depth = 1.0 / (np.maximum(np.abs(dx), np.abs(dy)) + 0.12)
            vectors = np.array([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1]], np.float32)
            self.layout[i], self.depth[i, 0] = region, depth
            self.normal[i] = vectors[region].transpose(2, 0, 1)
            albedo = rng.uniform(0.2, 1.0, (5, 3)).astype(np.float32)
            self.rgb[i] = (albedo[region] * (0.4 + 0.1 * depth[..., None])).transpose(2, 0, 1)
        self.rgb += rng.normal(0, 0.05, self.rgb.shape).astype(np.float32)
        self.rng = rng

    def batch(self, b):
        idx = self.rng.integers(0, len(self.rgb), b)
        return {k: torch.from_numpy(getattr(self, k)[idx]) for k in ("rgb", "depth", "normal", "layout")}


def cgr(i, o, s=1):
    return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.GroupNorm(8, o), nn.ReLU(inplace=True))


class SharedEncoder(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.a = nn.Sequential(cgr(3, w, 2), cgr(w, w))
        self.b = nn.Sequential(cgr(w, 2 * w, 2), cgr(2 * w, 2 * w))
        self.c = nn.Sequential(cgr(2 * w, 4 * w, 2), cgr(4 * w, 4 * w))
        self.fuse = cgr(6 * w, 2 * w)

    def forward(self, x):
        b = self.b(self.a(x))
        c = F.interpolate(self.c(b), scale_factor=2, mode="nearest")
        return self.fuse(torch.cat([b, c], 1))


class Head(nn.Module):
    def __init__(self, w, out):
        super().__init__()
        self.net = nn.Sequential(cgr(w, 32), nn.Conv2d(32, out, 1))

    def forward(self, f):
        return F.interpolate(self.net(f), scale_factor=4, mode="bilinear", align_corners=False)


class RoomNet(nn.Module):
    def __init__(self, w=24):
        super().__init__()
        self.encoder = SharedEncoder(w)
        self.heads = nn.ModuleDict({"depth": Head(2 * w, 1), "normal": Head(2 * w, 3), "layout": Head(2 * w, 5)})

    def forward(self, x):
        f = self.encoder(x)
        return {k: h(f) for k, h in self.heads.items()}


def depth_loss(pred, gt):
    d = F.softplus(pred).log() - gt.log()
    return d.pow(2).mean() - 0.5 * d.mean().pow(2)


def normal_loss(pred, gt):
    return (1 - F.cosine_similarity(pred, gt, dim=1)).mean()


CRITERIA = {"depth": depth_loss, "normal": normal_loss, "layout": F.cross_entropy}


class MultiTaskTrainer:
    def __init__(self, model, args):
        self.model, self.args = model, args
        self.weights = {"depth": 1.0, "normal": 0.7, "layout": args.layout_weight}
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
        self.scheduler = torch.optim.lr_scheduler.PolynomialLR(self.optimizer, args.steps, power=0.9)
        self.history = defaultdict(list)

    def update(self, batch):
        outputs = self.model(batch["rgb"])
        losses = {k: CRITERIA[k](outputs[k], batch[k]) for k in CRITERIA}
        self.optimizer.zero_grad(set_to_none=True)
        pending = len(losses)
        for task, loss in losses.items():
            pending -= 1
            (self.weights[task] * loss).backward(retain_graph=pending > 0)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.args.clip)
        self.optimizer.step()
        self.scheduler.step()
        for task, loss in losses.items():
            self.history[task].append(loss.item())
        self.history["norm"].append(norm.item())

    def report(self, step, n):
        parts = [f"{k} {np.mean(v[-n:]):.4f}" for k, v in self.history.items()]
        print(f"[{step}] " + " | ".join(parts), flush=True)

    @torch.no_grad()
    def validate(self, batch):
        self.model.eval()
        out = self.model(batch["rgb"])
        acc = (out["layout"].argmax(1) == batch["layout"]).float().mean().item()
        rel = ((F.softplus(out["depth"]) - batch["depth"]).abs() / batch["depth"]).mean().item()
        self.model.train()
        print(f"    val layout acc {acc:.3f} depth rel {rel:.3f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--size", type=int, default=96)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--clip", type=float, default=5.0)
    ap.add_argument("--layout-weight", type=float, default=0.5)
    ap.add_argument("--seed", type=int, default=12)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    scenes = RoomScenes(120, args.size, args.seed)
    holdout = RoomScenes(8, args.size, args.seed + 1).batch(8)
    trainer = MultiTaskTrainer(RoomNet(), args)
    for step in range(1, args.steps + 1):
        trainer.update(scenes.batch(args.batch))
        if step % 10 == 0:
            trainer.report(step, 10)
        if step % 40 == 0:
            trainer.validate(holdout)


if __name__ == "__main__":
    main()
