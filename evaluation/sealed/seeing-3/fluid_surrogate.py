"""Train a convolutional surrogate on stored 2-D tracer advection rollouts."""
import argparse
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

ROOT = os.path.join(tempfile.gettempdir(), "tracer_rollouts_v3")
N_FILES, T, H, W = 12, 48, 48, 48


def simulate(seed):
    """Periodic advection-diffusion of a scalar in a random stream function."""
    rng = np.random.default_rng(seed)
    yy, xx = np.meshgrid(np.arange(H), np.arange(W), indexing="ij")
    psi = np.zeros((H, W))
    for _ in range(4):
        kx, ky = rng.integers(1, 4, 2)
        ph = rng.uniform(0, 2 * np.pi, 2)
        psi += rng.normal() * np.sin(2 * np.pi * kx * xx / W + ph[0]) * np.sin(2 * np.pi * ky * yy / H + ph[1])
    u = (np.roll(psi, -1, 0) - np.roll(psi, 1, 0)) * 2.0
    v = -(np.roll(psi, -1, 1) - np.roll(psi, 1, 1)) * 2.0
    c = np.exp(-((xx - rng.uniform(8, 40)) ** 2 + (yy - rng.uniform(8, 40)) ** 2) / 60.0)
    out = np.empty((T, H, W), dtype=np.float32)
    for t in range(T):
        out[t] = c
        for _ in range(3):
            cx = (np.roll(c, -1, 1) - np.roll(c, 1, 1)) / 2
            cy = (np.roll(c, -1, 0) - np.roll(c, 1, 0)) / 2
            lap = np.roll(c, 1, 0) + np.roll(c, -1, 0) + np.roll(c, 1, 1) + np.roll(c, -1, 1) - 4 * c
            c = c - 0.15 * (u * cx + v * cy) + 0.08 * lap
    return out, np.stack([u, v]).astype(np.float32)


def ensure_data():
    os.makedirs(ROOT, exist_ok=True)
    for i in range(N_FILES):
        path = os.path.join(ROOT, f"run_{i:03d}.npz")
        if not os.path.exists(path):
            c, flow = simulate(i)
            tmp = path + ".tmp.npz"
            np.savez_compressed(tmp, tracer=c, flow=flow, dt=np.float32(0.45))
            os.replace(tmp, path)
    return sorted(os.path.join(ROOT, f) for f in os.listdir(ROOT) if f.endswith(".npz") and ".tmp" not in f)


class RolloutWindows(Dataset):
    """History of `n_in` frames and `n_out` future frames, cut from random places of the runs."""

    def __init__(self, files, n_in=3, n_out=2, stride=2):
        self.runs = [np.load(f) for f in files]
        self.n_in, self.n_out, self.stride = n_in, n_out, stride
        span = (n_in + n_out - 1) * stride
        self.index = [(r, t) for r in range(len(files)) for t in range(T - span)]

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        r, t0 = self.index[i]
        run = self.runs[r]
        times = [t0 + k * self.stride for k in range(self.n_in + self.n_out)]
        frames = np.stack([run["tracer"][t] for t in times])
        flow = run["flow"]
        x = np.concatenate([frames[: self.n_in], flow], axis=0)
        return torch.from_numpy(x), torch.from_numpy(frames[self.n_in:])


class ResBlock(nn.Module):
    def __init__(self, ch, dilation):
        super().__init__()
        self.a = nn.Conv2d(ch, ch, 3, padding=dilation, dilation=dilation, padding_mode="circular")
        self.b = nn.Conv2d(ch, ch, 3, padding=1, padding_mode="circular")
        self.norm = nn.GroupNorm(4, ch)

    def forward(self, x):
        return x + self.b(F.gelu(self.norm(self.a(x))))


class Surrogate(nn.Module):
    def __init__(self, n_in=3, ch=20):
        super().__init__()
        self.stem = nn.Conv2d(n_in + 2, ch, 3, padding=1, padding_mode="circular")
        self.blocks = nn.Sequential(*[ResBlock(ch, d) for d in (1, 2, 4)])
        self.out = nn.Conv2d(ch, 1, 1)

    def forward(self, hist, flow):
        h = self.blocks(F.gelu(self.stem(torch.cat([hist, flow], 1))))
        return hist[:, -1:] + self.out(h)

    def rollout(self, x, n, n_in):
        hist, flow = x[:, :n_in], x[:, n_in:]
        preds = []
        for _ in range(n):
            nxt = self(hist, flow)
            preds.append(nxt)
            hist = torch.cat([hist[:, 1:], nxt], 1)
        return torch.cat(preds, 1)


def stream(loader):
    while True:
        yield from loader


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--log-every", type=int, default=10)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    torch.manual_seed(args.seed)

    ds = RolloutWindows(ensure_data())
    loader = DataLoader(ds, batch_size=args.batch, shuffle=True, drop_last=True)
    net = Surrogate(ds.n_in)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)

    batches = stream(loader)
    for step in range(1, args.steps + 1):
        x, y = next(batches)
        pred = net.rollout(x, ds.n_out, ds.n_in)
        loss = F.mse_loss(pred, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % args.log_every == 0:
            persistence = F.mse_loss(x[:, ds.n_in - 1:ds.n_in].expand_as(y), y)
            print(f"step {step} mse {loss.item():.6f} persistence {persistence.item():.6f}")


if __name__ == "__main__":
    main()
