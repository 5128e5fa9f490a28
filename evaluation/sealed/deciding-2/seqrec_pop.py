"""Sequential recommender with popularity-sampled negatives (one shop, clicks only)."""
import argparse

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler


def make_clicks(n_users, n_items, length, rng):
    popularity = 1.0 / np.arange(1, n_items + 1) ** 0.8
    popularity = rng.permutation(popularity)
    popularity /= popularity.sum()
    cdf = np.cumsum(popularity)
    clicks = np.searchsorted(cdf, rng.random((n_users, length))).clip(0, n_items - 1)
    drift = rng.random((n_users, length)) < 0.35
    shifted = np.roll(clicks, 1, axis=1) + 7
    clicks = np.where(drift, shifted % n_items, clicks)
    return clicks.astype(np.int64)


class ClickHistory(Dataset):
    def __init__(self, clicks, n_items, n_neg, smoothing=0.75, seed=0):
        self.clicks = clicks
        self.n_items = n_items
        self.n_neg = n_neg
        counts = np.bincount(clicks.ravel(), minlength=n_items).astype(np.float64)
        weight = (counts + 1.0) ** smoothing
        self.item_prob = weight / weight.sum()
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return len(self.clicks)

    def __getitem__(self, u):
        row = self.clicks[u]
        history, target = row[:-1], row[1:]
        negatives = self.rng.choice(self.n_items, size=self.n_neg, p=self.item_prob)
        return torch.from_numpy(history), torch.from_numpy(target), torch.from_numpy(negatives)


class CausalLayer(nn.Module):
    def __init__(self, dim, heads, drop):
        super().__init__()
        self.heads = heads
        self.ln_a = nn.LayerNorm(dim)
        self.ln_f = nn.LayerNorm(dim)
        self.in_proj = nn.Linear(dim, dim * 3)
        self.out_proj = nn.Linear(dim, dim)
        self.ffn = nn.Sequential(nn.Linear(dim, dim * 2), nn.ReLU(), nn.Linear(dim * 2, dim))
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        B, L, D = x.shape
        q, k, v = self.in_proj(self.ln_a(x)).reshape(B, L, 3, self.heads, D // self.heads).unbind(2)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                           is_causal=True)
        x = x + self.drop(self.out_proj(y.transpose(1, 2).reshape(B, L, D)))
        return x + self.drop(self.ffn(self.ln_f(x)))


class SeqRec(nn.Module):
    def __init__(self, n_items, dim, length, layers):
        super().__init__()
        self.items = nn.Embedding(n_items, dim)
        self.place = nn.Embedding(length, dim)
        self.layers = nn.ModuleList([CausalLayer(dim, 2, 0.1) for _ in range(layers)])
        self.final = nn.LayerNorm(dim)
        nn.init.normal_(self.items.weight, std=0.05)

    def forward(self, history):
        pos = torch.arange(history.shape[1])
        h = self.items(history) + self.place(pos)
        for layer in self.layers:
            h = layer(h)
        return self.final(h)

    def loss(self, history, target, negatives):
        h = self(history)
        pos_score = (h * self.items(target)).sum(-1, keepdim=True)
        neg_score = h @ self.items(negatives).transpose(1, 2)
        scores = torch.cat([pos_score, neg_score], dim=-1)
        labels = scores.new_zeros(scores.shape[:2], dtype=torch.long)
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten())


def parse():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch-size", type=int, default=128)
    p.add_argument("--n-items", type=int, default=30000)
    p.add_argument("--n-neg", type=int, default=64)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--lr", type=float, default=1e-3)
    return p.parse_args()


def main():
    a = parse()
    torch.manual_seed(11)
    rng = np.random.default_rng(11)
    clicks = make_clicks(20000, a.n_items, 31, rng)
    data = ClickHistory(clicks, a.n_items, a.n_neg, seed=12)
    sampler = RandomSampler(data, replacement=True, num_samples=a.steps * a.batch_size)
    loader = DataLoader(data, batch_size=a.batch_size, sampler=sampler)
    model = SeqRec(a.n_items, a.dim, 30, layers=2)
    opt = torch.optim.Adam(model.parameters(), lr=a.lr, fused=True)
    running = 0.0
    for step, (history, target, negatives) in enumerate(loader, 1):
        loss = model.loss(history, target, negatives)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        running += loss.item()
        if step % 10 == 0:
            print(f"[{step}/{a.steps}] sampled softmax {running / 10:.5f}")
            running = 0.0


if __name__ == "__main__":
    main()
