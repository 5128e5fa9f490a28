"""Next-item model over shop sessions (self-attentive, sampled BCE)."""
import argparse
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def simulate_sessions(n_users, n_items, rng):
    """Zipf-popular catalogue; users drift inside a few neighbouring categories."""
    base = 1.0 / np.arange(1, n_items + 1) ** 0.8
    order = rng.permutation(n_items)
    cum = np.cumsum(base / base.sum())
    lengths = rng.integers(12, 90, size=n_users)
    sessions = []
    for n in lengths:
        draws = np.minimum(cum.searchsorted(rng.random(n)), n_items - 1)
        stay = rng.random(n) < 0.4
        for t in range(1, n):
            if stay[t]:
                draws[t] = (draws[t - 1] + 1) % n_items
        sessions.append(order[draws] + 1)
    return sessions


class SessionWindows(Dataset):
    """Item ids start at 1; 0 is padding."""

    def __init__(self, sessions, n_items, window, smoothing=0.75, seed=0):
        self.sessions = sessions
        self.n_items = n_items
        self.window = window
        self.rng = np.random.default_rng(seed)
        counts = np.bincount(np.concatenate(sessions), minlength=n_items + 1)[1:]
        weights = (counts + 1.0) ** smoothing
        self.popularity = weights / weights.sum()

    def __len__(self):
        return len(self.sessions)

    def __getitem__(self, user):
        items = self.sessions[user]
        if len(items) > self.window + 1:
            start = int(self.rng.integers(0, len(items) - self.window))
            items = items[start:start + self.window + 1]
        n = len(items) - 1
        history = np.zeros(self.window, dtype=np.int64)
        target = np.zeros(self.window, dtype=np.int64)
        history[-n:] = items[:-1]
        target[-n:] = items[1:]
        negative = self.rng.choice(self.n_items, size=self.window, p=self.popularity) + 1
        return history, target, negative


class Block(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads = heads
        self.norm_a = nn.LayerNorm(dim)
        self.norm_f = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm_a(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.drop(self.ff(self.norm_f(x)))


class SASRec(nn.Module):
    def __init__(self, n_items, window, dim=64, heads=2, depth=2, dropout=0.1):
        super().__init__()
        self.item = nn.Embedding(n_items + 1, dim, padding_idx=0)
        self.pos = nn.Parameter(torch.zeros(window, dim))
        self.blocks = nn.ModuleList(Block(dim, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        nn.init.normal_(self.item.weight, std=0.02)
        nn.init.normal_(self.pos, std=0.02)

    def forward(self, history):
        x = self.item(history) * math.sqrt(self.item.embedding_dim) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def score(self, states, items):
        return (states * self.item(items)).sum(-1)


def sampled_bce(model, history, target, negative):
    states = model(history)
    valid = target > 0
    states, target, negative = states[valid], target[valid], negative[valid]
    pos = model.score(states, target)
    neg = model.score(states, negative)
    loss = F.softplus(-pos).mean() + F.softplus(neg).mean()
    return loss, (pos > neg).float().mean()


def endless(loader):
    while True:
        yield from loader


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--users", type=int, default=6000)
    ap.add_argument("--items", type=int, default=20000)
    ap.add_argument("--window", type=int, default=48)
    ap.add_argument("--batch-size", type=int, default=128)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--log-every", type=int, default=10)
    args = ap.parse_args()

    torch.manual_seed(11)
    sessions = simulate_sessions(args.users, args.items, np.random.default_rng(11))
    data = SessionWindows(sessions, args.items, args.window, seed=12)
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = SASRec(args.items, args.window)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.98), fused=True)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 20))

    for step, (history, target, negative) in enumerate(endless(loader), start=1):
        loss, acc = sampled_bce(model, history, target, negative)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        sched.step()
        if step % args.log_every == 0 or step == 1:
            print(f"step {step:4d}  bce {loss.item():.5f}  pair-acc {acc.item():.4f}")
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
