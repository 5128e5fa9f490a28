"""Reptile for few-shot intent detection over fixed word vectors."""
import argparse
import copy

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

VOCAB, DIM, LENGTH = 60_000, 100, 16


class IntentTasks:
    def __init__(self, domains=40, ways=5, seed=0):
        self.rng = np.random.default_rng(seed)
        self.ways = ways
        self.keywords = self.rng.integers(1, VOCAB, (domains, ways * 3, 60))

    def task(self, shots):
        d = self.rng.integers(len(self.keywords))
        intents = self.rng.permutation(self.keywords.shape[1])[: self.ways]
        y = np.repeat(np.arange(self.ways), shots)
        kw = self.keywords[d, intents[y]]
        ids = np.take_along_axis(kw, self.rng.integers(0, kw.shape[1], (len(y), LENGTH)), 1)
        noise = self.rng.random(ids.shape) < 0.4
        ids[noise] = self.rng.integers(1, VOCAB, noise.sum())
        return torch.from_numpy(ids), torch.from_numpy(y)


class IntentNet(nn.Module):
    def __init__(self, vectors, ways, hidden=80):
        super().__init__()
        self.words = nn.Embedding.from_pretrained(vectors, freeze=True)
        self.conv3 = nn.Conv1d(DIM, hidden, 3, padding=1)
        self.conv5 = nn.Conv1d(DIM, hidden, 5, padding=2)
        self.norm = nn.LayerNorm(2 * hidden)
        self.head = nn.Linear(2 * hidden, ways)

    def forward(self, ids):
        x = self.words(ids).transpose(1, 2)
        h = torch.cat([F.relu(self.conv3(x)).amax(2), F.relu(self.conv5(x)).amax(2)], 1)
        return self.head(self.norm(h))


def trainable(model):
    return [p for p in model.parameters() if p.requires_grad]


def adapt(model, ids, y, inner_steps, lr):
    """Runs a few SGD steps on a copy of the model and returns it with the last loss."""
    learner = copy.deepcopy(model)
    sgd = torch.optim.SGD(trainable(learner), lr=lr)
    for _ in range(inner_steps):
        loss = F.cross_entropy(learner(ids), y)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    return learner, loss.item()


def meta_test(model, tasks, n, shots, inner_steps, lr):
    acc = []
    for _ in range(n):
        ids, y = tasks.task(2 * shots)
        support = torch.arange(len(y)) % 2 == 0
        learner, _ = adapt(model, ids[support], y[support], inner_steps, lr)
        with torch.no_grad():
            acc.append((learner(ids[~support]).argmax(1) == y[~support]).float().mean().item())
    return float(np.mean(acc))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--meta-batch", type=int, default=3)
    ap.add_argument("--shots", type=int, default=5)
    ap.add_argument("--inner-steps", type=int, default=4)
    ap.add_argument("--inner-lr", type=float, default=0.05)
    args = ap.parse_args()
    torch.manual_seed(0)
    vectors = torch.randn(VOCAB, DIM) * 0.3
    train, test = IntentTasks(seed=1), IntentTasks(domains=10, seed=2)
    model = IntentNet(vectors, train.ways)
    meta_opt = torch.optim.Adam(trainable(model), lr=1e-3, fused=True)
    for step in range(1, args.steps + 1):
        meta_opt.zero_grad()
        for p in trainable(model):
            p.grad = torch.zeros_like(p)
        losses = []
        for _ in range(args.meta_batch):
            ids, y = train.task(args.shots)
            learner, last = adapt(model, ids, y, args.inner_steps, args.inner_lr)
            for p, q in zip(trainable(model), trainable(learner)):
                p.grad.add_(p.detach() - q.detach(), alpha=1 / args.meta_batch)
            losses.append(last)
        meta_opt.step()
        if step % 10 == 0:
            print(f"meta step {step} inner loss {np.mean(losses):.4f}")
        if step % 50 == 0:
            print(f"  unseen domains acc {meta_test(model, test, 4, args.shots, args.inner_steps, args.inner_lr):.3f}")


if __name__ == "__main__":
    main()
