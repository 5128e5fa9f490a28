"""Continue masked-language-model pretraining on discharge notes."""
import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

PAD, CLS, SEP, MASK = 0, 1, 2, 3
FIRST_WORD = 4


class NoteWindows(Dataset):
    def __init__(self, n_windows, length, vocab, seed):
        g = torch.Generator().manual_seed(seed)
        ranks = torch.arange(1, vocab - FIRST_WORD + 1, dtype=torch.float)
        body = torch.multinomial(1.0 / ranks, n_windows * (length - 2), replacement=True, generator=g)
        body = body.view(n_windows, length - 2) + FIRST_WORD
        body[:, 1::2] = (body[:, ::2] * 7 + 11) % (vocab - FIRST_WORD) + FIRST_WORD
        edge = torch.ones(n_windows, 1, dtype=torch.long)
        self.ids = torch.cat([edge * CLS, body, edge * SEP], dim=1)

    def __len__(self):
        return self.ids.size(0)

    def __getitem__(self, i):
        return self.ids[i]


class WholeBatchMasker:
    def __init__(self, vocab, prob, seed):
        self.vocab, self.prob = vocab, prob
        self.gen = torch.Generator().manual_seed(seed)

    def __call__(self, rows):
        ids = torch.stack(rows)
        draw = torch.rand(ids.shape, generator=self.gen)
        picked = (draw < self.prob) & (ids >= FIRST_WORD)
        labels = ids.masked_fill(~picked, -100)
        how = torch.rand(ids.shape, generator=self.gen)
        noise = torch.randint(FIRST_WORD, self.vocab, ids.shape, generator=self.gen)
        inputs = torch.where(picked & (how < 0.8), MASK, ids)
        inputs = torch.where(picked & (how >= 0.9), noise, inputs)
        return inputs, labels


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class NoteBert(nn.Module):
    def __init__(self, vocab, dim, depth, heads, length, compact):
        super().__init__()
        self.compact = compact
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        nn.init.normal_(self.tok.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.transform = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.LayerNorm(dim))
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, ids, labels):
        h = self.tok(ids) + self.pos.weight[: ids.size(1)]
        for block in self.blocks:
            h = block(h)
        if self.compact:
            keep = labels != -100
            h, labels = h[keep], labels[keep]
        logits = F.linear(self.transform(h), self.tok.weight, self.bias)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1), ignore_index=-100)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(7)
    vocab, length = 3600, 48
    notes = NoteWindows(4096, length, vocab, seed=1)
    loader = DataLoader(notes, batch_size=8, shuffle=True, drop_last=True,
                        collate_fn=WholeBatchMasker(vocab, 0.15, seed=2))
    model = NoteBert(vocab, 128, 3, 4, length, compact=args.fixed)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01, fused=True)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min(1.0, (s + 1) / 50) * (0.5 + 0.5 * math.cos(math.pi * min(1.0, s / args.steps))))
    step, spent = 0, []
    while step < args.steps:
        tic = time.perf_counter()
        for inputs, labels in loader:
            loss = model(inputs, labels)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            step += 1
            if step % 50 == 0:
                print(f"step {step} mlm_loss {loss.item():.4f}")
            spent.append(time.perf_counter() - tic)
            tic = time.perf_counter()
            if step == args.steps:
                break
    print(f"step_ms={1000 * sum(spent[10:]) / max(1, len(spent[10:])):.2f}")


if __name__ == "__main__":
    main()
