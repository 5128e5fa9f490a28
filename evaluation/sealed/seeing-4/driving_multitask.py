"""Joint steering, speed and free-space prediction from short dashcam clips."""
import argparse

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class DashcamClips:
    """In-memory clips of a procedurally drawn road; targets come from the drawing parameters."""

    def __init__(self, n, frames=4, height=40, width=72, seed=0):
        rng = np.random.default_rng(seed)
        self.curve = rng.normal(0, 1, n).astype(np.float32)
        self.speed = rng.uniform(0.2, 1.0, n).astype(np.float32)
        rows = np.linspace(0, 1, height, dtype=np.float32)[None, None, :, None]
        cols = np.linspace(-1, 1, width, dtype=np.float32)[None, None, None, :]
        t = np.arange(frames, dtype=np.float32)[None, :, None, None]
        bend = self.curve[:, None, None, None] * (1 - rows) ** 2 * 0.5
        half = 0.08 + 0.5 * rows
        road = np.abs(cols - bend) < half
        dashes = np.sin(20 * rows + 4 * t * self.speed[:, None, None, None]) > 0.3
        lane = (np.abs(cols - bend) < 0.03) & dashes
        img = 90 + 60 * np.broadcast_to(road, (n, frames, height, width)) + 80 * lane
        self.video = torch.from_numpy((img + rng.integers(0, 16, img.shape)).astype(np.uint8))
        self.free = torch.from_numpy(np.broadcast_to(road, (n, 1, height, width))[:, 0, ::4, ::4].astype(np.float32).copy())
        self.curve, self.speed = torch.from_numpy(self.curve), torch.from_numpy(self.speed)

    def batches(self, size, gen):
        while True:
            perm = torch.randperm(len(self.curve), generator=gen)
            for i in range(0, len(perm) - size + 1, size):
                idx = perm[i:i + size]
                yield (self.video[idx].float() / 127.5 - 1,
                       {"steer": self.curve[idx], "speed": self.speed[idx], "free": self.free[idx]})


def conv_bn(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class Trunk(nn.Module):
    def __init__(self, frames, width):
        super().__init__()
        self.stem = conv_bn(frames, width, 2)
        self.a = nn.Sequential(conv_bn(width, width), conv_bn(width, 2 * width, 2))
        self.b = nn.Sequential(conv_bn(2 * width, 2 * width), conv_bn(2 * width, 2 * width))

    def forward(self, x):
        x = self.a(self.stem(x))
        return x + self.b(x)


class DriveNet(nn.Module):
    def __init__(self, frames=4, width=32):
        super().__init__()
        self.trunk = Trunk(frames, width)
        d = 2 * width
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d((2, 4)), nn.Flatten(), nn.Linear(8 * d, 96), nn.ReLU())
        self.steer = nn.Linear(96, 1)
        self.speed = nn.Linear(96, 1)
        self.free = nn.Sequential(conv_bn(d, 48), conv_bn(48, 48), conv_bn(48, 32), nn.Conv2d(32, 1, 1))

    def forward(self, x):
        z = self.trunk(x)
        v = self.pool(z)
        return {"steer": self.steer(v).squeeze(1), "speed": self.speed(v).squeeze(1), "free": self.free(z).squeeze(1)}


TASKS = {
    "steer": (1.0, lambda p, t: F.smooth_l1_loss(p, t)),
    "free": (0.5, lambda p, t: F.binary_cross_entropy_with_logits(p, t)),
    "speed": (2.0, lambda p, t: F.mse_loss(p, t)),
}


def train_step(model, opt, x, targets):
    out = model(x)
    losses = {name: criterion(out[name], targets[name]) for name, (_, criterion) in TASKS.items()}
    total = sum(TASKS[name][0] * value for name, value in losses.items())
    opt.zero_grad()
    total.backward()
    opt.step()
    return {name: value.item() for name, value in losses.items()}


def parameter_groups(model, head_lr, trunk_lr):
    trunk = list(model.trunk.parameters())
    seen = {id(p) for p in trunk}
    heads = [p for p in model.parameters() if id(p) not in seen]
    return [{"params": trunk, "lr": trunk_lr}, {"params": heads, "lr": head_lr}]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--trunk-lr", type=float, default=0.0, help="0 keeps the loaded trunk as it is")
    ap.add_argument("--trunk-weights", default=None)
    ap.add_argument("--print-freq", type=int, default=10)
    ap.add_argument("--seed", type=int, default=21)
    args = ap.parse_args()
    torch.manual_seed(args.seed)

    data = DashcamClips(400, seed=args.seed)
    stream = data.batches(args.batch, torch.Generator().manual_seed(args.seed))
    model = DriveNet()
    if args.trunk_weights:
        model.trunk.load_state_dict(torch.load(args.trunk_weights))
    opt = torch.optim.AdamW(parameter_groups(model, args.lr, args.trunk_lr), weight_decay=1e-2)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=args.steps)

    for step in range(args.steps):
        x, targets = next(stream)
        report = train_step(model, opt, x, targets)
        sched.step()
        if step % args.print_freq == 0 or step + 1 == args.steps:
            print(f"{step:4d} | " + " | ".join(f"{k} {v:.4f}" for k, v in report.items()))


if __name__ == "__main__":
    main()
