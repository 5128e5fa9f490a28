"""Sequence-to-sequence transformer on reversed digit strings with variable lengths."""
import argparse
import math

import torch
from torch import nn
import torch.nn.functional as F

DIM, HEADS, VOCAB = 96, 4, 40


class MultiHead(nn.Module):
    def __init__(self, library):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))
        self.library = library

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], HEADS, -1).transpose(1, 2)

    def forward(self, x, mem, mask):
        q, k, v = self.split(self.q(x)), self.split(self.k(mem)), self.split(self.v(mem))
        if self.library:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
            scores = torch.where(mask, scores, torch.full_like(scores, -1e9))
            probs = torch.softmax(scores, dim=-1)
            y = torch.matmul(probs, v)
        return self.o(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, cross, library):
        super().__init__()
        self.self_att = MultiHead(library)
        self.cross_att = MultiHead(library) if cross else None
        self.ff = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.ReLU(), nn.Linear(2 * DIM, DIM))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(3))

    def forward(self, x, mask, mem=None, mem_mask=None):
        h = self.norms[0](x)
        x = x + self.self_att(h, h, mask)
        if mem is not None:
            x = x + self.cross_att(self.norms[1](x), mem, mem_mask)
        return x + self.ff(self.norms[2](x))


class Seq2Seq(nn.Module):
    def __init__(self, max_len, library):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(torch.randn(max_len, DIM) * 0.02)
        self.enc, self.dec = Layer(False, library), Layer(True, library)
        self.out = nn.Linear(DIM, VOCAB)
        self.register_buffer("causal", torch.ones(max_len, max_len).tril().bool())

    def forward(self, src, tgt, src_valid):
        pad = src_valid[:, None, None, :]
        mem = self.enc(self.emb(src) + self.pos, pad)
        return self.out(self.dec(self.emb(tgt) + self.pos, self.causal, mem, pad))


def strings(n, length):
    lens = torch.randint(length - 24, length + 1, (n,))
    src = torch.randint(2, VOCAB, (n, length))
    valid = torch.arange(length) < lens[:, None]
    src = src.masked_fill(~valid, 0)
    idx = (lens[:, None] - 1 - torch.arange(length)).clamp(min=0)
    tgt = src.gather(1, idx).masked_fill(~valid, -100)
    dec_in = torch.cat([torch.ones(n, 1, dtype=torch.long), tgt[:, :-1].clamp(min=0)], 1)
    return src, dec_in, tgt, valid


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(127)
    model = Seq2Seq(192, library=args.fixed)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for step in range(args.steps):
        src, dec_in, tgt, valid = strings(4, 192)
        logits = model(src, dec_in, valid)
        loss = F.cross_entropy(logits.flatten(0, 1), tgt.flatten(), ignore_index=-100)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0:
            print(f"step {step} ce {loss.item():.5f}")


if __name__ == "__main__":
    main()
