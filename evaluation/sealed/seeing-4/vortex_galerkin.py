"""Galerkin-type transformer that advances two-dimensional vorticity fields by one time unit."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class VorticitySolver:
    """Pseudo-spectral solver of decaying turbulence on a periodic square; makes the training pairs."""

    def __init__(self, side, nu=1e-2, dt=0.01):
        k = torch.fft.fftfreq(side, 1 / side)
        self.kx, self.ky = torch.meshgrid(k, k[: side // 2 + 1].abs(), indexing="ij")
        self.k2 = self.kx ** 2 + self.ky ** 2
        self.inv = torch.where(self.k2 > 0, 1 / self.k2.clamp(min=1), torch.zeros(()))
        self.mask = ((self.kx.abs() < side / 3) & (self.ky < side / 3)).float()
        self.side, self.nu, self.dt = side, nu, dt

    def initial(self, n, gen):
        noise = torch.randn(n, self.side, self.side, generator=gen)
        w = torch.fft.irfft2(torch.fft.rfft2(noise) * torch.exp(-self.k2 / 18), s=(self.side, self.side))
        return 1.5 * w / w.std((1, 2), keepdim=True)

    def advance(self, w, steps):
        wh = torch.fft.rfft2(w)
        size = (self.side, self.side)
        for _ in range(steps):
            psi = wh * self.inv
            u = torch.fft.irfft2(1j * self.ky * psi, s=size)
            v = torch.fft.irfft2(-1j * self.kx * psi, s=size)
            wx = torch.fft.irfft2(1j * self.kx * wh, s=size)
            wy = torch.fft.irfft2(1j * self.ky * wh, s=size)
            rhs = -torch.fft.rfft2(u * wx + v * wy) * self.mask
            wh = (wh + self.dt * rhs) / (1 + self.dt * self.nu * self.k2)
        return torch.fft.irfft2(wh, s=size)


class GalerkinAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.norm_k = nn.LayerNorm(dim // heads)
        self.norm_v = nn.LayerNorm(dim // heads)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        k, v = self.norm_k(k), self.norm_v(v)
        y = torch.einsum("bhnd,bhmd,bhme->bhne", q, k, v) / n
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, dim, heads, ratio=4):
        super().__init__()
        self.attn = GalerkinAttention(dim, heads)
        self.ff = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, ratio * dim), nn.GELU(), nn.Linear(ratio * dim, dim))

    def forward(self, x):
        x = x + self.attn(x)
        return x + self.ff(x)


class VortexFormer(nn.Module):
    def __init__(self, side, patch=2, dim=64, heads=4, depth=2):
        super().__init__()
        self.patch, self.cells = patch, side // patch
        self.embed = nn.Conv2d(1, dim, patch, patch)
        self.pos = nn.Parameter(0.02 * torch.randn(1, self.cells ** 2, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.decode = nn.Linear(dim, patch * patch)

    def forward(self, w):
        x = self.embed(w.unsqueeze(1)).flatten(2).transpose(1, 2) + self.pos
        for block in self.blocks:
            x = block(x)
        y = F.pixel_shuffle(self.decode(x).transpose(1, 2).unflatten(2, (self.cells, self.cells)), self.patch)
        return w + y.squeeze(1)


def h1_loss(pred, true):
    def rel(a, b):
        return ((a - b).flatten(1).norm(dim=1) / b.flatten(1).norm(dim=1)).mean()
    grad = [(torch.roll(f, -1, ax) - torch.roll(f, 1, ax)) / 2 for ax in (1, 2) for f in (pred, true)]
    return rel(pred, true) + 0.1 * (rel(grad[0], grad[1]) + rel(grad[2], grad[3]))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--side", type=int, default=40)
    ap.add_argument("--pairs", type=int, default=160)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=23)
    args = ap.parse_args()
    gen = torch.Generator().manual_seed(args.seed)
    torch.manual_seed(args.seed)

    solver = VorticitySolver(args.side)
    before = solver.initial(args.pairs, gen)
    after = solver.advance(before, 60)
    net = VortexFormer(args.side)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.steps + 1, pct_start=0.2)

    for step in range(1, args.steps + 1):
        idx = torch.randperm(args.pairs, generator=gen)[: args.batch]
        shift = torch.randint(0, args.side, (2,), generator=gen).tolist()
        x, y = (torch.roll(f[idx], shift, (1, 2)) for f in (before, after))
        loss = h1_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"step {step:4d}  h1 {loss.item():.4f}  lr {sched.get_last_lr()[0]:.2e}")


if __name__ == "__main__":
    main()
