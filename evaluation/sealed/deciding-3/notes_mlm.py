"""Continued masked-LM pretraining on de-identified ward notes."""
import argparse
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

VOCAB = 6000
PAD, CLS, SEP, MASK = 0, 1, 2, 3
IGNORE = -100


class NotesCorpus(Dataset):
    """Token ids of note sections, stored back to back with offsets."""

    def __init__(self, n_notes=1500, max_len=96, seed=0):
        rng = np.random.default_rng(seed)
        lens = rng.integers(max_len - 6, max_len, n_notes)
        self.offsets = np.concatenate([[0], np.cumsum(lens)])
        zipf = rng.zipf(1.25, self.offsets[-1])
        self.tokens = (4 + zipf % (VOCAB - 4)).astype(np.int64)
        # sections re-use phrases, so that there is something to predict
        self.tokens[1::3] = (self.tokens[0::3][: len(self.tokens[1::3])] * 7) % (VOCAB - 4) + 4
        self.max_len = max_len

    def __len__(self):
        return len(self.offsets) - 1

    def __getitem__(self, i):
        ids = self.tokens[self.offsets[i]:self.offsets[i + 1]]
        return torch.from_numpy(ids[: self.max_len - 1])


class MaskingCollator:
    def __init__(self, prob=0.15, seed=0):
        self.prob = prob
        self.gen = torch.Generator().manual_seed(seed)

    def __call__(self, items):
        width = max(len(x) for x in items) + 1
        ids = torch.full((len(items), width), PAD)
        for row, x in zip(ids, items):
            row[0] = CLS
            row[1:1 + len(x)] = x
        special = ids < 4
        labels = ids.clone()
        chosen = (torch.rand(ids.shape, generator=self.gen) < self.prob) & ~special
        labels[~chosen] = IGNORE
        dice = torch.rand(ids.shape, generator=self.gen)
        ids = torch.where(chosen & (dice < 0.8), torch.full_like(ids, MASK), ids)
        noise = torch.randint(4, VOCAB, ids.shape, generator=self.gen)
        ids = torch.where(chosen & (dice > 0.9), noise, ids)
        return ids, ids != PAD, labels


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x, mask):
        B, T, D = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(a.transpose(1, 2).reshape(B, T, D))
        return x + self.ff(self.ln2(x))


class MLMHead(nn.Module):
    def __init__(self, d, tied):
        super().__init__()
        self.dense = nn.Linear(d, d)
        self.norm = nn.LayerNorm(d)
        self.weight = tied
        self.bias = nn.Parameter(torch.zeros(tied.shape[0]))

    def forward(self, h):
        return F.linear(self.norm(F.gelu(self.dense(h))), self.weight, self.bias)


class NotesBert(nn.Module):
    def __init__(self, d=128, layers=4, heads=4, max_len=96):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d)
        self.pos = nn.Parameter(torch.zeros(max_len, d))
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(d)
        self.head = MLMHead(d, self.tok.weight)
        nn.init.normal_(self.tok.weight, std=0.02)

    def encode(self, ids, keep):
        x = self.tok(ids) + self.pos[: ids.shape[1]]
        mask = keep[:, None, None, :]
        for blk in self.blocks:
            x = blk(x, mask)
        return self.norm(x)

    def forward(self, ids, keep, labels):
        h = self.encode(ids, keep)
        scores = self.head(h)
        loss = F.cross_entropy(scores.view(-1, VOCAB), labels.view(-1), ignore_index=IGNORE)
        return loss


def lr_at(step, total, peak=6e-4, warm=10):
    if step < warm:
        return peak * (step + 1) / warm
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=12)
    ap.add_argument("--seed", type=int, default=11)
    args = ap.parse_args()
    torch.manual_seed(args.seed)

    loader = DataLoader(NotesCorpus(), args.batch, shuffle=True, drop_last=True, collate_fn=MaskingCollator())
    model = NotesBert()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    step, running = 0, 0.0
    while step < args.steps:
        for ids, keep, labels in loader:
            for g in opt.param_groups:
                g["lr"] = lr_at(step, args.steps)
            loss = model(ids, keep, labels)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            running = 0.9 * running + 0.1 * loss.item() if step else loss.item()
            step += 1
            if step % 10 == 0:
                print(f"step {step:4d}  mlm loss {loss.item():.4f}  smoothed {running:.4f}")
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
