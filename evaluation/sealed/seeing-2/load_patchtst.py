import argparse

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


def electricity(n_steps, n_clients, seed):
    rng = np.random.default_rng(seed)
    t = np.arange(n_steps)[:, None]
    day = np.sin(2 * np.pi * t / 24 + rng.uniform(0, 6.28, n_clients))
    week = np.sin(2 * np.pi * t / 168 + rng.uniform(0, 6.28, n_clients))
    drift = rng.normal(0, 0.05, (n_steps, n_clients)).cumsum(0)
    return (2 + day + 0.5 * week + 0.2 * drift + 0.2 * rng.normal(size=(n_steps, n_clients))).astype(np.float32)


class Windows(Dataset):
    def __init__(self, series, lookback, horizon):
        self.series = torch.from_numpy(series)
        self.lookback, self.horizon = lookback, horizon

    def __len__(self):
        return len(self.series) - self.lookback - self.horizon + 1

    def __getitem__(self, i):
        w = self.series[i:i + self.lookback + self.horizon]
        return w[:self.lookback], w[self.lookback:]


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads, ff, p):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.o = nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, ff), nn.GELU(), nn.Linear(ff, dim))
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.drop = nn.Dropout(p)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = self.n1(x + self.drop(self.o(a)))
        return self.n2(x + self.drop(self.ff(x)))


class PatchTST(nn.Module):
    """Channel-independent patch transformer with reversible instance normalisation."""

    def __init__(self, lookback, horizon, patch=16, stride=8, dim=64, depth=2, heads=4, p=0.1):
        super().__init__()
        self.patch, self.stride = patch, stride
        n = (lookback - patch) // stride + 1
        self.embed = nn.Linear(patch, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(1, n, dim))
        self.layers = nn.Sequential(*[EncoderLayer(dim, heads, 2 * dim, p) for _ in range(depth)])
        self.head = nn.Linear(n * dim, horizon)

    def forward(self, x):
        b, _, c = x.shape
        mu = x.mean(1, keepdim=True)
        sd = x.std(1, keepdim=True) + 1e-5
        z = ((x - mu) / sd).transpose(1, 2).reshape(b * c, -1)
        z = self.layers(self.embed(z.unfold(-1, self.patch, self.stride)) + self.pos)
        y = self.head(z.flatten(1)).view(b, c, -1).transpose(1, 2)
        return y * sd + mu


class Experiment:
    def __init__(self, args):
        self.args = args
        raw = electricity(3000, args.clients, args.seed)
        cut = 2600
        mean, std = raw[:cut].mean(0), raw[:cut].std(0)
        raw = (raw - mean) / std
        gen = torch.Generator().manual_seed(args.seed)
        self.train = DataLoader(Windows(raw[:cut], args.lookback, args.horizon), args.batch, shuffle=True,
                                drop_last=True, generator=gen)
        test = Windows(raw[cut:], args.lookback, args.horizon)
        self.test_x, self.test_y = (torch.stack(z) for z in zip(*(test[i] for i in range(0, len(test), 24))))
        self.model = PatchTST(args.lookback, args.horizon)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=args.lr, fused=True)

    @torch.inference_mode()
    def test(self):
        self.model.eval()
        pred = self.model(self.test_x)
        self.model.train()
        return F.mse_loss(pred, self.test_y).item(), F.l1_loss(pred, self.test_y).item()

    def batches(self):
        while True:
            yield from self.train

    def run(self):
        window = []
        for step, (x, y) in enumerate(self.batches(), 1):
            self.opt.zero_grad(set_to_none=True)
            loss = F.mse_loss(self.model(x), y)
            loss.backward()
            self.opt.step()
            window.append(loss.item())
            if step % 10 == 0:
                print(f"step {step} mse {np.mean(window):.4f}", flush=True)
                window.clear()
            if step == self.args.steps:
                break
        print("test mse {:.4f} mae {:.4f}".format(*self.test()))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=10)
    ap.add_argument("--clients", type=int, default=12)
    ap.add_argument("--lookback", type=int, default=256)
    ap.add_argument("--horizon", type=int, default=48)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=3)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    Experiment(args).run()
