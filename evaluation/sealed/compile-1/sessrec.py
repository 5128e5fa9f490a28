"""Next-item model for shop sessions (causal self-attention, sampled catalogue)."""
import argparse
import math
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch._dynamo
from torch.utils.data import DataLoader, Dataset, Sampler

torch._dynamo.config.recompile_limit = 128


class SessionLog(Dataset):
    """Click sessions, item ids 1..n_items; 0 is the padding id."""

    def __init__(self, n_sessions, n_items, rng):
        lengths = np.clip(rng.lognormal(3.9, 0.65, n_sessions), 6, 200).astype(int)
        self.offsets = np.concatenate([[0], np.cumsum(lengths)])
        topics = rng.integers(0, 40, n_sessions)
        flat = np.empty(self.offsets[-1], dtype=np.int64)
        for s, topic in enumerate(topics):
            lo, hi = self.offsets[s], self.offsets[s + 1]
            drift = rng.geometric(0.02, hi - lo)
            flat[lo:hi] = 1 + (topic * (n_items // 40) + drift) % n_items
        self.items = torch.from_numpy(flat)
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        return self.items[self.offsets[i]:self.offsets[i + 1]]


class LengthGroupedBatches(Sampler):
    def __init__(self, lengths, batch_size, seed):
        self.order = np.argsort(lengths, kind="stable")
        self.batch_size = batch_size
        self.rng = random.Random(seed)

    def __iter__(self):
        chunks = [self.order[i:i + self.batch_size].tolist()
                  for i in range(0, len(self.order) - self.batch_size + 1, self.batch_size)]
        self.rng.shuffle(chunks)
        return iter(chunks)

    def __len__(self):
        return len(self.order) // self.batch_size


def collate(sessions, multiple=16):
    longest = max(len(s) for s in sessions)
    width = multiple * math.ceil(longest / multiple) + 1
    out = torch.zeros(len(sessions), width, dtype=torch.long)
    for row, s in enumerate(sessions):
        out[row, :len(s)] = s
    return out[:, :-1].contiguous(), out[:, 1:].contiguous()


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class SessionModel(nn.Module):
    def __init__(self, n_items, dim, depth, heads, max_len=256):
        super().__init__()
        self.item_emb = nn.Embedding(n_items + 1, dim, padding_idx=0)
        self.pos_emb = nn.Embedding(max_len, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        nn.init.normal_(self.item_emb.weight, std=0.05)

    def forward(self, items, targets):
        pos = torch.arange(items.shape[1], device=items.device)
        x = self.item_emb(items) + self.pos_emb(pos)
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.item_emb.weight.t()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0)


class Trainer:
    def __init__(self, args):
        self.args = args
        rng = np.random.default_rng(args.seed)
        torch.manual_seed(args.seed)
        data = SessionLog(args.sessions, args.items, rng)
        self.loader = DataLoader(
            data,
            batch_sampler=LengthGroupedBatches(data.lengths, args.batch_size, args.seed),
            collate_fn=collate,
        )
        self.model = SessionModel(args.items, args.dim, args.depth, args.heads)
        decay = [p for p in self.model.parameters() if p.ndim > 1]
        plain = [p for p in self.model.parameters() if p.ndim <= 1]
        self.opt = torch.optim.AdamW(
            [{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}], lr=args.lr)
        self.sched = torch.optim.lr_scheduler.LambdaLR(
            self.opt, lambda s: min(1.0, (s + 1) / 20) * 0.5 * (1 + math.cos(math.pi * min(1, s / 400))))
        self.net = torch.compile(self.model, backend=args.backend, fullgraph=True, dynamic=False)
        self.step = 0

    def batches(self):
        while True:
            yield from self.loader

    def fit(self):
        running = []
        for items, targets in self.batches():
            if self.step >= self.args.steps:
                break
            loss = self.net(items, targets)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.sched.step()
            self.step += 1
            running.append(loss.detach())
            if self.step % self.args.log_every == 0:
                mean = torch.stack(running).mean().item()
                print(f"step {self.step:4d}  loss {mean:.5f}  lr {self.sched.get_last_lr()[0]:.2e}", flush=True)
                running.clear()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--sessions", type=int, default=6000)
    p.add_argument("--items", type=int, default=3000)
    p.add_argument("--batch-size", type=int, default=22)
    p.add_argument("--dim", type=int, default=128)
    p.add_argument("--depth", type=int, default=2)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--backend", default="aot_eager")
    p.add_argument("--log-every", type=int, default=10)
    p.add_argument("--seed", type=int, default=3)
    Trainer(p.parse_args()).fit()
