"""TuckER link prediction with 1-N scoring; entities are encoded from their descriptions."""
import argparse
from collections import defaultdict

import numpy as np
import torch
from torch import nn


class KnowledgeGraph:
    def __init__(self, entities=2400, relations=40, facts=20000, seed=0):
        rng = np.random.default_rng(seed)
        h = rng.integers(0, entities, facts)
        r = rng.integers(0, relations, facts)
        jitter = rng.integers(0, 4, facts)
        t = (h * (r % 7 + 1) + 13 * r + jitter) % entities
        self.n_ent, self.n_rel = entities, 2 * relations
        self.text = torch.from_numpy(rng.standard_normal((entities, 300)).astype(np.float32))
        triples = np.concatenate([np.stack([h, r, t], 1), np.stack([t, r + relations, h], 1)])
        answers = defaultdict(list)
        for a, b, c in triples.tolist():
            answers[a, b].append(c)
        self.queries = list(answers)
        self.answers = [np.unique(answers[q]) for q in self.queries]

    def batches(self, size, seed):
        rng = np.random.default_rng(seed)
        while True:
            perm = rng.permutation(len(self.queries))
            for s in range(0, len(perm) - size + 1, size):
                idx = perm[s:s + size]
                q = torch.tensor([self.queries[i] for i in idx])
                rows = np.repeat(np.arange(size), [len(self.answers[i]) for i in idx])
                cols = np.concatenate([self.answers[i] for i in idx])
                target = torch.zeros(size, self.n_ent)
                target[torch.from_numpy(rows), torch.from_numpy(cols)] = 1.0
                yield q[:, 0], q[:, 1], target


class TuckER(nn.Module):
    def __init__(self, text, n_rel, de=100, dr=12, drops=(0.2, 0.2)):
        super().__init__()
        self.register_buffer("text", text)
        self.describe = nn.Sequential(nn.Linear(text.shape[1], 384), nn.GELU(), nn.Linear(384, de), nn.LayerNorm(de))
        self.R = nn.Embedding(n_rel, dr)
        self.core = nn.Parameter(torch.empty(de, dr, de).uniform_(-0.3, 0.3))
        self.in_norm = nn.BatchNorm1d(de)
        self.in_drop = nn.Dropout(drops[0])
        self.rel_drop = nn.Dropout(drops[1])
        self.bias = nn.Parameter(torch.zeros(len(text)))
        nn.init.xavier_normal_(self.R.weight)

    def forward(self, head, rel):
        ent = self.describe(self.text)
        h = self.in_drop(self.in_norm(ent[head]))
        r = self.rel_drop(self.R(rel))
        # score[b, n] = sum_ijk  core[i, j, k] h[b, i] r[b, j] ent[n, k]
        score = torch.einsum("bi,ijk,nk,bj->bn", h, self.core, ent, r)
        return score + self.bias


class LabelSmoothedBCE(nn.Module):
    def __init__(self, n_ent, eps=0.1):
        super().__init__()
        self.n_ent, self.eps = n_ent, eps

    def forward(self, score, target):
        target = target.mul(1 - self.eps).add_(1.0 / self.n_ent)
        return nn.functional.binary_cross_entropy_with_logits(score, target)


@torch.no_grad()
def hits(model, head, rel, target, k=10):
    model.eval()
    top = model(head, rel).topk(k).indices
    model.train()
    return target.gather(1, top).amax(1).mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--lr", type=float, default=3e-3)
    args = p.parse_args()
    torch.manual_seed(0)
    kg = KnowledgeGraph()
    model = TuckER(kg.text, kg.n_rel)
    criterion = LabelSmoothedBCE(kg.n_ent)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)
    decay = torch.optim.lr_scheduler.ExponentialLR(opt, 0.998)
    probe = next(kg.batches(64, 99))
    for step, (head, rel, target) in zip(range(1, args.steps + 1), kg.batches(args.batch, 1)):
        loss = criterion(model(head, rel), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        decay.step()
        if step % 10 == 0:
            print(f"{step:4d} bce {loss.item():.5f}")
        if step % 30 == 0:
            print(f"     hits@10 on seen queries {hits(model, *probe):.4f}")


if __name__ == "__main__":
    main()
