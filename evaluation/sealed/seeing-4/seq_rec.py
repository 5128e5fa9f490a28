"""Masked-item transformer for session-based music recommendation."""
import argparse
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

PAD, MASK, SHIFT = 0, 1, 2


def listen(sessions, tracks, max_len, seed):
    """Sessions that wander inside a genre and sometimes jump."""
    rng = np.random.default_rng(seed)
    genre = rng.integers(0, 40, tracks)
    members = [np.flatnonzero(genre == g) for g in range(40)]
    out = np.zeros((sessions, max_len), np.int64)
    for i in range(sessions):
        g, n = rng.integers(40), rng.integers(max_len // 2, max_len + 1)
        for t in range(max_len - n, max_len):
            if rng.random() < 0.1:
                g = rng.integers(40)
            pool = members[g]
            out[i, t] = SHIFT + pool[int(len(pool) * rng.random() ** 2)]
    return torch.from_numpy(out)


@dataclass
class Masked:
    inputs: torch.Tensor
    targets: torch.Tensor


class MaskedSessions:
    def __init__(self, data, batch, prob, seed):
        self.data, self.batch, self.prob = data, batch, prob
        self.gen = torch.Generator().manual_seed(seed)

    def __iter__(self):
        while True:
            perm = torch.randperm(len(self.data), generator=self.gen)
            for idx in perm.split(self.batch)[: len(perm) // self.batch]:
                x = self.data[idx]
                pick = (torch.rand(x.shape, generator=self.gen) < self.prob) & (x != PAD)
                pick[:, -1] |= ~pick.any(1)
                yield Masked(torch.where(pick, MASK, x), torch.where(pick, x, PAD))


class Layer(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.n2(x))


class SessionBert(nn.Module):
    def __init__(self, tracks, max_len, dim=64, heads=4, depth=3, dropout=0.0):
        super().__init__()
        self.items = nn.Embedding(tracks + SHIFT, dim, padding_idx=PAD)
        self.pos = nn.Parameter(0.02 * torch.randn(max_len, dim))
        self.layers = nn.ModuleList(Layer(dim, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.transform = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.LayerNorm(dim))
        self.bias = nn.Parameter(torch.zeros(tracks + SHIFT))
        nn.init.normal_(self.items.weight, 0, 0.05)

    def encode(self, x):
        mask = (x != PAD)[:, None, None, :]
        h = self.items(x) + self.pos
        for layer in self.layers:
            h = layer(h, mask)
        return self.norm(h)

    def logits(self, h):
        return F.linear(self.transform(h), self.items.weight, self.bias)


def cloze_loss(model, batch):
    logits = model.logits(model.encode(batch.inputs))
    wanted = batch.targets != PAD
    logits, truth = logits[wanted], batch.targets[wanted]
    return F.cross_entropy(logits, truth), logits.detach(), truth


def hit_rate(logits, truth, k=10):
    return (logits.topk(k, 1).indices == truth[:, None]).any(1).float().mean().item()


def train(opt_args):
    torch.manual_seed(opt_args.seed)
    sessions = listen(1500, opt_args.tracks, opt_args.max_len, opt_args.seed)
    stream = iter(MaskedSessions(sessions, opt_args.batch, opt_args.mask_prob, opt_args.seed))
    model = SessionBert(opt_args.tracks, opt_args.max_len)
    decay = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim == 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}], lr=opt_args.lr)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=20)
    for step in range(1, opt_args.steps + 1):
        loss, logits, truth = cloze_loss(model, next(stream))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"step {step:5d} loss {loss.item():.4f} hit@10 {hit_rate(logits, truth):.4f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--tracks", type=int, default=1600)
    ap.add_argument("--max-len", type=int, default=48)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--mask-prob", type=float, default=0.2)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=27)
    train(ap.parse_args())
