# Small-footprint keyword spotter: weight-normalised recurrent core on filterbank frames.
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

CLASSES = 12
FRAMES, BINS = 49, 40


def keyword_features(n, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, n)
    t = np.linspace(0, 1, FRAMES)[:, None]
    f = np.arange(BINS)[None]
    out = np.empty((n, FRAMES, BINS), dtype=np.float32)
    for i, c in enumerate(y):
        ridge = 5 + 2.5 * c + 6 * np.sin(2 * np.pi * (t + rng.random()) * (1 + c % 3))
        out[i] = np.exp(-0.1 * (f - ridge) ** 2) + 0.3 * rng.standard_normal((FRAMES, BINS))
    return torch.from_numpy(out), torch.from_numpy(y)


class WNGRUCell(nn.Module):
    """GRU cell, recurrent weights normalised per gate row (Salimans & Kingma 2016)."""

    def __init__(self, size):
        super().__init__()
        self.hidden = weight_norm(nn.Linear(size, 3 * size))

    def forward(self, gates_x, h):
        xr, xz, xn = gates_x.chunk(3, -1)
        hr, hz, hn = self.hidden(h).chunk(3, -1)
        r = torch.sigmoid(xr + hr)
        z = torch.sigmoid(xz + hz)
        n = torch.tanh(xn + r * hn)
        return n + z * (h - n)


class Core(nn.Module):
    def __init__(self, d_in, size):
        super().__init__()
        self.inp = weight_norm(nn.Linear(d_in, 3 * size))
        self.cell = WNGRUCell(size)
        self.size = size

    def forward(self, x):
        gates = self.inp(x)
        h = x.new_zeros(x.shape[0], self.size)
        states = []
        for g in gates.unbind(1):
            h = self.cell(g, h)
            states.append(h)
        return torch.stack(states, 1)


class KeywordNet(nn.Module):
    def __init__(self, size=256, dropout=0.1):
        super().__init__()
        self.conv = nn.Conv1d(BINS, 96, 5, padding=2)
        self.core = Core(96, size)
        self.drop = nn.Dropout(dropout)
        self.query = nn.Parameter(torch.randn(size) * 0.05)
        self.cls = nn.Linear(size, CLASSES)

    def forward(self, x):
        x = F.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        h = self.core(x)
        w = (h @ self.query).softmax(1)
        return self.cls(self.drop((w[..., None] * h).sum(1)))


def time_shift(x, gen, limit=4):
    k = int(torch.randint(-limit, limit + 1, (1,), generator=gen))
    return torch.roll(x, k, dims=1)


def evaluate(model, x, y):
    model.eval()
    with torch.inference_mode():
        acc = (model(x).argmax(-1) == y).float().mean().item()
    model.train()
    return acc


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--eval-every", type=int, default=50)
    args = ap.parse_args()
    torch.manual_seed(21)
    gen = torch.Generator().manual_seed(21)
    x, y = keyword_features(1200, 0)
    xv, yv = keyword_features(96, 1)
    model = KeywordNet()
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 1e-3}, {"params": rest, "weight_decay": 0.0}],
                            lr=2e-3, fused=True)
    for step in range(1, args.steps + 1):
        idx = torch.randint(len(x), (args.batch,), generator=gen)
        logits = model(time_shift(x[idx], gen))
        loss = F.cross_entropy(logits, y[idx], label_smoothing=0.05)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        opt.step()
        if step % 10 == 0:
            n_par = sum(parametrize.is_parametrized(m) for m in model.modules())
            print(f"step {step} loss {loss.item():.4f} ({n_par} normalised layers)")
        if step % args.eval_every == 0:
            print(f"  val acc {evaluate(model, xv, yv):.3f}")


if __name__ == "__main__":
    main()
