"""Click model for news impressions: history encoder against shown candidates (NRMS style)."""
import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

TOPICS = 18
TITLE_DIM = 256


class ImpressionLog(torch.utils.data.Dataset):
    """One item per impression: read history, clicked article first, then unclicked ones."""

    def __init__(self, n=4000, n_articles=3000, hist=20, negatives=3, seed=0):
        rng = np.random.default_rng(seed)
        self.topic = rng.integers(0, TOPICS, n_articles)
        centres = rng.standard_normal((TOPICS, TITLE_DIM)).astype(np.float32)
        self.title = torch.from_numpy(centres[self.topic] + rng.standard_normal((n_articles, TITLE_DIM)).astype(np.float32))
        taste = rng.dirichlet(np.full(TOPICS, 0.2), n)
        by_topic = [np.flatnonzero(self.topic == t) for t in range(TOPICS)]
        draw_topic = np.stack([rng.choice(TOPICS, hist + 1, p=t) for t in taste])
        pick = rng.integers(0, 1 << 30, draw_topic.shape)
        self.read = np.array([[by_topic[t][k % len(by_topic[t])] for t, k in zip(a, b)] for a, b in zip(draw_topic, pick)])
        self.neg = rng.integers(0, n_articles, (n, negatives))
        self.hist_len = rng.integers(6, hist + 1, n)
        self.hist = hist

    def __len__(self):
        return len(self.read)

    def __getitem__(self, i):
        history = torch.from_numpy(self.read[i, : self.hist])
        valid = torch.arange(self.hist) < int(self.hist_len[i])
        cands = torch.from_numpy(np.concatenate([self.read[i, self.hist:], self.neg[i]]))
        return history, valid, cands


class ArticleEncoder(nn.Module):
    def __init__(self, title, dim):
        super().__init__()
        self.register_buffer("title", title, persistent=False)
        self.net = nn.Sequential(nn.Linear(TITLE_DIM, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, ids):
        return self.net(self.title[ids])


class HistoryEncoder(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.pool = nn.Sequential(nn.Linear(dim, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, x, valid):
        R, L, D = x.shape
        q, k, v = self.qkv(x).view(R, L, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=valid[:, None, None, :])
        x = x + a.transpose(1, 2).reshape(R, L, D)
        w = self.pool(x).squeeze(-1).masked_fill(~valid, -1e4).softmax(1)
        return (w[..., None] * x).sum(1)


class ClickModel(nn.Module):
    def __init__(self, title, dim=96, deep=1024):
        super().__init__()
        self.article = ArticleEncoder(title, dim)
        self.history = HistoryEncoder(dim)
        self.deep = nn.Sequential(nn.Linear(3 * dim, deep), nn.GELU(), nn.Linear(deep, deep), nn.GELU(), nn.Linear(deep, 1))

    def forward(self, history, valid, cands):
        B, C = cands.shape
        L = history.shape[1]
        c = self.article(cands).flatten(0, 1)
        rows = history[:, None].expand(B, C, L).reshape(B * C, L)
        keep = valid[:, None].expand(B, C, L).reshape(B * C, L)
        u = self.history(self.article(rows), keep)
        score = self.deep(torch.cat([u, c, u * c], -1)).squeeze(-1) + (u * c).sum(-1) / u.shape[-1] ** 0.5
        return score.view(B, C)


def mrr(scores):
    rank = (scores > scores[:, :1]).sum(1) + 1
    return (1.0 / rank).mean().item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=64)
    opts = parser.parse_args()
    torch.manual_seed(9)
    log = ImpressionLog()
    model = ClickModel(log.title)
    optim = torch.optim.Adam(model.parameters(), lr=5e-4, fused=True)
    loader = torch.utils.data.DataLoader(log, opts.batch_size, shuffle=True, drop_last=True)
    step = 0
    while step < opts.steps:
        for history, valid, cands in loader:
            scores = model(history, valid, cands)
            loss = -scores.log_softmax(1)[:, 0].mean()
            optim.zero_grad()
            loss.backward()
            optim.step()
            step += 1
            if step % 10 == 0:
                print(f"step {step} loss {loss.item():.4f} mrr {mrr(scores.detach()):.3f}")
            if step >= opts.steps:
                break
