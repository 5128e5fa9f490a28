"""Probabilistic forecast of realised volatility, autoregressive LSTM with Student-t output."""
import argparse

import numpy as np
import torch
from torch import nn
from torch.distributions import StudentT


def garch_panel(assets=80, days=900, seed=0):
    rng = np.random.default_rng(seed)
    alpha, beta = rng.uniform(0.03, 0.12, assets), rng.uniform(0.8, 0.86, assets)
    var = np.full(assets, 1e-4)
    ret, vol = np.empty((days, assets)), np.empty((days, assets))
    for t in range(days):
        ret[t] = np.sqrt(var) * rng.standard_t(6, assets) / np.sqrt(1.5)
        vol[t] = var
        var = 4e-6 + alpha * ret[t] ** 2 + beta * var
    noisy = np.log(vol) + 0.2 * rng.standard_normal(vol.shape)
    return ret.astype(np.float32).T.copy(), noisy.astype(np.float32).T.copy()


class Windows:
    def __init__(self, ret, logvol, length, seed):
        mean, std = logvol.mean(1, keepdims=True), logvol.std(1, keepdims=True)
        self.vol = (logvol - mean) / std
        self.ret = ret / ret.std(1, keepdims=True)
        self.length = length
        self.rng = np.random.default_rng(seed)

    def sample(self, n):
        a = self.rng.integers(0, self.vol.shape[0], n)
        s = self.rng.integers(0, self.vol.shape[1] - self.length - 1, n)
        cols = s[:, None] + np.arange(self.length + 1)
        vol, ret = self.vol[a[:, None], cols], self.ret[a[:, None], cols]
        return torch.from_numpy(a), torch.from_numpy(vol), torch.from_numpy(ret)


class VolNet(nn.Module):
    def __init__(self, assets, hidden=64, emb=16):
        super().__init__()
        self.asset = nn.Embedding(assets, emb)
        self.cell = nn.LSTMCell(emb + 3, hidden)
        self.lead = nn.Linear(hidden, 1)
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 3))

    def unroll(self, asset, vol, ret):
        e = self.asset(asset)
        B, T = vol.shape
        h = vol.new_zeros(B, self.cell.hidden_size)
        c = torch.zeros_like(h)
        guess = vol[:, :1]
        states = vol.new_zeros(B, 0, self.cell.hidden_size)
        for t in range(T):
            x = torch.cat([e, vol[:, t:t + 1], ret[:, t:t + 1].abs(), guess - vol[:, t:t + 1]], 1)
            h, c = self.cell(x, (h, c))
            guess = self.lead(h)
            states = torch.cat([states, h.unsqueeze(1)], 1)
        return states

    def forward(self, asset, vol, ret):
        loc, scale, df = self.head(self.unroll(asset, vol, ret)).unbind(-1)
        softplus = nn.functional.softplus
        return StudentT(2 + softplus(df), loc, 1e-3 + softplus(scale))


class Fitter:
    def __init__(self, net, windows, lr):
        self.net, self.windows = net, windows
        self.opt = torch.optim.Adam(net.parameters(), lr=lr)
        self.log = []

    def step(self, batch):
        asset, vol, ret = self.windows.sample(batch)
        dist = self.net(asset, vol[:, :-1], ret[:, :-1])
        nll = -dist.log_prob(vol[:, 1:])[:, 20:].mean()
        self.opt.zero_grad()
        nll.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.opt.step()
        self.log.append(nll.item())

    def coverage(self, batch=32):
        with torch.no_grad():
            asset, vol, ret = self.windows.sample(batch)
            d = self.net(asset, vol[:, :-1], ret[:, :-1])
            inside = (vol[:, 1:] - d.loc).abs() < 1.65 * d.scale
        return inside.float().mean().item()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=96)
    ap.add_argument("--length", type=int, default=150)
    args = ap.parse_args()
    torch.manual_seed(6)
    ret, logvol = garch_panel()
    fitter = Fitter(VolNet(len(ret)), Windows(ret, logvol, args.length, 6), 2e-3)
    for i in range(1, args.steps + 1):
        fitter.step(args.batch)
        if i % 10 == 0:
            print(f"iter {i} nll {np.mean(fitter.log[-10:]):.4f}")
        if i % 50 == 0:
            print(f"  90% band covers {fitter.coverage():.3f}")
