"""Daily sales forecasting with a GRU over store/item histories."""
import argparse
import logging
import math

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

log = logging.getLogger("forecast")


def load_sales(n_stores, n_items, n_days, seed):
    """Long table in the order of the point-of-sale export: day by day, all stores."""
    rng = np.random.default_rng(seed)
    days = np.arange(n_days)
    store, item = np.meshgrid(np.arange(n_stores), np.arange(n_items), indexing="ij")
    store, item = store.ravel(), item.ravel()
    level = rng.gamma(3.0, 8.0, store.size)
    weekly = rng.normal(0, 0.2, (store.size, 7))
    promo = rng.random((n_days, store.size)) < 0.06
    lam = level * np.exp(weekly.T[days % 7] + 0.3 * np.sin(2 * np.pi * days / 365.25)[:, None] + 0.5 * promo)
    sales = rng.poisson(lam)
    frame = pd.DataFrame({
        "day": np.repeat(days, store.size),
        "store": np.tile(store, n_days).astype(np.int32),
        "item": np.tile(item, n_days).astype(np.int32),
        "sales": sales.ravel().astype(np.float32),
        "promo": promo.ravel().astype(np.float32),
    })
    frame["dow"] = (frame["day"] % 7).astype(np.int64)
    return frame


class SalesWindows(Dataset):
    def __init__(self, frame, context, horizon, samples_per_epoch, seed):
        self.table = frame.set_index(["store", "item"])[["day", "sales", "promo", "dow"]]
        self.keys = frame[["store", "item"]].drop_duplicates().to_numpy()
        self.n_days = int(frame["day"].max()) + 1
        self.context, self.horizon = context, horizon
        self.n = samples_per_epoch
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return self.n

    def __getitem__(self, _):
        sid, iid = self.keys[self.rng.integers(len(self.keys))]
        hist = self.table.loc[(sid, iid)]
        start = self.rng.integers(self.n_days - self.context - self.horizon)
        win = hist.iloc[start:start + self.context + self.horizon]
        sales = win["sales"].to_numpy(np.float32)
        scale = 1.0 + sales[: self.context].mean()
        return {
            "y": torch.from_numpy(sales / scale),
            "promo": torch.tensor(win["promo"].to_numpy(np.float32)),
            "dow": torch.tensor(win["dow"].to_numpy(np.int64)),
            "store": int(sid), "item": int(iid),
            "scale": np.float32(scale),
        }


class Forecaster(nn.Module):
    def __init__(self, n_stores, n_items, context, horizon, hidden=96):
        super().__init__()
        self.context, self.horizon = context, horizon
        self.store = nn.Embedding(n_stores, 8)
        self.item = nn.Embedding(n_items, 8)
        self.dow = nn.Embedding(7, 4)
        self.encoder = nn.GRU(2 + 4, hidden, batch_first=True)
        self.mix = nn.Sequential(nn.Linear(hidden + 16, hidden), nn.SiLU())
        self.decoder = nn.GRU(1 + 4, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 2)

    def forward(self, b):
        d = self.dow(b["dow"])
        past = torch.cat([b["y"][:, : self.context, None], b["promo"][:, : self.context, None], d[:, : self.context]], -1)
        _, h = self.encoder(past)
        h = self.mix(torch.cat([h[0], self.store(b["store"]), self.item(b["item"])], -1))
        fut = torch.cat([b["promo"][:, self.context:, None], d[:, self.context:]], -1)
        o, _ = self.decoder(fut, h[None].contiguous())
        mu, raw = self.out(o).unbind(-1)
        return nn.functional.softplus(mu), nn.functional.softplus(raw) + 1e-3


def neg_binomial_nll(mu, alpha, y):
    r = 1.0 / alpha
    return -(torch.lgamma(y + r) - torch.lgamma(r) - torch.lgamma(y + 1)
             + r * torch.log(r / (r + mu)) + y * torch.log(mu / (r + mu) + 1e-8)).mean()


def run(args):
    torch.manual_seed(args.seed)
    frame = load_sales(args.stores, args.items, args.days, args.seed)
    log.info("rows %d, series %d", len(frame), args.stores * args.items)
    ds = SalesWindows(frame, args.context, args.horizon, 4096, args.seed + 1)
    loader = DataLoader(ds, batch_size=args.batch)
    model = Forecaster(args.stores, args.items, args.context, args.horizon)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 10) * 0.5 * (1 + math.cos(math.pi * s / args.steps)))
    step, avg = 0, None
    while step < args.steps:
        for batch in loader:
            mu, alpha = model(batch)
            scale = batch["scale"][:, None]
            loss = neg_binomial_nll(mu * scale, alpha, batch["y"][:, args.context:] * scale)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            warm.step()
            step += 1
            avg = loss.item() if avg is None else 0.9 * avg + 0.1 * loss.item()
            if step % 10 == 0:
                log.info("step %d nll %.4f lr %.2e", step, avg, warm.get_last_lr()[0])
            if step == args.steps:
                return


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--stores", type=int, default=20)
    ap.add_argument("--items", type=int, default=30)
    ap.add_argument("--days", type=int, default=730)
    ap.add_argument("--context", type=int, default=90)
    ap.add_argument("--horizon", type=int, default=14)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=11)
    import sys
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    run(ap.parse_args())
