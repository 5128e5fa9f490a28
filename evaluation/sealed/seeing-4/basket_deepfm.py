"""Click-through prediction for grocery offers with a DeepFM over hashed categorical fields."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

FIELDS = {"user": 6000, "offer": 1500, "store": 120, "brand": 400, "aisle": 60, "hour": 24, "weekday": 7, "device": 5,
          "campaign": 80, "segment": 30, "price_band": 12, "last_offer": 1500}


def impressions(n, seed):
    rng = np.random.default_rng(seed)
    ids = np.stack([np.minimum(rng.zipf(1.3, n) - 1, size - 1) if size > 50 else rng.integers(0, size, n)
                    for size in FIELDS.values()], 1)
    dense = rng.normal(size=(n, 6)).astype(np.float32)
    score = np.full(n, -1.2)
    for j, size in enumerate(FIELDS.values()):
        score += rng.normal(0, 0.5, size)[ids[:, j]]
    a, b = rng.normal(0, 0.4, (6000, 4)), rng.normal(0, 0.8, (1500, 4))
    score += (a[ids[:, 0]] * b[ids[:, 1]]).sum(1) + 0.4 * dense[:, 0] - 0.3 * dense[:, 1]
    click = (rng.random(n) < 1 / (1 + np.exp(-score))).astype(np.float32)
    offset = np.cumsum([0] + list(FIELDS.values())[:-1])
    return torch.from_numpy(ids + offset), torch.from_numpy(dense), torch.from_numpy(click)


class DeepFM(nn.Module):
    def __init__(self, rows, fields, dense, dim=16, hidden=(384, 256, 128)):
        super().__init__()
        self.table = nn.Embedding(rows, dim + 1)
        self.dense_first = nn.Linear(dense, 1)
        self.dense_embed = nn.Linear(dense, dim)
        layers, width = [], (fields + 1) * dim
        for h in hidden:
            layers += [nn.Linear(width, h), nn.ReLU()]
            width = h
        self.deep = nn.Sequential(*layers, nn.Linear(width, 1))
        nn.init.normal_(self.table.weight, 0, 0.02)

    def forward(self, ids, dense):
        row = self.table(ids)
        first = row[..., 0].sum(1) + self.dense_first(dense).squeeze(1)
        v = torch.cat([row[..., 1:], self.dense_embed(dense).unsqueeze(1)], 1)
        total = v.sum(1)
        pair = 0.5 * (total.square() - v.square().sum(1)).sum(1)
        return first + pair + self.deep(v.flatten(1)).squeeze(1)


def log_loss_auc(logit, y):
    order = torch.argsort(logit)
    rank = torch.empty_like(logit)
    rank[order] = torch.arange(1.0, len(logit) + 1)
    pos = y.sum()
    auc = (rank[y > 0].sum() - pos * (pos + 1) / 2) / (pos * (len(y) - pos))
    return F.binary_cross_entropy_with_logits(logit, y).item(), auc.item()


def batches(tensors, size, gen):
    n = len(tensors[0])
    while True:
        perm = torch.randperm(n, generator=gen)
        for a in range(0, n - size + 1, size):
            idx = perm[a:a + size]
            yield [t[idx] for t in tensors]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--rows", type=int, default=160000)
    ap.add_argument("--batch", type=int, default=3072)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--check-every", type=int, default=30)
    ap.add_argument("--seed", type=int, default=57)
    args = ap.parse_args()
    torch.manual_seed(args.seed)

    data = impressions(args.rows, args.seed)
    train, held = [t[:-4096] for t in data], [t[-4096:] for t in data]
    model = DeepFM(sum(FIELDS.values()), len(FIELDS), data[1].shape[1])
    opt = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)
    stream = batches(train, args.batch, torch.Generator().manual_seed(args.seed))
    for step in range(1, args.steps + 1):
        ids, dense, click = next(stream)
        loss = F.binary_cross_entropy_with_logits(model(ids, dense), click)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            print(f"step {step:4d} log loss {loss.item():.4f}")
        if step % args.check_every == 0:
            with torch.inference_mode():
                ll, auc = log_loss_auc(model(held[0], held[1]), held[2])
            print(f"          held-out log loss {ll:.4f} auc {auc:.4f}")


if __name__ == "__main__":
    main()
