"""House price regression with periodic numeric embeddings."""
import argparse

import numpy as np
import torch
from torch import nn


class Standardizer:
    def __init__(self, table):
        self.mean = table.mean(axis=0)
        self.scale = table.std(axis=0) + 1e-9

    def tensors(self):
        return torch.from_numpy(self.mean), torch.from_numpy(self.scale)


class PeriodicFeatures(nn.Module):
    def __init__(self, scaler, n_num, n_freq=10, narrow=False):
        super().__init__()
        mean, scale = scaler.tensors()
        if narrow:
            mean, scale = mean.float(), scale.float()
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)
        self.register_buffer("freq", torch.randn(n_num, n_freq) * 0.5)

    def forward(self, x):
        z = (x - self.mean) / self.scale
        ang = 2 * np.pi * z.unsqueeze(-1) * self.freq
        feats = torch.cat([ang.sin(), ang.cos(), z.unsqueeze(-1)], -1)
        return feats.flatten(1).float()


class PriceNet(nn.Module):
    def __init__(self, feats, n_in):
        super().__init__()
        self.feats = feats
        self.mlp = nn.Sequential(
            nn.Linear(n_in, 96), nn.ReLU(), nn.Dropout(0.1), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 1)
        )

    def forward(self, x):
        return self.mlp(self.feats(x)).squeeze(1)


def fake_houses(rng, n=6000, k=24):
    raw = np.exp(rng.normal(size=(n, k)) * 0.4) * rng.uniform(1, 100, size=k)
    price = np.log(raw[:, 0]) + 0.5 * np.sin(np.log(raw[:, 1]) * 3) + 0.1 * rng.normal(size=n)
    return raw, price


def rmse_eval(net, x, y):
    net.eval()
    with torch.inference_mode():
        out = (net(x) - y).square().mean().sqrt().item()
    net.train()
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--batch", type=int, default=1024)
    args = ap.parse_args()
    torch.manual_seed(16)
    raw, price = fake_houses(np.random.default_rng(16))
    scaler = Standardizer(raw[:5000])
    x = torch.tensor(raw, dtype=torch.float32)
    y = torch.tensor(price, dtype=torch.float32)
    net = PriceNet(PeriodicFeatures(scaler, 24, narrow=args.fixed), 24 * 21)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, fused=True)
    for step in range(args.steps):
        rows = torch.randint(0, 5000, (args.batch,))
        loss = nn.functional.mse_loss(net(x[rows]), y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 4:
            print(f"step {step + 1} mse {loss.item():.4f}")
    print(f"rmse {rmse_eval(net, x[5000:], y[5000:]):.4f}")


if __name__ == "__main__":
    main()
