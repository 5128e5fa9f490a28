"""BYOL pre-training on grain-surface micrographs with a small ViT."""
import argparse
import copy
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def micrographs(n, size, seed):
    rng = np.random.default_rng(seed)
    f = np.fft.rfftfreq(size)[None] ** 2 + np.fft.fftfreq(size)[:, None] ** 2
    out = np.empty((n, 1, size, size), np.uint8)
    for i in range(n):
        amp = 1.0 / (f + rng.uniform(1e-3, 2e-2)) ** rng.uniform(0.5, 1.0)
        img = np.fft.irfft2(amp * np.fft.rfft2(rng.standard_normal((size, size))), s=(size, size))
        out[i, 0] = ((img - img.min()) / np.ptp(img) * 255).astype(np.uint8)
    return torch.from_numpy(out)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(a.transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.n2(x))


class ViT(nn.Module):
    def __init__(self, size, patch, dim, depth, heads):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(patch * patch, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2, dim))
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        p = F.unfold(x, self.patch, stride=self.patch).transpose(1, 2)
        return self.norm(self.blocks(self.embed(p) + self.pos)).mean(1)


def mlp(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.BatchNorm1d(h), nn.ReLU(inplace=True), nn.Linear(h, o))


class BYOL(nn.Module):
    def __init__(self, size, dim=128, depth=3, proj=96):
        super().__init__()
        self.online = nn.Sequential(ViT(size, 8, dim, depth, 4), mlp(dim, 2 * dim, proj))
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.predictor = mlp(proj, 2 * dim, proj)

    @torch.no_grad()
    def momentum_update(self, m):
        torch._foreach_lerp_(list(self.target.parameters()), list(self.online.parameters()), 1 - m)

    def forward(self, v1, v2):
        with torch.no_grad():
            t1, t2 = self.target(torch.cat([v1, v2])).chunk(2)
        p1, p2 = self.predictor(self.online(torch.cat([v1, v2]))).chunk(2)
        sim = F.cosine_similarity(p1, t2) + F.cosine_similarity(p2, t1)
        return (2 - sim).mean()


def view(x, size):
    """Random crop (shared offset), dihedral flips, brightness/contrast, additive noise."""
    oy, ox = torch.randint(0, x.shape[-1] - size + 1, (2,)).tolist()
    v = x[..., oy:oy + size, ox:ox + size].float() / 255.0
    if torch.rand(()) < 0.5:
        v = v.transpose(2, 3)
    v = torch.rot90(v, int(torch.randint(0, 4, ())), (2, 3))
    gain = 0.7 + 0.6 * torch.rand(len(x), 1, 1, 1)
    bias = 0.3 * torch.rand(len(x), 1, 1, 1) - 0.15
    return (v - 0.5) * gain + bias + 0.03 * torch.randn(v.shape)


def momentum_schedule(step, total, base):
    return 1 - (1 - base) * (math.cos(math.pi * step / total) + 1) / 2


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=12)
    ap.add_argument("--raw", type=int, default=80)
    ap.add_argument("--size", type=int, default=64)
    ap.add_argument("--momentum", type=float, default=0.99)
    ap.add_argument("--lr", type=float, default=5e-4)
    ap.add_argument("--seed", type=int, default=15)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    images = micrographs(300, a.raw, a.seed)
    model = BYOL(a.size)
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=a.lr, weight_decay=0.05, fused=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, a.lr, total_steps=a.steps)
    losses = []
    for step in range(a.steps):
        x = images[torch.randint(0, len(images), (a.batch,))]
        loss = model(view(x, a.size), view(x, a.size))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        model.momentum_update(momentum_schedule(step, a.steps, a.momentum))
        losses.append(loss.item())
        if (step + 1) % 10 == 0:
            print(f"step {step + 1:3d} byol {np.mean(losses[-10:]):.4f}", flush=True)


if __name__ == "__main__":
    main()
