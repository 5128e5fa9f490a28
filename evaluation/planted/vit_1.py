"""Tiny vision transformer for 32x32 images."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class Head(nn.Module):
    def __init__(self, dim, hd):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, hd, bias=False) for _ in range(3))

    def forward(self, x):
        return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))


class ManyHeads(nn.Module):
    def __init__(self, dim, n):
        super().__init__()
        self.heads = nn.ModuleList(Head(dim, dim // n) for _ in range(n))
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        return self.out(torch.cat([h(x) for h in self.heads], dim=-1))


class FusedHeads(nn.Module):
    def __init__(self, src):
        super().__init__()
        self.n = len(src.heads)
        self.qkv = nn.Parameter(torch.cat([getattr(h, k).weight.detach() for k in "qkv" for h in src.heads]))
        self.out = src.out

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = F.linear(x, self.qkv).view(b, t, 3, self.n, d // self.n).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Encoder(nn.Module):
    def __init__(self, dim, n):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = ManyHeads(dim, n)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class ViT(nn.Module):
    def __init__(self, dim=128, heads=16, depth=3, n_class=10, fused=False):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 4, 4)
        self.pos = nn.Parameter(torch.randn(1, 64, dim) * 0.02)
        self.blocks = nn.ModuleList(Encoder(dim, heads) for _ in range(depth))
        self.head = nn.Linear(dim, n_class)
        if fused:
            for blk in self.blocks:
                blk.attn = FusedHeads(blk.attn)

    def forward(self, img):
        x = self.patch(img).flatten(2).transpose(1, 2) + self.pos
        for blk in self.blocks:
            x = blk(x)
        return self.head(x.mean(1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(101)
    imgs, labels = torch.randn(400, 3, 32, 32), torch.randint(0, 10, (400,))
    imgs += torch.randn(10, 3, 32, 32)[labels] * 0.5
    model = ViT(fused=args.fixed)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01)
    for step in range(args.steps):
        i = torch.randint(0, 400, (8,))
        flip = torch.rand(8, 1, 1, 1) < 0.5
        batch = torch.where(flip, imgs[i].flip(-1), imgs[i])
        loss = F.cross_entropy(model(batch), labels[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0:
            print(f"step {step} ce {loss.item():.4f}")


if __name__ == "__main__":
    main()
