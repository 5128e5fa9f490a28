"""Playlist continuation with LightGCN-free BPR and popularity-smoothed negatives."""
import argparse

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


def playlists(n_lists, n_tracks, rng):
    pop = rng.zipf(1.4, n_tracks).clip(max=5000).astype(np.float64)
    pop /= pop.sum()
    cdf = np.cumsum(pop)
    lens = rng.integers(12, 40, n_lists)
    tracks = np.searchsorted(cdf, rng.random(lens.sum())).clip(max=n_tracks - 1)
    return np.split(tracks, np.cumsum(lens)[:-1])


class NegativeSampler:
    """Draws tracks with probability count ** alpha, as word2vec does."""

    def __init__(self, lists, n_tracks, alpha=0.75, seed=0):
        counts = np.bincount(np.concatenate(lists), minlength=n_tracks) + 1.0
        weight = counts ** alpha
        self.prob = weight / weight.sum()
        self.n = n_tracks
        self.rng = np.random.default_rng(seed)

    def draw(self, k):
        return self.rng.choice(self.n, size=k, p=self.prob)


class ContinuationPairs(Dataset):
    def __init__(self, lists, sampler, context=10, negatives=16):
        self.lists, self.sampler = lists, sampler
        self.context, self.negatives = context, negatives
        self.where = [(i, j) for i, t in enumerate(lists) for j in range(context, len(t))]

    def __len__(self):
        return len(self.where)

    def __getitem__(self, n):
        i, j = self.where[n]
        tracks = self.lists[i]
        neg = self.sampler.draw(self.negatives)
        return tracks[j - self.context:j], tracks[j], neg


class ContinuationNet(nn.Module):
    def __init__(self, n_tracks, dim=64, hidden=512):
        super().__init__()
        self.track = nn.EmbeddingBag(n_tracks, dim, mode="mean", sparse=True)
        self.target = nn.Embedding(n_tracks, dim, sparse=True)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, dim))
        self.cross = nn.Sequential(nn.Linear(2 * dim, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        nn.init.normal_(self.track.weight, std=0.1)
        nn.init.normal_(self.target.weight, std=0.1)

    def forward(self, context, items):
        q = self.mlp(self.track(context))
        t = self.target(items)
        dot = torch.einsum("bd,bkd->bk", q, t)
        pair = torch.cat([q[:, None].expand_as(t), t], -1)
        return dot + self.cross(pair).squeeze(-1)


def bpr(scores):
    return -F.logsigmoid(scores[:, :1] - scores[:, 1:]).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=256)
    ap.add_argument("--tracks", type=int, default=12000)
    args = ap.parse_args()
    torch.manual_seed(2)
    lists = playlists(2500, args.tracks, np.random.default_rng(2))
    data = ContinuationPairs(lists, NegativeSampler(lists, args.tracks))
    loader = DataLoader(data, args.batch, shuffle=True, drop_last=True)
    net = ContinuationNet(args.tracks)
    tables = [net.track.weight, net.target.weight]
    dense = list(net.mlp.parameters()) + list(net.cross.parameters())
    opt_tables = torch.optim.SGD(tables, lr=5.0)
    opt_dense = torch.optim.Adam(dense, lr=1e-3, fused=True)

    def forever():
        while True:
            yield from loader

    hist = []
    for step, (ctx, pos, neg) in enumerate(forever(), 1):
        scores = net(ctx, torch.cat([pos[:, None], neg], 1))
        loss = bpr(scores)
        opt_tables.zero_grad()
        opt_dense.zero_grad()
        loss.backward()
        opt_tables.step()
        opt_dense.step()
        hist.append(loss.item())
        if step % 10 == 0:
            print(f"[{step}] bpr {np.mean(hist[-10:]):.4f}")
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
