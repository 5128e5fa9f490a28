"""Byte-level GPT with an exponential moving average of the weights."""
import argparse
import math

import torch
from torch import nn
import torch.nn.functional as F


def new_gelu(x):
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


ACTIVATIONS = {"new": new_gelu, "tanh": lambda x: F.gelu(x, approximate="tanh")}


class FeedForward(nn.Module):
    def __init__(self, dim, mult, act):
        super().__init__()
        self.up, self.down = nn.Linear(dim, mult * dim), nn.Linear(mult * dim, dim)
        self.act = ACTIVATIONS[act]

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class CausalAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))


class GPT(nn.Module):
    def __init__(self, vocab=128, dim=80, heads=4, depth=2, act="new"):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, dim), nn.Embedding(96, dim)
        self.att = nn.ModuleList(CausalAttention(dim, heads) for _ in range(depth))
        self.ff = nn.ModuleList(FeedForward(dim, 4, act) for _ in range(depth))
        self.n1 = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.n2 = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.nf, self.lm = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for att, ff, n1, n2 in zip(self.att, self.ff, self.n1, self.n2):
            x = x + att(n1(x))
            x = x + ff(n2(x))
        return self.lm(self.nf(x))


class WeightEMA:
    def __init__(self, model, decay=0.99):
        self.decay = decay
        self.shadow = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow, model.parameters()):
            s.lerp_(p, 1 - self.decay)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(137)
    text = torch.randint(0, 8, (30000,)).cumsum(0) % 128
    model = GPT(act="tanh" if args.fixed else "new")
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True)
    ema = WeightEMA(model)
    for step in range(args.steps):
        start = torch.randint(0, len(text) - 97, (10, 1))
        seq = text[start + torch.arange(97)]
        loss = F.cross_entropy(model(seq[:, :-1]).flatten(0, 1), seq[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        ema.update(model)
        if step % 5 == 0:
            print(f"step {step} bits {loss.item() / math.log(2):.5f}")


if __name__ == "__main__":
    main()
