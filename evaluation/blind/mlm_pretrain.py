"""Masked-token pretraining of a small encoder on synthetic Markov text."""
import argparse
import math
import time

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

PAD, MASK, FIRST = 0, 1, 2


class MarkovCorpus(Dataset):
    """Sentences from a sparse first-order chain: every token has a handful of successors."""

    def __init__(self, n_docs, seq_len, vocab, seed):
        rng = np.random.default_rng(seed)
        succ = rng.integers(FIRST, vocab, size=(vocab, 6))
        cur = rng.integers(FIRST, vocab, size=n_docs)
        docs = np.empty((n_docs, seq_len), dtype=np.int64)
        for t in range(seq_len):
            docs[:, t] = cur
            cur = succ[cur, rng.integers(0, 6, size=n_docs)]
        self.docs = torch.from_numpy(docs)

    def __len__(self):
        return len(self.docs)

    def __getitem__(self, i):
        return self.docs[i]


class MaskingCollator:
    def __init__(self, vocab, prob=0.15):
        self.vocab, self.prob = vocab, prob

    def __call__(self, items):
        ids = torch.stack(items)
        labels = ids.clone()
        picked = torch.rand(ids.shape) < self.prob
        labels[~picked] = -100
        roll = torch.rand(ids.shape)
        ids = torch.where(picked & (roll < 0.8), torch.full_like(ids, MASK), ids)
        noise = torch.randint(FIRST, self.vocab, ids.shape)
        ids = torch.where(picked & (roll >= 0.9), noise, ids)
        return ids, labels


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        att = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.proj(att)
        return x + self.ff(self.ln2(x))


class MaskedLM(nn.Module):
    def __init__(self, vocab, dim=160, depth=3, heads=4, max_len=128):
        super().__init__()
        self.vocab = vocab
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.zeros(1, max_len, dim))
        nn.init.normal_(self.tok.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.transform = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.LayerNorm(dim))
        self.bias = nn.Parameter(torch.zeros(vocab))

    def encode(self, ids):
        x = self.tok(ids) + self.pos[:, :ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, ids, labels=None):
        h = self.encode(ids)
        logits = F.linear(self.transform(h), self.tok.weight, self.bias)
        if labels is None:
            return logits
        return F.cross_entropy(logits.view(-1, self.vocab), labels.view(-1), ignore_index=-100)


class Trainer:
    def __init__(self, model, args):
        self.model, self.args = model, args
        decay = [p for p in model.parameters() if p.dim() >= 2]
        rest = [p for p in model.parameters() if p.dim() < 2]
        groups = [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
        self.opt = torch.optim.AdamW(groups, lr=args.lr, fused=True)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, self.schedule)
        self.step = 0

    def schedule(self, step):
        if step < self.args.warmup:
            return (step + 1) / self.args.warmup
        frac = (step - self.args.warmup) / max(1, self.args.max_steps - self.args.warmup)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, frac)))

    def fit(self, loader):
        window, t0 = 0.0, time.time()
        while self.step < self.args.max_steps:
            for ids, labels in loader:
                loss = self.model(ids, labels)
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.opt.step()
                self.opt.zero_grad()
                self.sched.step()
                self.step += 1
                window += loss.item()
                if self.step % self.args.log_every == 0:
                    dt = time.time() - t0
                    print(f"step {self.step:5d} loss {window / self.args.log_every:.4f} "
                          f"lr {self.sched.get_last_lr()[0]:.2e} {dt / self.args.log_every * 1e3:.0f} ms/step", flush=True)
                    window, t0 = 0.0, time.time()
                if self.step >= self.args.max_steps:
                    break


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocab", type=int, default=3000)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--max-steps", type=int, default=3000)
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--log-every", type=int, default=20)
    cli = parser.parse_args()
    torch.manual_seed(7)
    corpus = MarkovCorpus(4096, cli.seq_len, cli.vocab, seed=7)
    batches = DataLoader(corpus, batch_size=cli.batch_size, shuffle=True, drop_last=True,
                         collate_fn=MaskingCollator(cli.vocab))
    Trainer(MaskedLM(cli.vocab), cli).fit(batches)
