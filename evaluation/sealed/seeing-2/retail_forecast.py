import argparse

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

QUANTILES = torch.tensor([0.1, 0.5, 0.9])


def sales_panel(n_series, n_days, seed):
    """Long-format panel as exported from the warehouse: one row per (item, day)."""
    rng = np.random.default_rng(seed)
    day = np.arange(n_days)
    level = rng.lognormal(2, 0.6, (n_series, 1))
    week = 1 + 0.3 * np.sin(2 * np.pi * (day[None] + rng.integers(0, 7, (n_series, 1))) / 7)
    price = np.exp(rng.normal(0, 0.05, (n_series, n_days)).cumsum(1) * 0.2)
    promo = (rng.random((n_series, n_days)) < 0.08).astype(np.float32)
    sales = rng.poisson(level * week * price ** -1.2 * (1 + 0.8 * promo))
    frame = pd.DataFrame({
        "item": np.repeat(np.arange(n_series), n_days),
        "day": np.tile(day, n_series),
        "sales": sales.ravel().astype(np.float32),
        "price": price.ravel().astype(np.float32),
        "promo": promo.ravel(),
    })
    frame["dow"] = (frame["day"] % 7).astype(np.int64)
    return frame.sort_values(["day", "item"]).reset_index(drop=True)


class PanelWindows(Dataset):
    """Encoder/decoder windows for one (item, start-day) pair."""

    def __init__(self, frame, history, horizon, n_samples, seed):
        self.frame, self.history, self.horizon = frame, history, horizon
        stats = frame.groupby("item")["sales"]
        self.scale = (stats.mean() + 1.0).to_numpy(np.float32)
        rng = np.random.default_rng(seed)
        last = int(frame["day"].max()) - history - horizon
        self.index = np.stack([rng.integers(0, len(self.scale), n_samples), rng.integers(0, last, n_samples)], 1)

    def __len__(self):
        return len(self.index)

    def window(self, item, start):
        rows = self.frame[self.frame["item"] == item]
        return rows.iloc[start:start + self.history + self.horizon]

    def __getitem__(self, i):
        item, start = self.index[i]
        rows = self.window(item, start)
        values = rows["sales"].to_numpy() / self.scale[item]
        known = np.stack([np.log(rows["price"].to_numpy()), rows["promo"].to_numpy()], -1).astype(np.float32)
        return {
            "item": int(item),
            "past": torch.from_numpy(values[:self.history]),
            "future": torch.from_numpy(values[self.history:]),
            "known": torch.from_numpy(known),
            "dow": torch.from_numpy(rows["dow"].to_numpy()),
        }


class GatedResidual(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.a = nn.Linear(dim, hidden)
        self.b = nn.Linear(hidden, 2 * dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return self.norm(x + nn.functional.glu(self.b(nn.functional.elu(self.a(x))), -1))


class QuantileForecaster(nn.Module):
    def __init__(self, n_items, dim, history, horizon):
        super().__init__()
        self.history, self.horizon = history, horizon
        self.item = nn.Embedding(n_items, dim)
        self.dow = nn.Embedding(7, dim)
        self.past_in = nn.Linear(3, dim)
        self.fut_in = nn.Linear(2, dim)
        self.encoder = nn.LSTM(dim, dim, batch_first=True)
        self.decoder = nn.LSTM(dim, dim, batch_first=True)
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.grn = GatedResidual(dim, 2 * dim)
        self.out = nn.Linear(dim, len(QUANTILES))

    def forward(self, b):
        static = self.item(b["item"]).unsqueeze(1)
        cal = self.dow(b["dow"])
        h = self.history
        past = self.past_in(torch.cat([b["past"].unsqueeze(-1), b["known"][:, :h]], -1)) + cal[:, :h] + static
        fut = self.fut_in(b["known"][:, h:]) + cal[:, h:] + static
        enc, state = self.encoder(past)
        dec, _ = self.decoder(fut, state)
        ctx, _ = self.attn(dec, enc, enc, need_weights=False)
        return self.out(self.grn(dec + ctx))


def pinball(pred, target):
    e = target.unsqueeze(-1) - pred
    return torch.maximum(QUANTILES * e, (QUANTILES - 1) * e).mean()


def train(args):
    torch.manual_seed(args.seed)
    panel = sales_panel(args.items, args.days, args.seed)
    data = PanelWindows(panel, args.history, args.horizon, args.steps * args.batch, args.seed)
    loader = DataLoader(data, args.batch)
    net = QuantileForecaster(args.items, args.dim, args.history, args.horizon)
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.steps)
    ema = None
    for step, batch in enumerate(loader, 1):
        loss = pinball(net(batch), batch["future"])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        ema = loss.item() if ema is None else 0.9 * ema + 0.1 * loss.item()
        if step % args.print_every == 0:
            print(f"step {step} pinball {loss.item():.4f} smooth {ema:.4f}", flush=True)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--items", type=int, default=800)
    p.add_argument("--days", type=int, default=540)
    p.add_argument("--history", type=int, default=90)
    p.add_argument("--horizon", type=int, default=28)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--print-every", type=int, default=10)
    p.add_argument("--seed", type=int, default=43)
    train(p.parse_args())
