"""Decoder-only language model with gradient accumulation and warm-up."""
import argparse
from dataclasses import dataclass

import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 96
    dim: int = 96
    heads: int = 4
    depth: int = 2
    context: int = 64
    micro: int = 6
    accumulate: int = 2
    lr: float = 1e-3


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c.heads
        self.n1, self.n2 = nn.LayerNorm(c.dim), nn.LayerNorm(c.dim)
        self.qkv, self.proj = nn.Linear(c.dim, 3 * c.dim), nn.Linear(c.dim, c.dim)
        self.ff = nn.Sequential(nn.Linear(c.dim, 4 * c.dim), nn.GELU(approximate="tanh"), nn.Linear(4 * c.dim, c.dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.n2(x))


class Decoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tok, self.pos = nn.Embedding(c.vocab, c.dim), nn.Parameter(torch.randn(c.context, c.dim) * 0.02)
        self.blocks = nn.Sequential(*[Block(c) for _ in range(c.depth)])
        self.norm, self.head = nn.LayerNorm(c.dim), nn.Linear(c.dim, c.vocab, bias=False)
        self.head.weight = self.tok.weight
        nn.init.normal_(self.tok.weight, std=0.05)

    def forward(self, ids):
        return self.head(self.norm(self.blocks(self.tok(ids) + self.pos)))


def sample_windows(text, c, offsets):
    start = torch.randint(0, len(text) - c.context - 1, (c.micro, 1))
    w = text[start + offsets]
    return w[:, :-1], w[:, 1:]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    c = Config()
    torch.manual_seed(303)
    text = (torch.randint(0, 5, (20000,)).cumsum(0) * 3) % c.vocab
    offsets = torch.arange(c.context + 1)
    model = Decoder(c)
    opt = torch.optim.AdamW(model.parameters(), lr=c.lr, betas=(0.9, 0.95), fused=True)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 5))
    for step in range(args.steps):
        opt.zero_grad()
        total = torch.zeros(())
        for _ in range(c.accumulate):
            x, y = sample_windows(text, c, offsets)
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / c.accumulate
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 5 == 4:
            print(f"step {step + 1} nll {total.item():.5f} lr {sched.get_last_lr()[0]:.6f}")


if __name__ == "__main__":
    main()
