"""Autoregressive probabilistic forecasts for retail sales (LSTM, negative-binomial likelihood)."""
import argparse
from functools import partial

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

LAGS = (1, 7, 14, 28)


def retail_panel(series, days, rng):
    t = np.arange(days)
    level = rng.lognormal(1.5, 0.8, size=(series, 1))
    week = 1 + 0.4 * np.sin(2 * np.pi * (t / 7 + rng.random((series, 1))))
    year = 1 + 0.3 * np.sin(2 * np.pi * (t / 365 + rng.random((series, 1))))
    promo = (rng.random((series, days)) < 0.06).astype(np.float32)
    mean = level * week * year * (1 + 0.8 * promo)
    sales = rng.poisson(rng.gamma(4.0, mean / 4.0)).astype(np.float32)
    shared = np.stack([np.sin(2 * np.pi * t / 7), np.cos(2 * np.pi * t / 7),
                       np.sin(2 * np.pi * t / 365), np.cos(2 * np.pi * t / 365)], 1).astype(np.float32)
    return sales, promo, shared


class PanelWindows(Dataset):
    def __init__(self, sales, promo, shared, length):
        self.sales, self.promo, self.shared = sales, promo, shared
        self.length = length
        self.reach = max(LAGS)
        self.per_series = sales.shape[1] - length - self.reach

    def __len__(self):
        return len(self.sales) * self.per_series

    def __getitem__(self, index):
        row, offset = divmod(index, self.per_series)
        lo = offset + self.reach
        hi = lo + self.length
        sales = self.sales[row]
        scale = 1.0 + sales[offset:hi].mean()
        lagged = np.stack([sales[lo - k:hi - k] for k in LAGS], 1) / scale
        features = np.concatenate([lagged, self.promo[row, lo:hi, None], self.shared[lo:hi]], 1)
        return features, sales[lo:hi], np.float32(scale), row


def random_batches(dataset, size, steps, generator):
    sampler = torch.utils.data.RandomSampler(
        dataset, replacement=True, num_samples=size * steps, generator=generator)
    return DataLoader(dataset, batch_size=size, sampler=sampler)


class DeepAR(nn.Module):
    def __init__(self, n_series, n_features, hidden=96, layers=2, identity=16):
        super().__init__()
        self.identity = nn.Embedding(n_series, identity)
        self.rnn = nn.LSTM(n_features + identity + 1, hidden, num_layers=layers, batch_first=True)
        self.mean = nn.Linear(hidden, 1)
        self.shape = nn.Linear(hidden, 1)

    def forward(self, features, scale, series):
        static = torch.cat([self.identity(series), scale.log().unsqueeze(1)], 1)
        x = torch.cat([features, static.unsqueeze(1).expand(-1, features.shape[1], -1)], -1)
        states, _ = self.rnn(x)
        mean = nn.functional.softplus(self.mean(states).squeeze(-1)) * scale.unsqueeze(1)
        alpha = nn.functional.softplus(self.shape(states).squeeze(-1)) / scale.sqrt().unsqueeze(1)
        return mean + 1e-5, alpha + 1e-5


def negative_binomial_nll(mean, alpha, target):
    r = 1.0 / alpha
    log_p = torch.log(alpha * mean) - torch.log1p(alpha * mean)
    log_q = -torch.log1p(alpha * mean)
    log_prob = (torch.lgamma(target + r) - torch.lgamma(target + 1.0) - torch.lgamma(r)
                + r * log_q + target * log_p)
    return -log_prob.mean()


def warmup_cosine(step, warmup, total):
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + np.cos(np.pi * (step - warmup) / max(1, total - warmup)))


def normalised_deviation(model, batches):
    model.eval()
    error = volume = 0.0
    with torch.no_grad():
        for features, target, scale, series in batches:
            mean, _ = model(features, scale, series)
            error += (mean - target).abs().sum().item()
            volume += target.sum().item()
    model.train()
    return error / volume


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=84)
    parser.add_argument("--series", type=int, default=500)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--seed", type=int, default=31)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    sales, promo, shared = retail_panel(args.series, 730, np.random.default_rng(args.seed))
    cut = 600
    train = PanelWindows(sales[:, :cut], promo[:, :cut], shared[:cut], args.length)
    held = PanelWindows(sales[:, cut:], promo[:, cut:], shared[cut:], args.length)
    loader = random_batches(train, args.batch, args.steps, torch.Generator().manual_seed(1))
    held_batches = list(random_batches(held, args.batch, 1, torch.Generator().manual_seed(2)))

    model = DeepAR(args.series, len(LAGS) + 1 + shared.shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, partial(warmup_cosine, warmup=10, total=args.steps + 10))

    window = []
    for step, (features, target, scale, series) in enumerate(loader, start=1):
        mean, alpha = model(features, scale, series)
        loss = negative_binomial_nll(mean, alpha, target)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        schedule.step()
        window.append(loss.item())
        if step % args.log_every == 0:
            print(f"step {step:4d}  nll {np.mean(window):.5f}  lr {schedule.get_last_lr()[0]:.2e}")
            window = []
        if step % 50 == 0:
            print(f"step {step:4d}  held-out ND {normalised_deviation(model, held_batches):.4f}")


if __name__ == "__main__":
    main()
