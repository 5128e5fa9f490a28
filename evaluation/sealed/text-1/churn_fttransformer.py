"""Churn prediction on a mixed-type customer table with a feature-token transformer."""
import argparse
import copy

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F

NUMERIC = ["age", "tenure", "monthly_fee", "data_gb", "calls", "complaints", "late_payments", "discount"]
CATEGORICAL = ["plan", "region", "channel", "device", "contract", "payment"]


def customer_frame(rows, seed):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({
        "age": rng.normal(45, 15, rows).clip(18, 95),
        "tenure": rng.exponential(30, rows),
        "monthly_fee": rng.gamma(4, 9, rows),
        "data_gb": rng.lognormal(1.5, 1, rows),
        "calls": rng.poisson(40, rows).astype(float),
        "complaints": rng.poisson(0.7, rows).astype(float),
        "late_payments": rng.poisson(0.4, rows).astype(float),
        "discount": rng.beta(2, 8, rows),
    })
    for name, card in zip(CATEGORICAL, (12, 40, 6, 150, 3, 5)):
        frame[name] = pd.Categorical.from_codes(rng.integers(0, card, rows), [f"{name}_{i}" for i in range(card)])
    for name in ("data_gb", "discount", "age"):
        frame.loc[rng.random(rows) < 0.05, name] = np.nan
    risk = (0.7 * frame["complaints"] + 0.5 * frame["late_payments"] - 0.03 * frame["tenure"]
            + 0.02 * frame["monthly_fee"] - 0.8 * (frame["contract"].cat.codes == 1) - 0.6)
    frame["churned"] = (rng.random(rows) < 1 / (1 + np.exp(-risk))).astype(np.float32)
    return frame


class Preprocessor:
    def fit(self, frame):
        values = frame[NUMERIC]
        self.median = values.median()
        filled = values.fillna(self.median)
        self.low, self.high = filled.quantile(0.005), filled.quantile(0.995)
        clipped = filled.clip(self.low, self.high, axis=1)
        self.mean, self.std = clipped.mean(), clipped.std()
        cards = [len(frame[c].cat.categories) + 1 for c in CATEGORICAL]
        self.offsets = np.concatenate([[0], np.cumsum(cards)])
        return self

    def __call__(self, frame):
        filled = frame[NUMERIC].fillna(self.median).clip(self.low, self.high, axis=1)
        numeric = ((filled - self.mean) / self.std).to_numpy(np.float32)
        missing = frame[NUMERIC].isna().to_numpy(np.float32)
        codes = np.column_stack([frame[c].cat.codes.to_numpy().astype(np.int64) + 1 for c in CATEGORICAL])
        return tuple(torch.tensor(a) for a in (
            numeric, missing, codes + self.offsets[:-1], frame["churned"].to_numpy(np.float32)))


class FeatureTokens(nn.Module):
    def __init__(self, n_numeric, n_codes, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_numeric, dim) * dim ** -0.5)
        self.bias = nn.Parameter(torch.zeros(n_numeric, dim))
        self.absent = nn.Parameter(torch.zeros(n_numeric, dim))
        self.codes = nn.Embedding(n_codes, dim)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))

    def forward(self, numeric, missing, codes):
        tokens = numeric[..., None] * self.weight + missing[..., None] * self.absent + self.bias
        return torch.cat([self.cls.expand(len(numeric), -1, -1), tokens, self.codes(codes)], 1)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(a)
        return x + self.down(F.glu(self.up(self.norm2(x)), -1))


class FTTransformer(nn.Module):
    def __init__(self, n_codes, dim=64, heads=4, depth=3):
        super().__init__()
        self.tokens = FeatureTokens(len(NUMERIC), n_codes, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, numeric, missing, codes):
        x = self.tokens(numeric, missing, codes)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1)).squeeze(-1)


def roc_auc(score, label):
    rank = torch.empty_like(score)
    rank[score.argsort()] = torch.arange(1, len(score) + 1, dtype=score.dtype)
    pos = label.sum()
    return ((rank[label > 0].sum() - pos * (pos + 1) / 2) / (pos * (len(label) - pos))).item()


def minibatches(tensors, size, generator):
    n = len(tensors[0])
    while True:
        order = torch.randperm(n, generator=generator)
        for rows in order.split(size):
            if len(rows) == size:
                yield [t[rows] for t in tensors]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--rows", type=int, default=40000)
    ap.add_argument("--batch", type=int, default=256)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--valid-every", type=int, default=30)
    ap.add_argument("--seed", type=int, default=13)
    args = ap.parse_args()
    torch.manual_seed(args.seed)

    frame = customer_frame(args.rows, args.seed)
    train_frame, valid_frame = frame.iloc[:-512], frame.iloc[-512:]
    prep = Preprocessor().fit(train_frame)
    train, valid = prep(train_frame), prep(valid_frame)
    model = FTTransformer(int(prep.offsets[-1]))
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    opt = torch.optim.AdamW([{"params": decay}, {"params": rest, "weight_decay": 0.0}], lr=args.lr)
    best_auc, best_state = 0.0, None
    total = 0.0

    for step, (numeric, missing, codes, label) in enumerate(
            minibatches(train, args.batch, torch.Generator().manual_seed(1)), start=1):
        loss = F.binary_cross_entropy_with_logits(model(numeric, missing, codes), label)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        total += loss.item()
        if step % 10 == 0:
            print(f"step {step} loss {total / 10:.5f}")
            total = 0.0
        if step % args.valid_every == 0:
            model.eval()
            with torch.no_grad():
                auc = roc_auc(model(*valid[:3]), valid[3])
            model.train()
            if auc > best_auc:
                best_auc, best_state = auc, copy.deepcopy(model.state_dict())
            print(f"step {step} auc {auc:.4f} (best {best_auc:.4f})")
        if step == args.steps:
            break
    if best_state is not None:
        model.load_state_dict(best_state)


if __name__ == "__main__":
    main()
