"""Masked-token pretraining on de-identified clinic notes (synthetic stand-in corpus)."""
import argparse
import math
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

PAD, MASK, FIRST = 0, 1, 4


class NoteCorpus(Dataset):
    """Token blocks cut from one long stream; a bigram chain gives the text some structure."""

    def __init__(self, n_blocks, block, vocab, seed):
        rng = np.random.default_rng(seed)
        branch = rng.integers(FIRST, vocab, size=(vocab, 8))
        stream = np.empty((n_blocks, block), dtype=np.int64)
        cur = rng.integers(FIRST, vocab, size=n_blocks)
        for t in range(block):
            stream[:, t] = cur
            cur = branch[cur, rng.integers(0, 8, size=n_blocks)]
        self.stream = torch.from_numpy(stream)

    def __len__(self):
        return self.stream.shape[0]

    def __getitem__(self, i):
        return self.stream[i]


class MaskCollator:
    def __init__(self, vocab, prob):
        self.vocab, self.prob = vocab, prob

    def __call__(self, rows):
        ids = torch.stack(rows)
        labels = ids.clone()
        chosen = torch.rand(ids.shape) < self.prob
        labels[~chosen] = -100
        roll = torch.rand(ids.shape)
        ids = ids.masked_fill(chosen & (roll < 0.8), MASK)
        noise = torch.randint(FIRST, self.vocab, ids.shape)
        swap = chosen & (roll > 0.9)
        return torch.where(swap, noise, ids), labels


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(a)
        return x + self.down(F.gelu(self.up(self.n2(x))))


class NoteEncoder(nn.Module):
    def __init__(self, vocab, d=192, heads=4, depth=3, block=96):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(torch.zeros(1, block, d))
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(d)
        self.transform = nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.LayerNorm(d))
        self.bias = nn.Parameter(torch.zeros(vocab))
        nn.init.normal_(self.tok.weight, std=0.02)

    def encode(self, ids):
        x = self.tok(ids) + self.pos[:, : ids.shape[1]]
        for blk in self.blocks:
            x = blk(x)
        return self.norm(x)

    def predict(self, h):
        return F.linear(self.transform(h), self.tok.weight, self.bias)

    def forward(self, ids, labels):
        h = self.encode(ids)
        logits = self.predict(h)
        loss = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=-100)
        return loss


def cycle(loader):
    while True:
        yield from loader


def lr_at(step, total, peak):
    warm = max(1, total // 10)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--vocab", type=int, default=4000)
    ap.add_argument("--mask-prob", type=float, default=0.15)
    ap.add_argument("--lr", type=float, default=6e-4)
    ap.add_argument("--log-every", type=int, default=10)
    args = ap.parse_args()
    random.seed(3)
    torch.manual_seed(3)

    corpus = NoteCorpus(4000, 96, args.vocab, seed=3)
    loader = DataLoader(corpus, batch_size=args.batch, shuffle=True, drop_last=True,
                        collate_fn=MaskCollator(args.vocab, args.mask_prob))
    model = NoteEncoder(args.vocab)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01, fused=True)
    batches = cycle(loader)
    for step in range(args.steps):
        for g in opt.param_groups:
            g["lr"] = lr_at(step, args.steps, args.lr)
        ids, labels = next(batches)
        loss = model(ids, labels)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % args.log_every == 0 or step == args.steps - 1:
            print(f"step {step:4d}  mlm {loss.item():.5f}  masked {(labels >= 0).sum().item()}")


if __name__ == "__main__":
    main()
