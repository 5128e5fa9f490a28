"""ComplEx link prediction with degree-weighted negative tails."""
import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

ENTITIES = 14541
RELATIONS = 237
RANK = 64
TRIPLES = 60000
BATCH = 64
NEGATIVES = 64


class TripleSampler:
    def __init__(self, seed, cached):
        self.rng = np.random.default_rng(seed)
        popularity = 1.0 / np.arange(1, ENTITIES + 1) ** 0.8
        popularity /= popularity.sum()
        self.triples = np.stack([
            self.rng.choice(ENTITIES, TRIPLES, p=popularity),
            self.rng.integers(0, RELATIONS, TRIPLES),
            self.rng.choice(ENTITIES, TRIPLES, p=popularity),
        ], axis=1)
        degree = np.bincount(self.triples[:, [0, 2]].ravel(), minlength=ENTITIES)
        weights = (degree + 1.0) ** 0.75
        self.tail_probs = weights / weights.sum()
        self.cached = cached
        if cached:
            self.tail_cdf = self.tail_probs.cumsum()
            self.tail_cdf /= self.tail_cdf[-1]

    def corrupt(self):
        if self.cached:
            return self.tail_cdf.searchsorted(self.rng.random(NEGATIVES), side="right")
        return self.rng.choice(ENTITIES, size=NEGATIVES, p=self.tail_probs)

    def __iter__(self):
        while True:
            order = self.rng.permutation(TRIPLES)
            for start in range(0, TRIPLES - BATCH + 1, BATCH):
                rows = self.triples[order[start:start + BATCH]]
                negatives = np.stack([self.corrupt() for _ in rows])
                yield torch.from_numpy(rows), torch.from_numpy(negatives)


class ComplEx(nn.Module):
    def __init__(self):
        super().__init__()
        self.entity = nn.Embedding(ENTITIES, 2 * RANK, sparse=True)
        self.relation = nn.Embedding(RELATIONS, 2 * RANK, sparse=True)
        nn.init.normal_(self.entity.weight, std=0.1)
        nn.init.normal_(self.relation.weight, std=0.1)

    def forward(self, triples, negatives):
        head_re, head_im = self.entity(triples[:, 0]).chunk(2, -1)
        rel_re, rel_im = self.relation(triples[:, 1]).chunk(2, -1)
        query = torch.cat([head_re * rel_re - head_im * rel_im,
                           head_re * rel_im + head_im * rel_re], -1)
        tails = self.entity(torch.cat([triples[:, 2:], negatives], 1))
        return torch.bmm(tails, query.unsqueeze(-1)).squeeze(-1)


def ranking_loss(scores):
    positive, negative = scores[:, 0], scores[:, 1:]
    hardness = F.softmax(negative.detach(), dim=1)
    return 0.5 * (F.softplus(-positive).mean() + (hardness * F.softplus(negative)).sum(1).mean())


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--steps", type=int, default=300)
    cli.add_argument("--fixed", action="store_true")
    cfg = cli.parse_args()

    torch.manual_seed(1)
    stream = iter(TripleSampler(seed=5, cached=cfg.fixed))
    model = ComplEx()
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=1e-2)

    t0 = time.process_time()
    for step in range(1, cfg.steps + 1):
        triples, negatives = next(stream)
        loss = ranking_loss(model(triples, negatives))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print("step", step, "loss", round(loss.item(), 5))
        if step == 10:
            t0 = time.process_time()
    print(f"step_ms={(time.process_time() - t0) * 1000 / max(1, cfg.steps - 10):.2f}")


if __name__ == "__main__":
    main()
