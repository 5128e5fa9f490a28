"""Routing of support tickets: compact transformer classifier, compiled, with periodic validation."""
import argparse
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

VOCAB, LENGTH, QUEUES = 4000, 64, 11


class TicketDataset(Dataset):
    """Tokenised subject + body, truncated to a fixed window by the export job."""

    def __init__(self, n=3000, seed=0):
        rng = np.random.default_rng(seed)
        self.label = rng.integers(0, QUEUES, n)
        topical = rng.integers(2, VOCAB, (QUEUES, 150))
        ids = rng.integers(2, VOCAB, (n, LENGTH))
        hot = rng.random((n, LENGTH)) < 0.3
        ids[hot] = topical[self.label][np.nonzero(hot)[0], rng.integers(0, 150, hot.sum())]
        length = rng.integers(LENGTH - 12, LENGTH + 1, n)
        ids[np.arange(LENGTH)[None] >= length[:, None]] = 0
        self.ids, self.y = torch.from_numpy(ids), torch.from_numpy(self.label)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.ids[i], self.y[i]


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x, mask):
        B, T, D = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.proj(a.transpose(1, 2).reshape(B, T, D))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class TriageNet(nn.Module):
    def __init__(self, d=160, layers=2, heads=4):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d, padding_idx=0)
        self.pos = nn.Parameter(torch.randn(LENGTH, d) * 0.02)
        self.layers = nn.ModuleList(Layer(d, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(d)
        self.cls = nn.Linear(d, QUEUES)

    def forward(self, ids):
        keep = ids > 0
        mask = keep[:, None, None, :]
        x = self.tok(ids) + self.pos
        for layer in self.layers:
            x = layer(x, mask)
        w = keep.float().unsqueeze(-1)
        return self.cls((self.norm(x) * w).sum(1) / w.sum(1))


@torch.no_grad()
def validate(model, loader):
    model.eval()
    right = total = 0
    for ids, y in loader:
        right += (model(ids).argmax(1) == y).sum().item()
        total += len(y)
    model.train()
    return right / total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--lr", type=float, default=8e-4)
    args = ap.parse_args()
    torch.manual_seed(0)
    data = TicketDataset()
    cut = len(data) - 80
    train = DataLoader(Subset(data, range(cut)), args.batch, shuffle=True, drop_last=True)
    val = DataLoader(Subset(data, range(cut, len(data))), args.batch)
    model = TriageNet()
    fast = torch.compile(model, backend="aot_eager")
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05, fused=True)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min((s + 1) / 10, 0.5 * (1 + math.cos(math.pi * s / max(1, args.steps)))))
    step = 0
    while step < args.steps:
        for ids, y in train:
            loss = F.cross_entropy(fast(ids), y, label_smoothing=0.1)
            opt.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            step += 1
            if step % 10 == 0:
                print(f"{step:4d} loss {loss.item():.4f} |g| {norm.item():.3f} lr {sched.get_last_lr()[0]:.2e}")
            if step % 60 == 0:
                print(f"     val acc {validate(model, val):.3f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
