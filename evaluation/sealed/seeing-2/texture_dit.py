"""Class-conditional diffusion transformer on latent codes of fabric textures."""
import argparse
import copy
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class LatentBank:
    """Pre-encoded latents, (N, 4, 8, 8) float16, as written by the autoencoder job."""

    def __init__(self, n, classes, seed):
        rng = np.random.default_rng(seed)
        base = rng.normal(0, 1, (classes, 4, 8, 8)).astype(np.float32)
        self.labels = rng.integers(0, classes, n)
        noise = rng.standard_normal((n, 4, 8, 8), dtype=np.float32)
        self.latents = (0.7 * base[self.labels] + 0.5 * noise).astype(np.float16)
        self.rng = rng

    def batch(self, b):
        i = self.rng.integers(0, len(self.labels), b)
        return torch.from_numpy(self.latents[i]).float(), torch.from_numpy(self.labels[i])


def timestep_embedding(t, dim):
    freqs = torch.exp(-math.log(10000.0) * torch.arange(dim // 2, dtype=torch.float32) / (dim // 2))
    a = t[:, None].float() * freqs[None]
    return torch.cat([a.cos(), a.sin()], -1)


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class DiTBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1 = nn.LayerNorm(dim, elementwise_affine=False)
        self.n2 = nn.LayerNorm(dim, elementwise_affine=False)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))
        self.ada = nn.Linear(dim, 6 * dim)
        nn.init.zeros_(self.ada.weight)
        nn.init.zeros_(self.ada.bias)

    def forward(self, x, c):
        s1, k1, g1, s2, k2, g2 = self.ada(c).chunk(6, -1)
        b, n, d = x.shape
        q, k, v = self.qkv(modulate(self.n1(x), s1, k1)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = x + g1.unsqueeze(1) * self.proj(a)
        return x + g2.unsqueeze(1) * self.mlp(modulate(self.n2(x), s2, k2))


class DiT(nn.Module):
    def __init__(self, classes, dim, depth, heads):
        super().__init__()
        self.dim, self.classes = dim, classes
        self.embed = nn.Linear(16, dim)
        self.pos = nn.Parameter(torch.randn(1, 16, dim) * 0.02)
        self.time = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.label = nn.Embedding(classes + 1, dim)
        self.blocks = nn.ModuleList(DiTBlock(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, 16)

    def forward(self, z, t, y):
        b = z.shape[0]
        p = z.view(b, 4, 4, 2, 4, 2).permute(0, 2, 4, 1, 3, 5).reshape(b, 16, 16)
        x = self.embed(p) + self.pos
        c = F.silu(self.time(timestep_embedding(t, self.dim)) + self.label(y))
        for blk in self.blocks:
            x = blk(x, c)
        o = self.out(self.norm(x)).view(b, 4, 4, 4, 2, 2)
        return o.permute(0, 3, 1, 4, 2, 5).reshape(b, 4, 8, 8)


class Diffusion:
    def __init__(self, T=400):
        s = 0.008
        f = torch.cos((torch.arange(T + 1) / T + s) / (1 + s) * math.pi / 2) ** 2
        self.abar = (f / f[0])[1:].clamp(min=1e-4)
        self.T = T

    def loss(self, model, z, y, drop):
        t = torch.randint(0, self.T, (len(z),))
        eps = torch.randn_like(z)
        a = self.abar[t].view(-1, 1, 1, 1)
        y = torch.where(torch.rand(len(y)) < drop, model.classes, y)
        v = a.sqrt() * eps - (1 - a).sqrt() * z
        pred = model(a.sqrt() * z + (1 - a).sqrt() * eps, t, y)
        return F.mse_loss(pred, v)

    @torch.no_grad()
    def sample(self, model, y, n_steps, gen):
        z = torch.randn(len(y), 4, 8, 8, generator=gen)
        ts = torch.linspace(self.T - 1, 0, n_steps).long()
        for i, t in enumerate(ts):
            a = self.abar[t]
            v = model(z, t.expand(len(y)), y)
            x0 = a.sqrt() * z - (1 - a).sqrt() * v
            eps = (1 - a).sqrt() * z + a.sqrt() * v
            an = self.abar[ts[i + 1]] if i + 1 < n_steps else torch.ones(())
            z = an.sqrt() * x0 + (1 - an).sqrt() * eps
        return z


class Average:
    def __init__(self, model, decay):
        self.decay = decay
        self.weights = {k: v.clone() for k, v in model.state_dict().items()}
        self.module = copy.deepcopy(model).eval().requires_grad_(False)

    def update(self, model, step):
        d = min(self.decay, (1 + step) / (10 + step))
        for k, v in model.state_dict().items():
            self.weights[k] = d * self.weights[k] + (1 - d) * v
        self.module.load_state_dict(self.weights)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--dim", type=int, default=288)
    ap.add_argument("--depth", type=int, default=6)
    ap.add_argument("--classes", type=int, default=8)
    ap.add_argument("--drop", type=float, default=0.1)
    ap.add_argument("--decay", type=float, default=0.999)
    ap.add_argument("--preview-every", type=int, default=40)
    ap.add_argument("--lr", type=float, default=3e-4)
    ap.add_argument("--seed", type=int, default=9)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    bank = LatentBank(4000, a.classes, a.seed)
    model = DiT(a.classes, a.dim, a.depth, 6)
    ema = Average(model, a.decay)
    diff = Diffusion()
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=0.0, fused=True)
    for step in range(1, a.steps + 1):
        z, y = bank.batch(a.batch)
        loss = diff.loss(model, z, y, a.drop)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        ema.update(model, step)
        if step % 10 == 0:
            print(f"step {step:4d} v-loss {loss.item():.4f}", flush=True)
        if step % a.preview_every == 0:
            s = diff.sample(ema.module, torch.arange(4), 8, torch.Generator().manual_seed(0))
            print(f"preview mean {s.mean().item():+.4f} std {s.std().item():.4f}", flush=True)


if __name__ == "__main__":
    main()
