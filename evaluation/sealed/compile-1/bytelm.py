"""Byte-level language model on documents of uneven length, packed by a token budget."""
import argparse
import math
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def make_documents(n, seed):
    rng = np.random.default_rng(seed)
    words = [bytes(rng.integers(97, 123, rng.integers(2, 9)).astype(np.uint8)) for _ in range(800)]
    weights = 1.0 / np.arange(1, len(words) + 1)
    weights /= weights.sum()
    docs = []
    for _ in range(n):
        count = int(np.clip(rng.lognormal(3.6, 0.5), 10, 110))
        text = b" ".join(words[i] for i in rng.choice(len(words), count, p=weights))
        docs.append(torch.frombuffer(bytearray(text), dtype=torch.uint8).long())
    return docs


class BudgetBatches:
    """Documents sorted by length and cut so that a padded batch stays within `budget` bytes."""

    def __init__(self, docs, budget, seed, max_len=640):
        self.docs = [d[:max_len] for d in docs]
        order = sorted(range(len(docs)), key=lambda i: len(self.docs[i]))
        self.groups, current = [], []
        for i in order:
            width = len(self.docs[i])
            if current and width * (len(current) + 1) > budget:
                self.groups.append(current)
                current = []
            current.append(i)
        self.gen = torch.Generator().manual_seed(seed)

    def __iter__(self):
        while True:
            for g in torch.randperm(len(self.groups), generator=self.gen).tolist():
                rows = [self.docs[i] for i in self.groups[g]]
                yield nn.utils.rnn.pad_sequence(rows, batch_first=True)


class Rotary(nn.Module):
    def __init__(self, head_dim, max_len):
        super().__init__()
        freq = 1.0 / 10000 ** (torch.arange(0, head_dim, 2) / head_dim)
        angle = torch.outer(torch.arange(max_len).float(), freq)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, x):
        t = x.shape[-2]
        a, b = x.chunk(2, -1)
        c, s = self.cos[:t], self.sin[:t]
        return torch.cat([a * c - b * s, a * s + b * c], -1)


class Layer(nn.Module):
    def __init__(self, dim, heads, rotary):
        super().__init__()
        self.heads, self.rotary = heads, rotary
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.ff1, self.ff2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(self.rotary(q), self.rotary(k), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.ff2(F.relu(self.ff1(self.n2(x))))


class ByteLM(nn.Module):
    def __init__(self, dim, depth, heads, max_len):
        super().__init__()
        self.emb = nn.Embedding(256, dim)
        rotary = Rotary(dim // heads, max_len)
        self.layers = nn.ModuleList(Layer(dim, heads, rotary) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 256)

    def forward(self, ids, targets):
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0)


def lr_at(step, base, warmup, total):
    if step < warmup:
        return base * (step + 1) / warmup
    return base * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / total))))


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--budget", type=int, default=1200)
    ap.add_argument("--dim", type=int, default=192)
    ap.add_argument("--depth", type=int, default=3)
    ap.add_argument("--heads", type=int, default=4)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--backend", default="eager")
    ap.add_argument("--seed", type=int, default=13)
    args = ap.parse_args()

    torch.manual_seed(args.seed)
    feed = BudgetBatches(make_documents(1500, args.seed), args.budget, args.seed)
    model = ByteLM(args.dim, args.depth, args.heads, max_len=640)
    loss_fn = torch.compile(model, backend=args.backend, fullgraph=True)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), fused=True)

    seen, losses, t0 = 0, [], time.perf_counter()
    for step, batch in enumerate(feed):
        if step == args.steps:
            break
        ids, targets = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
        torch._dynamo.mark_dynamic(ids, (0, 1))
        torch._dynamo.mark_dynamic(targets, (0, 1))
        for group in opt.param_groups:
            group["lr"] = lr_at(step, args.lr, 10, 400)
        loss = loss_fn(ids, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        seen += ids.numel()
        if (step + 1) % 10 == 0:
            nats = torch.stack(losses).mean().item()
            losses.clear()
            print(f"step {step + 1:5d}  {nats / math.log(2):.4f} bits/byte  {seen / (time.perf_counter() - t0):,.0f} B/s", flush=True)


if __name__ == "__main__":
    main()
