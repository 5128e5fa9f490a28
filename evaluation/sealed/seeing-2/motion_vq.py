"""Vector-quantised autoencoder of motion-capture sequences with an EMA codebook."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def motion_clips(n, frames, joints, seed):
    rng = np.random.default_rng(seed)
    t = np.arange(frames, dtype=np.float32)[None, :, None] / 20
    freq = rng.uniform(0.5, 2.0, (n, 1, 1)).astype(np.float32)
    phase = rng.uniform(0, 6.28, (n, 1, joints)).astype(np.float32)
    amp = rng.gamma(2, 0.3, (n, 1, joints)).astype(np.float32)
    x = amp * np.sin(2 * np.pi * freq * t + phase) + 0.05 * rng.standard_normal((n, frames, joints), dtype=np.float32)
    return torch.from_numpy((x / x.std()).astype(np.float32))


class TokenMixer(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.h = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.o = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.ff(self.n2(x))


class Codebook(nn.Module):
    def __init__(self, size, dim, decay=0.97, eps=1e-5):
        super().__init__()
        self.decay, self.eps = decay, eps
        self.register_buffer("codes", torch.randn(size, dim))
        self.register_buffer("count", torch.ones(size))
        self.register_buffer("total", self.codes.clone())

    def nearest(self, flat):
        score = flat @ self.codes.t() - 0.5 * self.codes.pow(2).sum(1)
        return score.argmax(1)

    @torch.no_grad()
    def adapt(self, flat, idx):
        n = torch.bincount(idx, minlength=len(self.codes)).float()
        s = torch.zeros_like(self.total).index_add_(0, idx, flat)
        self.count.lerp_(n, 1 - self.decay)
        self.total.lerp_(s, 1 - self.decay)
        total = self.count.sum()
        smooth = (self.count + self.eps) / (total + len(self.codes) * self.eps) * total
        self.codes.copy_(self.total / smooth.unsqueeze(1))
        dead = self.count < 0.02
        if dead.any():
            pick = torch.randint(0, len(flat), (int(dead.sum()),))
            self.codes[dead] = flat[pick]
            self.total[dead] = flat[pick]
            self.count[dead] = 1.0

    def forward(self, z):
        flat = z.detach().reshape(-1, z.shape[-1])
        idx = self.nearest(flat)
        q = self.codes[idx].view_as(z)
        if self.training:
            self.adapt(flat, idx)
        commit = F.mse_loss(z, q)
        return z + (q - z).detach(), commit, idx


class MotionVQ(nn.Module):
    def __init__(self, frames, joints, dim=112, codes=256, stride=4, depth=2):
        super().__init__()
        self.stride = stride
        n = frames // stride
        self.inp = nn.Linear(stride * joints, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(1, n, dim))
        self.enc = nn.Sequential(*[TokenMixer(dim) for _ in range(depth)])
        self.book = Codebook(codes, dim)
        self.dec = nn.Sequential(*[TokenMixer(dim) for _ in range(depth)])
        self.out = nn.Linear(dim, stride * joints)

    def forward(self, x):
        b, t, j = x.shape
        z = self.enc(self.inp(x.reshape(b, t // self.stride, -1)) + self.pos)
        q, commit, idx = self.book(z)
        y = self.out(self.dec(q + self.pos)).view(b, t, j)
        return y, commit, idx


def objective(x, y):
    vel = F.smooth_l1_loss(y[:, 1:] - y[:, :-1], x[:, 1:] - x[:, :-1])
    return F.smooth_l1_loss(y, x) + 0.5 * vel


def perplexity(idx, size):
    p = torch.bincount(idx, minlength=size).float() / len(idx)
    return torch.exp(-(p * (p + 1e-10).log()).sum()).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=20)
    ap.add_argument("--frames", type=int, default=192)
    ap.add_argument("--joints", type=int, default=66)
    ap.add_argument("--beta", type=float, default=0.25)
    ap.add_argument("--lr", type=float, default=6e-4)
    ap.add_argument("--seed", type=int, default=59)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    clips = motion_clips(800, a.frames, a.joints, a.seed)
    loader = DataLoader(TensorDataset(clips), a.batch, shuffle=True, drop_last=True)
    model = MotionVQ(a.frames, a.joints)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, betas=(0.9, 0.99), fused=True)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, 10)

    def epochs():
        while True:
            for (x,) in loader:
                yield x

    for step, x in zip(range(1, a.steps + 1), epochs()):
        y, commit, idx = model(x)
        rec = objective(x, y)
        loss = rec + a.beta * commit
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"step {step:3d} rec {rec.item():.4f} commit {commit.item():.4f} ppl {perplexity(idx, 256):.1f}", flush=True)


if __name__ == "__main__":
    main()
