"""Fine-grained classification of plankton silhouettes with an MLP-Mixer and soft orthogonality."""
import argparse
import math

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def build_parser():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--image", type=int, default=48)
    p.add_argument("--patch", type=int, default=8)
    p.add_argument("--dim", type=int, default=160)
    p.add_argument("--expand", type=int, default=4)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--classes", type=int, default=25)
    p.add_argument("--ortho", type=float, default=1e-4)
    p.add_argument("--lr", type=float, default=6e-4)
    p.add_argument("--seed", type=int, default=17)
    return p


def silhouettes(n, size, classes, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    ang = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    amp = rng.uniform(0, 0.35, (classes, 5))
    g = np.linspace(-1, 1, size)
    xx, yy = np.meshgrid(g, g)
    theta, rad = np.arctan2(yy, xx), np.hypot(xx, yy)
    bins = ((theta + np.pi) / (2 * np.pi) * 63.99).astype(int)
    imgs = np.empty((n, 1, size, size), np.float32)
    for i in range(n):
        r = 0.55 + sum(amp[y[i], k] * np.cos((k + 2) * ang + rng.uniform(0, 6.28)) for k in range(5)) * 0.6
        imgs[i, 0] = (rad < r[bins])
    imgs += rng.normal(0, 0.2, imgs.shape).astype(np.float32)
    return torch.from_numpy(imgs), torch.from_numpy(y)


class Mlp(nn.Sequential):
    def __init__(self, dim, hidden):
        super().__init__(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))


class MixerLayer(nn.Module):
    def __init__(self, tokens, dim, expand):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token, self.channel = Mlp(tokens, 2 * tokens), Mlp(dim, expand * dim)

    def forward(self, x):
        x = x + self.token(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel(self.n2(x))


class Mixer(nn.Module):
    def __init__(self, a):
        super().__init__()
        tokens = (a.image // a.patch) ** 2
        self.embed = nn.Conv2d(1, a.dim, a.patch, a.patch)
        self.layers = nn.Sequential(*(MixerLayer(tokens, a.dim, a.expand) for _ in range(a.layers)))
        self.norm = nn.LayerNorm(a.dim)
        self.head = nn.Linear(a.dim, a.classes)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.layers(x)).mean(1))


class SoftOrthogonality(nn.Module):
    """Sum of || gram(W) - I ||_F^2 over the projection matrices of the network."""

    def __init__(self, model, min_size=64):
        super().__init__()
        self.weights = [m.weight for m in model.modules()
                        if isinstance(m, nn.Linear) and min(m.weight.shape) >= min_size]

    def forward(self):
        total = 0.0
        for w in self.weights:
            gram = w @ w.t()
            off = gram - torch.eye(w.shape[0], dtype=w.dtype, device=w.device)
            total = total + off.pow(2).sum()
        return total


def schedule(total, warm=8):
    def f(s):
        if s < warm:
            return (s + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (s - warm) / max(1, total - warm)))
    return f


def endless(loader):
    while True:
        for batch in loader:
            yield batch


def main():
    a = build_parser().parse_args()
    torch.manual_seed(a.seed)
    x, y = silhouettes(1200, a.image, a.classes, a.seed)
    n_val = 64
    loader = DataLoader(TensorDataset(x[n_val:], y[n_val:]), a.batch, shuffle=True, drop_last=True)
    model = Mixer(a)
    penalty = SoftOrthogonality(model)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=0.0)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, schedule(a.steps))
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    for step, (bx, by) in zip(range(1, a.steps + 1), endless(loader)):
        if torch.rand(()) < 0.5:
            bx = bx.flip(-1)
        task = criterion(model(bx), by)
        reg = penalty()
        loss = task + a.ortho * reg
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"step {step:3d} task {task.item():.4f} ortho {reg.item():.2f}", flush=True)
        if step % 40 == 0:
            model.eval()
            with torch.no_grad():
                acc = (model(x[:n_val]).argmax(1) == y[:n_val]).float().mean()
            model.train()
            print(f"step {step:3d} val acc {acc.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
