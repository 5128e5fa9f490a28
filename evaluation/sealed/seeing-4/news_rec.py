"""Click prediction on a news site: title encoder, additive user pooling, impression-wise softmax."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Impressions(Dataset):
    """History of clicked articles, one clicked and several skipped candidates."""

    def __init__(self, n, articles, vocab, title_len, history, negatives, seed):
        rng = np.random.default_rng(seed)
        topic = rng.integers(0, 25, articles)
        words = rng.integers(1, vocab, (25, 60))
        titles = np.stack([rng.choice(words[t], title_len) for t in topic])
        noise = rng.random(titles.shape) < 0.3
        titles[noise] = rng.integers(1, vocab, noise.sum())
        lengths = rng.integers(title_len // 2, title_len + 1, articles)
        titles[np.arange(title_len) >= lengths[:, None]] = 0
        self.titles = torch.from_numpy(titles)
        heat = 1.0 / (1 + rng.permutation(articles)) ** 0.9
        by_topic = [np.flatnonzero(topic == k) for k in range(25)]
        weight = [heat[m] / heat[m].sum() for m in by_topic]
        self.history = np.empty((n, history), np.int64)
        self.candidates = np.empty((n, 1 + negatives), np.int64)
        for i in range(n):
            likes = rng.choice(25, 3, replace=False)
            self.history[i] = [rng.choice(by_topic[k], p=weight[k]) for k in rng.choice(likes, history)]
            k = rng.choice(likes)
            self.candidates[i, 0] = rng.choice(by_topic[k], p=weight[k])
        self.candidates[:, 1:] = rng.choice(articles, (n, negatives), p=heat / heat.sum())

    def __len__(self):
        return len(self.history)

    def __getitem__(self, i):
        return self.history[i], self.candidates[i]


class Additive(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(dim, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, x, mask=None):
        a = self.score(x).squeeze(-1)
        if mask is not None:
            a = a.masked_fill(~mask, -1e4)
        return (torch.softmax(a, -1).unsqueeze(-2) @ x).squeeze(-2)


class TitleEncoder(nn.Module):
    def __init__(self, vocab, embed, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.words = nn.Embedding(vocab, embed, padding_idx=0)
        self.qkv = nn.Linear(embed, 3 * dim)
        self.pool = Additive(dim, dim)

    def forward(self, titles):
        n, t = titles.shape
        mask = titles != 0
        q, k, v = self.qkv(self.words(titles)).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
        return self.pool(x.transpose(1, 2).flatten(2), mask)


class UserEncoder(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.pool = Additive(dim, dim)

    def forward(self, clicked):
        b, h, d = clicked.shape
        q, k, v = self.qkv(clicked).view(b, h, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = clicked + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, h, d)
        return self.pool(x + self.mlp(x))


class NewsRec(nn.Module):
    def __init__(self, titles, vocab, embed=64, dim=64):
        super().__init__()
        self.register_buffer("titles", titles, persistent=False)
        self.news = TitleEncoder(vocab, embed, dim)
        self.user = UserEncoder(dim)

    def embed_articles(self, ids):
        vec = self.news(self.titles[ids.reshape(-1)])
        return vec.view(*ids.shape, -1)

    def forward(self, history, candidates):
        both = self.embed_articles(torch.cat([history, candidates], 1))
        clicked, cand = both.split([history.shape[1], candidates.shape[1]], 1)
        return (cand @ self.user(clicked).unsqueeze(-1)).squeeze(-1)


def mean_rank(scores):
    return ((scores[:, 1:] > scores[:, :1]).sum(1).float() + 1).mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--articles", type=int, default=1500)
    ap.add_argument("--vocab", type=int, default=4000)
    ap.add_argument("--history", type=int, default=20)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=38)
    args = ap.parse_args()
    torch.manual_seed(args.seed)

    data = Impressions(2400, args.articles, args.vocab, 14, args.history, 4, args.seed)
    loader = DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True)
    model = NewsRec(data.titles, args.vocab)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)

    step, ranks = 0, []
    while step < args.steps:
        for history, candidates in loader:
            scores = model(history, candidates)
            loss = F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            ranks.append(mean_rank(scores.detach()))
            if step % 10 == 0:
                print(f"step {step:4d} loss {loss.item():.4f} mean rank {np.mean(ranks[-10:]):.3f}")
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
