"""Machine vibration monitoring: strided convolutions, an orthogonal recurrent core and a fault classifier."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import orthogonal
from torch.utils.data import DataLoader, TensorDataset

FAULTS = ["none", "inner", "outer", "ball", "misaligned"]


def vibration(n, length, seed, fs=4096):
    rng = np.random.default_rng(seed)
    t = np.arange(length) / fs
    y = rng.integers(0, len(FAULTS), n)
    x = rng.normal(0, 0.6, (n, 2, length))
    for i, k in enumerate(y):
        rpm = rng.uniform(24, 30)
        x[i] += 0.5 * np.sin(2 * np.pi * rpm * t + rng.uniform(0, 6))
        if k in (1, 2, 3):
            rate = rpm * (0, 5.4, 3.6, 2.3)[k]
            train = (np.mod(t * rate + rng.random(), 1.0) < 0.04).astype(float)
            ring = np.exp(-np.arange(80) / 15) * np.sin(np.arange(80) * (0.9 + 0.2 * k))
            x[i] += np.convolve(train, ring)[:length] * np.array([[1.0], [0.6]])
        elif k == 4:
            x[i] += 0.8 * np.sin(2 * np.pi * 2 * rpm * t)
    return TensorDataset(torch.from_numpy(x).float(), torch.from_numpy(y))


class ModReLU(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.bias = nn.Parameter(torch.empty(dim).uniform_(-0.03, -0.02))

    def forward(self, z):
        return torch.sign(z) * F.relu(z.abs() + self.bias)


class OrthogonalRNN(nn.Module):
    """h_t = modrelu(W h_{t-1} + V x_t) with W kept orthogonal."""

    def __init__(self, n_in, hidden):
        super().__init__()
        self.inp = nn.Linear(n_in, hidden)
        self.rec = orthogonal(nn.Linear(hidden, hidden, bias=False), orthogonal_map="cayley")
        self.act = ModReLU(hidden)
        self.hidden = hidden

    def forward(self, x):
        drive = self.inp(x)
        h = x.new_zeros(x.shape[0], self.hidden)
        states = []
        for u in drive.unbind(1):
            h = self.act(self.rec(h) + u)
            states.append(h)
        return torch.stack(states, 1)


class FaultNet(nn.Module):
    def __init__(self, width=48, hidden=64):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(2, width, 32, stride=4, padding=14, bias=False), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, width, 9, padding=4, bias=False), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, width, 8, stride=4, padding=2, bias=False), nn.BatchNorm1d(width), nn.ReLU(),
            nn.AvgPool1d(2))
        self.core = OrthogonalRNN(width, hidden)
        self.head = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, len(FAULTS)))

    def forward(self, x):
        z = self.core(self.front(x).transpose(1, 2))
        return self.head(torch.cat([z[:, -1], z.mean(1)], 1))


class Running:
    def __init__(self, decay=0.9):
        self.decay, self.value = decay, {}

    def add(self, **items):
        for k, v in items.items():
            self.value[k] = v if k not in self.value else self.decay * self.value[k] + (1 - self.decay) * v
        return self.value


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--length", type=int, default=1024)
    ap.add_argument("--lr", type=float, default=5e-4)
    ap.add_argument("--lr-rec", type=float, default=1e-4)
    ap.add_argument("--seed", type=int, default=33)
    args = ap.parse_args()
    torch.manual_seed(args.seed)

    loader = DataLoader(vibration(640, args.length, args.seed), batch_size=args.batch, shuffle=True, drop_last=True)
    net = FaultNet()
    rec = list(net.core.rec.parameters())
    rest = [p for p in net.parameters() if all(p is not r for r in rec)]
    opt = torch.optim.Adam([{"params": rest, "lr": args.lr}, {"params": rec, "lr": args.lr_rec}], eps=1e-6)
    running, step = Running(), 0
    while step < args.steps:
        for x, y in loader:
            logits = net(x)
            loss = F.cross_entropy(logits, y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            step += 1
            stats = running.add(loss=loss.item(), acc=(logits.argmax(1) == y).float().mean().item())
            if step % 10 == 0:
                print(f"{step:4d} " + " ".join(f"{k} {v:.4f}" for k, v in stats.items()))
            if step >= args.steps:
                return


if __name__ == "__main__":
    main()
