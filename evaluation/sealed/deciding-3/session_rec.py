"""Next-click model for anonymous shop sessions (GRU4Rec-like with attention pooling)."""
import argparse

import numpy as np
import torch
from torch import nn


class SessionLog:
    def __init__(self, n_sessions=6000, n_items=9000, length=12, seed=0):
        rng = np.random.default_rng(seed)
        start = rng.integers(1, n_items, n_sessions)
        hops = rng.geometric(0.35, (n_sessions, length)) * rng.choice([1, 1, 1, 40], (n_sessions, length))
        self.items = ((start[:, None] + np.cumsum(hops, 1)) % (n_items - 1) + 1).astype(np.int64)
        cut = np.where(rng.random(n_sessions) < 0.04, rng.integers(6, length, n_sessions), length)
        self.items[np.arange(length)[None] >= cut[:, None]] = 0
        self.n_items = n_items

    def epoch(self, batch, gen):
        order = torch.randperm(len(self.items), generator=gen)
        table = torch.from_numpy(self.items)
        for idx in order.split(batch):
            if len(idx) == batch:
                yield table[idx]


class AttnPool(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.v = nn.Linear(dim, 1, bias=False)

    def forward(self, h, keep):
        score = self.v(torch.sigmoid(self.q(h)[:, :, None] + self.k(h)[:, None])).squeeze(-1)
        T = h.shape[1]
        causal = torch.ones(T, T, dtype=torch.bool).tril()
        score = score.masked_fill(~(causal & keep[:, None, :]), -1e4)
        return score.softmax(-1) @ h


class SessionRec(nn.Module):
    def __init__(self, n_items, dim=96):
        super().__init__()
        self.items = nn.Embedding(n_items, dim, padding_idx=0)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.pool = AttnPool(dim)
        self.mix = nn.Linear(2 * dim, dim)
        self.bias = nn.Parameter(torch.zeros(n_items))
        nn.init.normal_(self.items.weight, std=0.05)

    def forward(self, seq):
        h, _ = self.gru(self.items(seq))
        z = self.mix(torch.cat([h, self.pool(h, seq > 0)], -1))
        scores = z @ self.items.weight.T + self.bias
        return scores.log_softmax(-1)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.gen = torch.Generator().manual_seed(args.seed)
        self.log = SessionLog(seed=args.seed)
        self.held_out = torch.from_numpy(SessionLog(n_sessions=64, seed=args.seed + 1).items)
        self.model = SessionRec(self.log.n_items)
        self.opt = torch.optim.Adagrad(self.model.parameters(), lr=0.05, fused=True)
        self.criterion = nn.CrossEntropyLoss(ignore_index=0)
        self.step = 0

    def train_step(self, seq):
        inp, target = seq[:, :-1], seq[:, 1:]
        logp = self.model(inp)
        loss = self.criterion(logp.flatten(0, 1), target.flatten())
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()

    @torch.no_grad()
    def recall(self, k=20):
        seq = self.held_out
        logp = self.model(seq[:, :-1])
        target = seq[:, 1:]
        hit = (logp.topk(k, dim=-1).indices == target[..., None]).any(-1)
        gold = logp.gather(-1, target[..., None]).squeeze(-1)
        keep = target > 0
        return hit[keep].float().mean().item(), gold[keep].mean().item()

    def fit(self):
        while True:
            for seq in self.log.epoch(self.args.batch, self.gen):
                loss = self.train_step(seq)
                self.step += 1
                if self.step % 10 == 0:
                    print(f"step {self.step} loss {loss:.4f}")
                if self.step % 50 == 0:
                    r, ll = self.recall()
                    print(f"  recall@20 {r:.4f} mean log-prob {ll:.3f}")
                if self.step >= self.args.steps:
                    return


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--steps", type=int, default=60)
    cli.add_argument("--batch", type=int, default=48)
    cli.add_argument("--seed", type=int, default=1)
    ns = cli.parse_args()
    torch.manual_seed(ns.seed)
    Trainer(ns).fit()
