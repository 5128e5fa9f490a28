"""Spam detection with a one-layer transformer over messages of different length."""
import argparse
import random

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

MAX_TOKENS = 96


class Messages(Dataset):
    def __init__(self, n, vocab=900, seed=4):
        rng = random.Random(seed)
        self.items = []
        for _ in range(n):
            spam = rng.random() < 0.4
            length = rng.randint(38, 50)
            toks = [rng.randint(1, vocab - 1) for _ in range(length)]
            if spam:
                for k in range(0, length, 6):
                    toks[k] = 1 + rng.randint(0, 15)
            self.items.append((torch.tensor(toks), float(spam)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class Collator:
    def __init__(self, width=None):
        self.width = width

    def __call__(self, batch):
        seqs, labels = zip(*batch)
        lens = torch.tensor([len(s) for s in seqs])
        width = self.width or int(lens.max())
        ids = torch.zeros(len(seqs), width, dtype=torch.long)
        for row, s in enumerate(seqs):
            ids[row, : len(s)] = s
        return ids, torch.arange(width) < lens[:, None], torch.tensor(labels)


class SpamNet(nn.Module):
    def __init__(self, vocab=900, dim=64, heads=4):
        super().__init__()
        self.heads = heads
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.pos = nn.Parameter(torch.randn(MAX_TOKENS, dim) * 0.02)
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))
        self.out = nn.Linear(dim, 1)

    def forward(self, ids, valid):
        x = self.emb(ids) + self.pos[: ids.shape[1]]
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=valid[:, None, None, :])
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        x = x + self.ff(self.n2(x))
        pooled = (x * valid.unsqueeze(-1)).sum(1) / valid.sum(1, keepdim=True)
        return self.out(pooled).squeeze(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(223)
    collate = Collator() if args.fixed else Collator(MAX_TOKENS)
    loader = DataLoader(Messages(16 * args.steps), 16, shuffle=True, collate_fn=collate, drop_last=True)
    net = SpamNet()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    for step, (ids, valid, label) in enumerate(loader):
        loss = F.binary_cross_entropy_with_logits(net(ids, valid), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0:
            print(f"step {step} bce {loss.item():.5f}")


if __name__ == "__main__":
    main()
