"""bfloat16 language model on synthetic arithmetic text."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F

DIM, HEADS, HIDDEN, VOCAB, LEN = 192, 6, 512, 64, 64


class GatedFFN(nn.Module):
    def __init__(self, upcast):
        super().__init__()
        self.w_in = nn.Linear(DIM, 2 * HIDDEN, bias=False)
        self.w_out = nn.Linear(HIDDEN, DIM, bias=False)
        self.compute = torch.float32 if upcast else None

    def forward(self, x):
        if self.compute is None:
            gate, val = self.w_in(x).chunk(2, -1)
            return self.w_out(F.silu(gate) * val)
        u = x.to(self.compute)
        gate, val = F.linear(u, self.w_in.weight.to(self.compute)).chunk(2, -1)
        y = F.linear(F.silu(gate) * val, self.w_out.weight.to(self.compute))
        return y.to(x.dtype)


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, DIM))


class Block(nn.Module):
    def __init__(self, upcast):
        super().__init__()
        self.a, self.f = SelfAttention(), GatedFFN(upcast)
        self.na, self.nf = nn.LayerNorm(DIM), nn.LayerNorm(DIM)

    def forward(self, x):
        x = x + self.a(self.na(x))
        return x + self.f(self.nf(x))


class LM(nn.Module):
    def __init__(self, depth=2, upcast=True):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(torch.randn(LEN, DIM) * 0.02)
        self.blocks = nn.ModuleList(Block(upcast) for _ in range(depth))
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids):
        x = self.emb(ids) + self.pos
        for b in self.blocks:
            x = b(x)
        return self.head(x)


def sums(n, gen):
    a = torch.randint(0, 30, (n, 1), generator=gen)
    d = torch.randint(1, 5, (n, 1), generator=gen)
    return (a + d * torch.arange(LEN + 1)) % VOCAB


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(73)
    gen = torch.Generator().manual_seed(74)
    model = LM(upcast=not args.fixed).to(torch.bfloat16)
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for step in range(args.steps):
        seq = sums(10, gen)
        logits = model(seq[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), seq[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0:
            print(f"step {step} nll {loss.item():.2f}")


if __name__ == "__main__":
    main()
