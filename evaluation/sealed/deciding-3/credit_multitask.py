"""Joint default / prepayment / utilisation model on loan records."""
import argparse
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    steps: int = 60
    batch: int = 1024
    width: int = 256
    depth: int = 3
    lr: float = 1e-3
    seed: int = 4


CATS = {"purpose": 14, "region": 50, "channel": 5, "grade": 35}
NUMS = ["income", "dti", "age_months", "balance", "rate", "fico", "inquiries", "open_accounts"]


def loan_frame(n, seed):
    rng = np.random.default_rng(seed)
    df = pd.DataFrame({c: rng.integers(0, k, n) for c, k in CATS.items()})
    for i, c in enumerate(NUMS):
        df[c] = rng.gamma(2.0 + i, 1.0, n)
    risk = 0.8 * np.log1p(df.dti) - 0.4 * np.log1p(df.income) + 0.05 * df.grade - 1.5
    df["default"] = (rng.random(n) < 1 / (1 + np.exp(-risk))).astype(np.float32)
    df["prepaid"] = (rng.random(n) < 1 / (1 + np.exp(risk + 1))).astype(np.float32)
    df["utilisation"] = (np.tanh(df.balance / 6) + 0.1 * rng.standard_normal(n)).astype(np.float32)
    return df


class LoanTable:
    def __init__(self, df):
        num = np.log1p(df[NUMS].to_numpy(np.float32))
        self.num = torch.from_numpy((num - num.mean(0)) / num.std(0))
        self.cat = torch.from_numpy(df[list(CATS)].to_numpy(np.int64).copy())
        self.y = {t: torch.from_numpy(df[t].to_numpy(np.float32).copy()) for t in ("default", "prepaid", "utilisation")}

    def sample(self, n, gen):
        i = torch.randint(len(self.num), (n,), generator=gen)
        return self.num[i], self.cat[i], {k: v[i] for k, v in self.y.items()}


class ResBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.a, self.b = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.b(F.silu(self.a(self.norm(x))))


class Tower(nn.Module):
    def __init__(self, d, hidden=384):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


class JointModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.emb = nn.ModuleDict({c: nn.Embedding(k, 12) for c, k in CATS.items()})
        self.stem = nn.Linear(12 * len(CATS) + len(NUMS), cfg.width)
        self.trunk = nn.Sequential(*[ResBlock(cfg.width) for _ in range(cfg.depth)])
        self.towers = nn.ModuleDict({t: Tower(cfg.width) for t in ("default", "prepaid", "utilisation")})

    def forward(self, num, cat):
        e = [self.emb[c](cat[:, j]) for j, c in enumerate(CATS)]
        h = self.trunk(self.stem(torch.cat(e + [num], 1)))
        return {t: tower(h) for t, tower in self.towers.items()}


class MultiTaskObjective:
    weights = {"default": 1.0, "prepaid": 0.5, "utilisation": 2.0}

    def __init__(self):
        self.ema = {t: None for t in self.weights}

    def losses(self, out, y):
        return {"default": F.binary_cross_entropy_with_logits(out["default"], y["default"]),
                "prepaid": F.binary_cross_entropy_with_logits(out["prepaid"], y["prepaid"]),
                "utilisation": F.smooth_l1_loss(out["utilisation"], y["utilisation"])}

    def accumulate(self, out, y):
        losses = self.losses(out, y)
        pending = len(losses)
        for task, loss in losses.items():
            pending -= 1
            value = loss.detach()
            self.ema[task] = value if self.ema[task] is None else 0.95 * self.ema[task] + 0.05 * value
            (self.weights[task] * loss).backward(retain_graph=pending > 0)
        return losses


def train(cfg):
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    table = LoanTable(loan_frame(40000, cfg.seed))
    model = JointModel(cfg)
    objective = MultiTaskObjective()
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, fused=True)
    for step in range(1, cfg.steps + 1):
        num, cat, y = table.sample(cfg.batch, gen)
        opt.zero_grad()
        losses = objective.accumulate(model(num, cat), y)
        opt.step()
        if step % 10 == 0:
            print(step, " ".join(f"{k}={v.item():.4f} (ema {objective.ema[k].item():.4f})" for k, v in losses.items()))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    for name, value in vars(Config()).items():
        ap.add_argument("--" + name, type=type(value), default=value)
    train(Config(**vars(ap.parse_args())))
