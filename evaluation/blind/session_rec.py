"""Next-item recommendation from click sessions, trained with sampled softmax."""
import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

N_ITEMS = 30000
SESSION = 16
NEGATIVES = 40


class ClickLog(Dataset):
    def __init__(self, n_sessions, seed):
        rng = np.random.default_rng(seed)
        rank = rng.permutation(N_ITEMS) + 1
        self.popularity = 1.0 / rank ** 0.8
        self.popularity /= self.popularity.sum()
        topic = rng.integers(0, 60, size=(n_sessions, 1))
        jitter = rng.integers(0, N_ITEMS // 60, size=(n_sessions, SESSION + 1))
        self.clicks = (topic * (N_ITEMS // 60) + jitter).astype(np.int64)

    def __len__(self):
        return len(self.clicks)

    def __getitem__(self, index):
        row = self.clicks[index]
        return row[:-1], row[-1]


class SessionCollate:
    """Stacks sessions and draws negatives from the smoothed popularity of the catalogue."""

    def __init__(self, popularity, seed, fixed):
        smoothed = popularity ** 0.75
        self.probs = smoothed / smoothed.sum()
        self.log_q = torch.from_numpy(np.log(self.probs)).float()
        self.rng = np.random.default_rng(seed)
        self.fixed = fixed
        cdf = self.probs.cumsum()
        self.cdf = cdf / cdf[-1]

    def negatives(self, count):
        if self.fixed:
            draws = self.rng.random((count, NEGATIVES))
            return self.cdf.searchsorted(draws, side="right")
        rows = [self.rng.choice(N_ITEMS, size=NEGATIVES, p=self.probs) for _ in range(count)]
        return np.stack(rows)

    def __call__(self, samples):
        history = torch.from_numpy(np.stack([s[0] for s in samples]))
        target = torch.from_numpy(np.array([s[1] for s in samples]))
        negative = torch.from_numpy(self.negatives(len(samples)))
        candidates = torch.cat((target.unsqueeze(1), negative), dim=1)
        return history, candidates, self.log_q[candidates]


class SessionEncoder(nn.Module):
    def __init__(self, dim=48, hidden=128):
        super().__init__()
        self.items = nn.Embedding(N_ITEMS, dim, sparse=True)
        nn.init.normal_(self.items.weight, std=0.1)
        self.gru = nn.GRU(dim, hidden, batch_first=True)
        self.query = nn.Sequential(nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def forward(self, history, candidates):
        _, last = self.gru(self.items(history))
        query = self.query(last[-1])
        return torch.bmm(self.items(candidates), query.unsqueeze(2)).squeeze(2)


def endless(loader):
    while True:
        yield from loader


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(5)
    log = ClickLog(6000, seed=5)
    collate = SessionCollate(log.popularity, 17, args.fixed)
    loader = DataLoader(log, batch_size=64, shuffle=True, drop_last=True, collate_fn=collate)

    model = SessionEncoder()
    dense = [p for name, p in model.named_parameters() if not name.startswith("items")]
    optimizers = (torch.optim.SparseAdam(model.items.parameters(), lr=3e-3),
                  torch.optim.Adam(dense, lr=1e-3))
    batches = endless(loader)
    total = 0.0
    for step in range(args.steps):
        start = time.perf_counter()
        history, candidates, log_q = next(batches)
        scores = model(history, candidates) - log_q
        loss = F.cross_entropy(scores, scores.new_zeros(len(scores), dtype=torch.long))
        for opt in optimizers:
            opt.zero_grad()
        loss.backward()
        for opt in optimizers:
            opt.step()
        if step >= 10:
            total += time.perf_counter() - start
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.5f}")
    print(f"final loss {loss.item():.5f}")
    print(f"step_ms={1000 * total / max(1, args.steps - 10):.3f}")


if __name__ == "__main__":
    main()
