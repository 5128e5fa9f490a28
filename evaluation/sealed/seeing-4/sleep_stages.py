"""Sleep staging from whole-night polysomnography: per-epoch CNN, transformer across epochs."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

STAGES = ["W", "N1", "N2", "N3", "R"]
RATE = 50


def night(rng, epochs):
    trans = np.array([[.85, .12, .01, .01, .01], [.08, .6, .28, .02, .02], [.02, .05, .82, .08, .03],
                      [.02, .01, .07, .9, 0], [.04, .05, .03, 0, .88]])
    stage = np.zeros(epochs, np.int64)
    for i in range(1, epochs):
        stage[i] = rng.choice(5, p=trans[stage[i - 1]])
    t = np.arange(30 * RATE) / RATE
    band = np.array([10.0, 6.0, 13.0, 1.5, 5.0])[stage] * rng.uniform(0.9, 1.1, epochs)
    amp = np.array([0.6, 0.5, 0.7, 2.0, 0.4])[stage]
    eeg = amp[:, None] * np.sin(2 * np.pi * band[:, None] * t + rng.uniform(0, 6, (epochs, 1)))
    eog = np.where(stage == 4, 1.5, 0.3)[:, None] * np.sin(2 * np.pi * 0.4 * t + rng.uniform(0, 6, (epochs, 1)))
    x = np.stack([eeg, eog], 1) + rng.normal(0, 0.6, (epochs, 2, len(t)))
    return x.astype(np.float32), stage


class Nights(Dataset):
    def __init__(self, count, epochs, span, seed):
        rng = np.random.default_rng(seed)
        data = [night(rng, epochs) for _ in range(count)]
        self.signal = torch.from_numpy(np.stack([d[0] for d in data]))
        self.stage = torch.from_numpy(np.stack([d[1] for d in data]))
        self.span, self.per_night = span, epochs - span + 1

    def __len__(self):
        return len(self.signal) * self.per_night

    def __getitem__(self, i):
        n, a = divmod(i, self.per_night)
        return self.signal[n, a:a + self.span], self.stage[n, a:a + self.span]


class EpochEncoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(2, 32, (1, 25), stride=(1, 5), padding=(0, 12)), nn.ReLU(),
            nn.Conv2d(32, 48, (1, 7), stride=(1, 3), padding=(0, 3)), nn.ReLU(),
            nn.Conv2d(48, dim, (1, 5), stride=(1, 2), padding=(0, 2)), nn.ReLU())

    def forward(self, x):
        h = self.net(x.flatten(0, 1).unsqueeze(2).contiguous(memory_format=torch.channels_last))
        return h.mean((2, 3)).view(x.shape[0], x.shape[1], -1)


class Context(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.n2(x))


class SleepNet(nn.Module):
    def __init__(self, span, dim=96, heads=4, depth=2):
        super().__init__()
        self.encoder = EpochEncoder(dim)
        self.pos = nn.Parameter(0.02 * torch.randn(span, dim))
        self.context = nn.Sequential(*[Context(dim, heads) for _ in range(depth)])
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, len(STAGES)))

    def forward(self, x):
        return self.head(self.context(self.encoder(x) + self.pos))


class Fit:
    def __init__(self, args):
        torch.manual_seed(args.seed)
        data = Nights(8, 240, args.span, args.seed)
        self.loader = DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True)
        share = torch.bincount(data.stage.flatten(), minlength=5).float()
        self.weight = (share.sum() / (5 * share.clamp(min=1))).sqrt()
        self.net = SleepNet(args.span)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=args.lr, weight_decay=0.01, fused=True)
        self.args = args

    def __call__(self):
        table, step = torch.zeros(25, dtype=torch.long), 0
        for x, y in self.loader:
            logits = self.net(x).flatten(0, 1)
            y = y.flatten()
            loss = F.cross_entropy(logits, y, weight=self.weight)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            step += 1
            table += torch.bincount(y * 5 + logits.argmax(1), minlength=25)
            if step % 10 == 0:
                m = table.view(5, 5).float()
                total = m.sum()
                chance = (m.sum(0) * m.sum(1)).sum() / total ** 2
                kappa = (m.diag().sum() / total - chance) / (1 - chance)
                print(f"step {step} loss {loss.item():.4f} kappa {kappa.item():.3f}")
                table.zero_()
            if step >= self.args.steps:
                break


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=6)
    p.add_argument("--span", type=int, default=24)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=55)
    Fit(p.parse_args())()
