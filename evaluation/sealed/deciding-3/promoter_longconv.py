"""Promoter activity from sequence with implicit long convolutions (Hyena operator, bidirectional)."""
import argparse
import math

import torch
from torch import nn

ALPHABET = 5          # A C G T N
LENGTH = 4096


class SyntheticPromoters:
    """Random genomic windows with planted motif pairs; activity depends on their distance."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.left = torch.tensor([0, 2, 2, 3, 1, 0, 1, 3])
        self.right = torch.tensor([3, 3, 0, 1, 0, 2, 2, 1])

    def batch(self, n):
        x = torch.randint(0, 4, (n, LENGTH), generator=self.gen)
        a = torch.randint(0, LENGTH // 2 - 16, (n,), generator=self.gen)
        gap = torch.randint(8, LENGTH // 2 - 16, (n,), generator=self.gen)
        cols = torch.arange(8)
        x.scatter_(1, a[:, None] + cols, self.left.expand(n, 8))
        x.scatter_(1, (a + gap)[:, None] + cols, self.right.expand(n, 8))
        blank = torch.rand(x.shape, generator=self.gen) < 0.01
        y = torch.log(gap.float()) - math.log(LENGTH / 4)
        return x.masked_fill(blank, 4), y


class ImplicitFilter(nn.Module):
    def __init__(self, channels, length, hidden=32, bands=8):
        super().__init__()
        t = torch.linspace(0, 1, length)[:, None]
        w = 2 * math.pi * torch.arange(1, bands + 1)
        self.register_buffer("pos", torch.cat([t, torch.sin(w * t), torch.cos(w * t)], 1))
        self.mlp = nn.Sequential(nn.Linear(2 * bands + 1, hidden), nn.SiLU(), nn.Linear(hidden, channels, bias=False))
        self.register_buffer("decay", torch.exp(-t * torch.linspace(3, 30, channels)))

    def forward(self):
        return (self.mlp(self.pos) * self.decay).T


def long_conv(u, k, skip):
    """Linear convolution of u (B, C, L) with per-channel filters k (C, L), causal part."""
    L = u.shape[-1]
    n = L + k.shape[-1] - 1
    uf = torch.fft.rfft(u, n=n)
    kf = torch.fft.rfft(k, n=n)
    y = torch.fft.irfft(uf * kf, n=n)[..., :L]
    return y + u * skip[:, None]


class HyenaBlock(nn.Module):
    def __init__(self, dim, length):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.proj = nn.Linear(dim, 2 * dim)
        self.short = nn.Conv1d(2 * dim, 2 * dim, 3, padding=1, groups=2 * dim)
        self.filter = ImplicitFilter(dim, length)
        self.skip = nn.Parameter(torch.ones(dim))
        self.out = nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        h = self.short(self.proj(self.norm(x)).transpose(1, 2))
        gate, v = h.chunk(2, 1)
        y = long_conv(v, self.filter(), self.skip) * torch.sigmoid(gate)
        x = x + self.out(y.transpose(1, 2))
        return x + self.ff(x)


class PromoterNet(nn.Module):
    def __init__(self, dim=24, depth=2):
        super().__init__()
        self.emb = nn.Embedding(ALPHABET, dim)
        self.blocks = nn.ModuleList(HyenaBlock(dim, LENGTH) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, x):
        h = self.emb(x)
        for b in self.blocks:
            h = b(h)
        return self.head(h.mean(1)).squeeze(-1)


def build_optimizer(model, lr):
    slow = [p for n, p in model.named_parameters() if ".filter." in n]
    rest = [p for n, p in model.named_parameters() if ".filter." not in n]
    return torch.optim.AdamW([{"params": rest}, {"params": slow, "lr": lr * 0.2, "weight_decay": 0.0}], lr=lr, fused=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    torch.manual_seed(17)
    data = SyntheticPromoters(17)
    model = PromoterNet()
    opt = build_optimizer(model, args.lr)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=10)
    avg = None
    for step in range(1, args.steps + 1):
        x, y = data.batch(args.batch)
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        warm.step()
        avg = loss.item() if avg is None else 0.95 * avg + 0.05 * loss.item()
        if step % 10 == 0:
            print(f"step {step} mse {loss.item():.4f} avg {avg:.4f}")


if __name__ == "__main__":
    main()
