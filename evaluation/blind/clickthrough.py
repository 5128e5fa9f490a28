"""DeepFM style click model trained on a stream of impressions."""
import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn


class ImpressionStream:
    """Generator of impressions drawn from a hidden factorisation model."""

    def __init__(self, field_sizes, batch_size, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.sizes = torch.tensor(field_sizes)
        self.offsets = torch.cumsum(self.sizes, 0) - self.sizes
        self.batch_size = batch_size
        total = int(self.sizes.sum())
        self.true_w = torch.randn(total, generator=self.g) * 0.5
        self.true_v = torch.randn(total, 4, generator=self.g) * 0.25

    def __iter__(self):
        n, f = self.batch_size, len(self.sizes)
        while True:
            # squared uniform gives a long-tailed popularity
            u = torch.rand(n, f, generator=self.g) ** 2
            ids = (u * self.sizes).long() + self.offsets
            v = self.true_v[ids]
            inter = 0.5 * (v.sum(1).pow(2) - v.pow(2).sum(1)).sum(-1)
            logit = self.true_w[ids].sum(1) + inter - 1.5
            clicks = torch.bernoulli(torch.sigmoid(logit), generator=self.g)
            yield ids, clicks


class DeepFM(nn.Module):
    def __init__(self, total, fields, dim, hidden):
        super().__init__()
        self.linear = nn.Parameter(torch.randn(total) * 0.01)
        self.factors = nn.Embedding(total, dim)
        nn.init.normal_(self.factors.weight, std=0.05)
        self.bias = nn.Parameter(torch.zeros(()))
        self.deep = nn.Sequential(
            nn.Linear(fields * dim, hidden), nn.ReLU(),
            nn.Linear(hidden, hidden // 2), nn.ReLU(),
            nn.Linear(hidden // 2, 1),
        )

    def forward(self, ids):
        v = self.factors(ids)
        first = self.linear[ids].sum(1)
        second = 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(-1)
        return self.bias + first + second + self.deep(v.flatten(1)).squeeze(-1)


class AUCMeter:
    """Rank based AUC over everything seen since the last reset."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.scores, self.labels = [], []

    def update(self, scores, labels):
        self.scores.append(scores.detach())
        self.labels.append(labels)

    def compute(self):
        scores = torch.cat(self.scores)
        labels = torch.cat(self.labels)
        order = torch.argsort(scores)
        ranked = labels[order]
        pos = ranked.sum()
        neg = ranked.numel() - pos
        if pos == 0 or neg == 0:
            return 0.5
        ranks = torch.arange(1, ranked.numel() + 1, dtype=torch.float64)
        return ((ranks * ranked).sum() - pos * (pos + 1) / 2).div(pos * neg).item()


class EMAverage:
    def __init__(self, beta=0.95):
        self.beta, self.value = beta, None

    def update(self, x):
        self.value = x if self.value is None else self.beta * self.value + (1 - self.beta) * x
        return self.value


def train_one_step(model, opt, ids, clicks):
    logits = model(ids)
    loss = F.binary_cross_entropy_with_logits(logits, clicks)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return logits, loss.item()


def run(args):
    torch.manual_seed(args.seed)
    fields = [2000, 1500, 1200, 800, 600, 400, 300, 200, 100, 60, 40, 24, 12, 7]
    stream = iter(ImpressionStream(fields, args.batch_size, args.seed))
    model = DeepFM(sum(fields), len(fields), args.dim, args.hidden)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)
    auc, smooth = AUCMeter(), EMAverage()
    status = {}

    t0 = time.time()
    for step in range(1, args.steps + 1):
        ids, clicks = next(stream)
        logits, loss = train_one_step(model, opt, ids, clicks)
        auc.update(logits, clicks)
        status["loss"] = smooth.update(loss)
        status["auc"] = auc.compute()
        status["ctr"] = clicks.mean().item()

        if step % args.log_every == 0:
            line = "  ".join(f"{k} {v:.4f}" for k, v in status.items())
            print(f"{step:5d}  {line}  [{time.time() - t0:.1f}s]")
    return model


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--batch-size", type=int, default=2048)
    ap.add_argument("--dim", type=int, default=16)
    ap.add_argument("--hidden", type=int, default=256)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--log-every", type=int, default=25)
    ap.add_argument("--seed", type=int, default=3)
    run(ap.parse_args())
