"""Auto-decoder of signed distance functions for a family of superquadric-like shapes."""
import argparse
import math

import torch
from torch import nn
import torch.nn.functional as F


class ShapeFamily:
    """Approximate signed distances of rounded boxes and ellipsoids, sampled near the surface and in the volume."""

    def __init__(self, shapes, per_shape, seed):
        g = torch.Generator().manual_seed(seed)
        radii = 0.3 + 0.4 * torch.rand(shapes, 1, 3, generator=g)
        power = 2 + 4 * torch.rand(shapes, 1, 1, generator=g)
        direction = F.normalize(torch.randn(shapes, per_shape, 3, generator=g), dim=-1)
        level = ((direction / radii).abs() ** power).sum(-1, keepdim=True) ** (-1 / power)
        near = direction * (level + 0.05 * torch.randn(level.shape, generator=g))
        far = 2 * torch.rand(shapes, per_shape // 4, 3, generator=g) - 1
        self.points = torch.cat([near, far], 1)
        norm = ((self.points / radii).abs() ** power).sum(-1) ** (1 / power.squeeze(-1))
        self.sdf = (norm - 1) * radii.mean(-1) / norm.clamp(min=0.3)

    def draw(self, n_shapes, n_points):
        shape = torch.randperm(len(self.points))[:n_shapes]
        pick = torch.randint(self.points.shape[1], (n_shapes, n_points))
        rows = shape.unsqueeze(1)
        return shape, self.points[rows, pick], self.sdf[rows, pick]


class Decoder(nn.Module):
    def __init__(self, code=24, width=96, depth=5, skip=2):
        super().__init__()
        self.skip = skip
        self.layers = nn.ModuleList()
        d = code + 3
        for i in range(depth):
            self.layers.append(nn.Linear(d if i == 0 else width + (code + 3 if i == skip else 0), width))
        self.out = nn.Linear(width, 1)
        for m in self.layers:
            nn.init.kaiming_normal_(m.weight, nonlinearity="relu")

    def forward(self, z):
        h = z
        for i, layer in enumerate(self.layers):
            if i == self.skip:
                h = torch.cat([h, z], -1)
            h = F.softplus(layer(h), beta=100)
        return torch.tanh(self.out(h)).squeeze(-1)


class AutoDecoder(nn.Module):
    def __init__(self, shapes, code=24, max_points=192):
        super().__init__()
        self.codes = nn.Embedding(shapes, code)
        nn.init.normal_(self.codes.weight, 0, 1 / math.sqrt(code))
        self.decoder = Decoder(code)
        self.max_points = max_points

    def forward(self, shape, points):
        code = self.codes(shape).unsqueeze(1).expand(-1, points.shape[1], -1)
        z = torch.cat([code, points], -1).flatten(0, 1)
        out = [self.decoder(part) for part in z.split(self.max_points)]
        return torch.cat(out).view(points.shape[:2])


def clamped_l1(pred, true, delta=0.1):
    return (pred.clamp(-delta, delta) - true.clamp(-delta, delta)).abs().mean()


def fit(args):
    torch.manual_seed(args.seed)
    family = ShapeFamily(args.shapes, 4000, args.seed)
    model = AutoDecoder(args.shapes)
    opt = torch.optim.Adam([
        {"params": model.decoder.parameters(), "lr": args.lr},
        {"params": model.codes.parameters(), "lr": 2 * args.lr},
    ])
    sched = torch.optim.lr_scheduler.StepLR(opt, 500, 0.5)
    ema = None
    for step in range(1, args.steps + 1):
        shape, points, sdf = family.draw(args.batch_shapes, args.batch_points)
        pred = model(shape, points)
        data = clamped_l1(pred, sdf)
        prior = model.codes(shape).pow(2).sum(1).mean()
        loss = data + 1e-4 * min(1.0, step / 100) * prior
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        ema = data.item() if ema is None else 0.95 * ema + 0.05 * data.item()
        if step % 10 == 0:
            print(f"step {step:5d}  l1 {data.item():.5f}  ema {ema:.5f}  prior {prior.item():.3f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--shapes", type=int, default=64)
    ap.add_argument("--batch-shapes", type=int, default=8)
    ap.add_argument("--batch-points", type=int, default=1536)
    ap.add_argument("--lr", type=float, default=5e-4)
    ap.add_argument("--seed", type=int, default=13)
    fit(ap.parse_args())
