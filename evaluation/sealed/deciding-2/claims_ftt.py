"""Insurance claim severity: feature-token transformer over mixed columns."""
import argparse
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F

NUMERIC = [f"num_{i}" for i in range(10)]
CATEGORIES = {"make": 40, "region": 22, "channel": 5, "fuel": 4, "occupation": 60, "cover": 3}


def claims_table(n, seed):
    rng = np.random.default_rng(seed)
    df = pd.DataFrame({c: rng.gamma(2.0, 1.0, n) if i % 2 else rng.normal(size=n)
                       for i, c in enumerate(NUMERIC)})
    effect = 0.0
    for name, card in CATEGORIES.items():
        code = rng.integers(0, card, n)
        df[name] = pd.Categorical.from_codes(code, [f"{name}{k}" for k in range(card)])
        effect = effect + rng.normal(0, 0.3, card)[code]
    severity = 0.4 * df["num_0"] + 0.2 * df["num_1"] * df["num_3"].clip(upper=4) + effect
    df["severity"] = np.exp(0.3 * severity + rng.normal(0, 0.3, n))
    return df


@dataclass
class Encoded:
    num: torch.Tensor
    cat: torch.Tensor
    y: torch.Tensor

    @classmethod
    def from_frame(cls, df):
        num = df[NUMERIC].to_numpy(dtype=np.float32)
        num = np.ascontiguousarray((num - num.mean(0)) / num.std(0))
        base = np.cumsum([0] + list(CATEGORIES.values())[:-1])
        cat = np.stack([df[c].cat.codes.to_numpy() for c in CATEGORIES], 1).astype(np.int64) + base
        y = np.log(df["severity"].to_numpy(dtype=np.float32))
        return cls(torch.from_numpy(num), torch.from_numpy(cat), torch.from_numpy(y))

    def take(self, rows):
        return self.num[rows], self.cat[rows], self.y[rows]


class Tokenizer(nn.Module):
    def __init__(self, n_num, n_cat_total, d):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(n_num, d) / d ** 0.5)
        self.shift = nn.Parameter(torch.zeros(n_num, d))
        self.cat = nn.Embedding(n_cat_total, d)

    def forward(self, num, cat):
        a = torch.addcmul(self.shift, num.unsqueeze(-1), self.scale)
        return torch.cat([a, self.cat(cat)], 1)


class TokenLayer(nn.Module):
    def __init__(self, d, heads, drop):
        super().__init__()
        self.heads, self.drop = heads, drop
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.f1, self.f2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        h = F.dropout(F.relu(self.f1(self.n2(x))), self.drop, self.training)
        return x + self.f2(h)


class SeverityModel(nn.Module):
    def __init__(self, d=96, heads=4, layers=2):
        super().__init__()
        self.tokens = Tokenizer(len(NUMERIC), sum(CATEGORIES.values()), d)
        self.layers = nn.ModuleList(TokenLayer(d, heads, 0.1) for _ in range(layers))
        self.head = nn.Sequential(nn.LayerNorm(d), nn.ReLU(), nn.Linear(d, 1))

    def forward(self, num, cat):
        x = self.tokens(num, cat)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1)).squeeze(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--rows", type=int, default=40000)
    ap.add_argument("--batch", type=int, default=256)
    ap.add_argument("--eval-every", type=int, default=30)
    args = ap.parse_args()
    torch.manual_seed(100)
    data = Encoded.from_frame(claims_table(args.rows, 100))
    perm = torch.randperm(args.rows)
    train_rows, valid_rows = perm[:-512], perm[-512:]
    model = SeverityModel()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=1e-5, fused=True)
    for step in range(1, args.steps + 1):
        pick = train_rows[torch.randint(len(train_rows), (args.batch,))]
        num, cat, y = data.take(pick)
        loss = F.mse_loss(model(num, cat), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            print(f"step {step:4d} train mse {loss.item():.5f}")
        if step % args.eval_every == 0:
            model.eval()
            with torch.inference_mode():
                num, cat, y = data.take(valid_rows)
                r2 = 1 - F.mse_loss(model(num, cat), y) / y.var()
            model.train()
            print(f"          valid r2 {r2.item():.4f}")


if __name__ == "__main__":
    main()
