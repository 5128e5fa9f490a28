"""Operator learning for steady Darcy flow: permeability samples at sensors -> pressure at query points."""
import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def random_fields(n, side, rng, alpha=2.5):
    k = np.fft.fftfreq(side) * side
    kx, ky = np.meshgrid(k, k[: side // 2 + 1], indexing="ij")
    amp = (1 + kx ** 2 + ky ** 2) ** (-alpha / 2) * side
    noise = rng.normal(size=(n,) + amp.shape) + 1j * rng.normal(size=(n,) + amp.shape)
    return np.fft.irfft2(noise * amp, s=(side, side))


def solve_darcy(logk, sweeps=250):
    """Jacobi iteration for -div(k grad p) = 1 with zero pressure on the border."""
    k = np.exp(logk)
    side = k.shape[-1]
    p = np.zeros_like(k)
    face_x = 2 * k[:, 1:] * k[:, :-1] / (k[:, 1:] + k[:, :-1])
    face_y = 2 * k[:, :, 1:] * k[:, :, :-1] / (k[:, :, 1:] + k[:, :, :-1])
    e, w = face_x[:, 1:, 1:-1], face_x[:, :-1, 1:-1]
    n, s = face_y[:, 1:-1, 1:], face_y[:, 1:-1, :-1]
    h2 = 1.0 / (side - 1) ** 2
    for _ in range(sweeps):
        p[:, 1:-1, 1:-1] = (e * p[:, 2:, 1:-1] + w * p[:, :-2, 1:-1] + n * p[:, 1:-1, 2:] + s * p[:, 1:-1, :-2] + h2) / (e + w + n + s)
    return p


class DarcyPairs(Dataset):
    """One item: sensor values of a permeability field, query points and their pressures."""

    def __init__(self, n, side, stride, queries, seed):
        rng = np.random.default_rng(seed)
        logk = random_fields(n, side, rng)
        p = solve_darcy(logk)
        self.sensors = torch.from_numpy(logk[:, ::stride, ::stride].reshape(n, -1)).float()
        self.pressure = torch.from_numpy(p / p.std()).float().reshape(n, -1)
        axis = np.linspace(0, 1, side)
        self.grid = torch.from_numpy(np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2))
        self.queries = queries

    def __len__(self):
        return len(self.sensors)

    def __getitem__(self, i):
        q = torch.randint(len(self.grid), (self.queries,))
        return self.sensors[i], self.grid[q], self.pressure[i, q]


def mlp(dims, act, last):
    mods = []
    for a, b in zip(dims[:-1], dims[1:]):
        mods += [nn.Linear(a, b), act()]
    return nn.Sequential(*(mods if last else mods[:-1]))


class DeepONet(nn.Module):
    def __init__(self, sensors, basis=64, width=72, waves=128):
        super().__init__()
        self.branch = mlp([sensors, width // 2, basis], nn.GELU, last=False)
        self.trunk = mlp([2 + 2 * waves, width, width, basis], nn.SiLU, last=True)
        self.bias = nn.Parameter(torch.zeros(1))
        scale = 4 * np.random.default_rng(0).normal(size=(2, waves))
        self.register_buffer("freq", torch.from_numpy(scale))

    def forward(self, sensors, points):
        ang = points @ self.freq
        waves = torch.cat([points, torch.sin(ang), torch.cos(ang)], -1)
        basis = self.trunk(waves.float())
        coef = self.branch(sensors)
        return torch.einsum("bk,bqk->bq", coef, basis) + self.bias


def relative_l2(pred, true):
    return ((pred - true).norm(dim=1) / true.norm(dim=1).clamp(min=1e-6)).mean()


def loop(loader):
    epoch = 0
    while True:
        for batch in loader:
            yield epoch, batch
        epoch += 1


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--queries", type=int, default=704)
    ap.add_argument("--samples", type=int, default=240)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=6)
    args = ap.parse_args()
    torch.manual_seed(args.seed)

    data = DarcyPairs(args.samples, 41, 3, args.queries, args.seed)
    loader = DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True)
    net = DeepONet(data.sensors.shape[1])
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=args.steps)
    batches = loop(loader)
    for step in range(1, args.steps + 1):
        epoch, (sensors, points, target) = next(batches)
        loss = relative_l2(net(sensors, points), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 10 == 0 or step == args.steps:
            print(f"epoch {epoch} step {step}: relative L2 {loss.item():.4f}")


if __name__ == "__main__":
    main()
