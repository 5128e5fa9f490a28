"""Music tagging on log-mel excerpts with a wide fully connected back end."""
import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

TAGS = 32


def synth_excerpts(n, mels, frames, rng):
    """Harmonic textures whose parameters drive a set of weakly correlated tags."""
    latent = rng.normal(size=(n, 6)).astype(np.float32)
    f = np.linspace(0, 1, mels, dtype=np.float32)[None, :, None]
    t = np.linspace(0, 1, frames, dtype=np.float32)[None, None]
    z = latent[:, :, None, None]
    x = np.sin((6 + 2 * z[:, 0]) * np.pi * f + z[:, 1]) * (1 + 0.5 * np.sin((8 + 3 * z[:, 2]) * 2 * np.pi * t))
    x = x - 2.0 * f * (1 + 0.3 * z[:, 3]) + 0.4 * z[:, 4] * t
    x = x + 0.5 * rng.normal(size=x.shape)
    mix = rng.normal(size=(6, TAGS))
    y = (latent @ mix + 0.5 * rng.normal(size=(n, TAGS)) > 1.2)
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.float32))


class MelFront(nn.Module):
    def __init__(self, mels, w):
        super().__init__()
        self.timbre = nn.ModuleList([nn.Conv1d(mels, w, k, padding=k // 2) for k in (1, 7, 15)])
        self.norm = nn.BatchNorm1d(3 * w)
        self.temporal = nn.Conv1d(3 * w, w, 5, stride=2, padding=2)

    def forward(self, x):
        h = torch.cat([c(x) for c in self.timbre], 1)
        return F.relu(self.temporal(F.relu(self.norm(h))))


class Tagger(nn.Module):
    def __init__(self, mels=64, w=32, hidden=1024):
        super().__init__()
        self.front = MelFront(mels, w)
        self.pool = nn.AdaptiveMaxPool1d(48)
        self.back = nn.Sequential(nn.Linear(48 * w, hidden), nn.ReLU(), nn.Dropout(0.3),
                                  nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, TAGS))

    def forward(self, x):
        return self.back(self.pool(self.front(x)).flatten(1))


class Objective:
    """Tag BCE with ridge regularisation over all parameters."""

    def __init__(self, model, ridge, pos_weight):
        self.model, self.ridge, self.pos_weight = model, ridge, pos_weight

    def data_term(self, x, y):
        return F.binary_cross_entropy_with_logits(self.model(x), y, pos_weight=self.pos_weight)

    def penalty(self):
        total = 0.0
        for p in self.model.parameters():
            total = total + p.pow(2).sum()
        return self.ridge * total

    def __call__(self, x, y):
        data = self.data_term(x, y)
        return data + self.penalty(), data


def average_precision(scores, y):
    order = scores.argsort(0, descending=True)
    hit = y.gather(0, order)
    prec = hit.cumsum(0) / torch.arange(1, len(y) + 1)[:, None]
    return ((prec * hit).sum(0) / hit.sum(0).clamp(min=1)).mean().item()


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        ap = average_precision(model(x), y)
    model.train()
    return ap


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--ridge", type=float, default=1e-4)
    ap.add_argument("--eval-every", type=int, default=20)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    x, y = synth_excerpts(900, 64, 192, rng)
    x_val, y_val, x, y = x[:100], y[:100], x[100:], y[100:]
    model = Tagger()
    pos = ((1 - y).sum(0) / y.sum(0).clamp(min=1)).clamp(max=10)
    objective = Objective(model, args.ridge, pos)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    perm, cursor, began = torch.randperm(len(x)), 0, time.time()
    for step in range(1, args.steps + 1):
        if cursor + args.batch > len(x):
            perm, cursor = torch.randperm(len(x)), 0
        sel = perm[cursor:cursor + args.batch]
        cursor += args.batch
        loss, data = objective(x[sel], y[sel])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"step {step} bce {data.item():.4f}")
        if step % args.eval_every == 0:
            print(f"step {step} val mAP {evaluate(model, x_val, y_val):.4f}")


if __name__ == "__main__":
    main()
