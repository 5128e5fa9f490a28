import argparse
import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


def superquadrics(n_shapes, n_points, seed):
    """Query points and inside/outside flags for randomly posed superquadric solids."""
    rng = np.random.default_rng(seed)
    pts = rng.uniform(-1, 1, (n_shapes, n_points, 3)).astype(np.float32)
    scale = rng.uniform(0.3, 0.8, (n_shapes, 1, 3)).astype(np.float32)
    expo = rng.uniform(1.0, 5.0, (n_shapes, 1, 1)).astype(np.float32)
    value = (np.abs(pts / scale) ** expo).sum(-1)
    return torch.from_numpy(pts), torch.from_numpy((value < 1.0).astype(np.float32))


class FiLM(nn.Module):
    def __init__(self, z_dim, width):
        super().__init__()
        self.lin = nn.Linear(width, width)
        self.mod = nn.Linear(z_dim, 2 * width)

    def forward(self, h, z):
        g, b = self.mod(z).unsqueeze(1).chunk(2, -1)
        return h + F.silu(self.lin(h) * (1 + g) + b)


class OccupancyField(nn.Module):
    def __init__(self, z_dim, width, depth, bands=6):
        super().__init__()
        self.register_buffer("freq", 2.0 ** torch.arange(bands) * np.pi)
        self.inp = nn.Linear(3 + 6 * bands, width)
        self.blocks = nn.ModuleList(FiLM(z_dim, width) for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def encode(self, p):
        a = (p.unsqueeze(-1) * self.freq).flatten(-2)
        return torch.cat([p, a.sin(), a.cos()], -1)

    def forward(self, p, z):
        h = F.silu(self.inp(self.encode(p)))
        for blk in self.blocks:
            h = blk(h, z)
        return self.out(h).squeeze(-1)


class AutoDecoderTrainer:
    """Jointly fits a decoder and one latent code per shape."""

    def __init__(self, args, out_dir):
        self.args = args
        self.out_dir = out_dir
        self.step = 0
        self.points, self.occ = superquadrics(args.shapes, args.points_per_shape, args.seed)
        self.codes = nn.Embedding(args.shapes, args.z_dim)
        nn.init.normal_(self.codes.weight, std=0.05)
        self.field = OccupancyField(args.z_dim, args.width, args.depth)
        self.optim = torch.optim.Adam([
            {"params": self.field.parameters(), "lr": args.lr},
            {"params": self.codes.parameters(), "lr": 4 * args.lr},
        ])
        self.sched = torch.optim.lr_scheduler.StepLR(self.optim, 30, 0.7)
        self.order = []
        self.best_iou = 0.0

    # -- persistence -----------------------------------------------------------------
    def state(self):
        out = {}
        for key, value in self.__dict__.items():
            out[key] = value.state_dict() if hasattr(value, "state_dict") else value
        return out

    def save(self, name="last.pt"):
        tmp = os.path.join(self.out_dir, name + ".tmp")
        torch.save(self.state(), tmp)
        os.replace(tmp, os.path.join(self.out_dir, name))

    def resume(self, name="last.pt"):
        path = os.path.join(self.out_dir, name)
        if not os.path.exists(path):
            return False
        for key, value in torch.load(path, weights_only=False).items():
            current = getattr(self, key)
            if hasattr(current, "load_state_dict"):
                current.load_state_dict(value)
            else:
                setattr(self, key, value)
        return True

    # -- data ------------------------------------------------------------------------
    def next_shapes(self):
        b = self.args.batch
        if len(self.order) < b:
            self.order = torch.randperm(self.args.shapes).tolist()
        take, self.order = self.order[:b], self.order[b:]
        return torch.tensor(take)

    def sample(self):
        shapes = self.next_shapes()
        q = torch.randint(0, self.args.points_per_shape, (len(shapes), self.args.queries))
        rows = shapes.unsqueeze(1)
        return shapes, self.points[rows, q], self.occ[rows, q]

    # -- optimisation ----------------------------------------------------------------
    def update(self):
        shapes, pts, occ = self.sample()
        z = self.codes(shapes)
        logits = self.field(pts, z)
        bce = F.binary_cross_entropy_with_logits(logits, occ)
        prior = z.pow(2).sum(-1).mean()
        loss = bce + self.args.prior * min(1.0, self.step / 20) * prior
        self.optim.zero_grad(set_to_none=True)
        loss.backward()
        self.optim.step()
        self.sched.step()
        self.step += 1
        return bce.item(), prior.item(), logits.detach(), occ

    @staticmethod
    def iou(logits, occ):
        a, b = logits > 0, occ > 0.5
        return ((a & b).sum() / (a | b).sum().clamp(min=1)).item()

    def fit(self):
        self.resume()
        while self.step < self.args.steps:
            bce, prior, logits, occ = self.update()
            if self.step % 10 == 0:
                score = self.iou(logits, occ)
                self.best_iou = max(self.best_iou, score)
                print(f"step {self.step} bce {bce:.4f} |z|^2 {prior:.4f} iou {score:.3f} best {self.best_iou:.3f}", flush=True)
            if self.step % self.args.save_every == 0:
                self.save()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--shapes", type=int, default=256)
    ap.add_argument("--points-per-shape", type=int, default=24000)
    ap.add_argument("--queries", type=int, default=256)
    ap.add_argument("--batch", type=int, default=10)
    ap.add_argument("--z-dim", type=int, default=48)
    ap.add_argument("--width", type=int, default=128)
    ap.add_argument("--depth", type=int, default=5)
    ap.add_argument("--prior", type=float, default=1e-3)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--save-every", type=int, default=10)
    ap.add_argument("--seed", type=int, default=14)
    ap.add_argument("--out", default="")
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    if args.out:
        os.makedirs(args.out, exist_ok=True)
        AutoDecoderTrainer(args, args.out).fit()
    else:
        with tempfile.TemporaryDirectory() as d:
            AutoDecoderTrainer(args, d).fit()


if __name__ == "__main__":
    main()
