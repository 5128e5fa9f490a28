"""Ensemble post-processing of wind speed forecasts trained on the fair CRPS."""
import argparse

import numpy as np
import pandas as pd
import torch
import torch.nn as nn


def build_archive(n_stations, n_days, seed):
    """Station observations and raw 10-member forecasts, in long format."""
    rng = np.random.default_rng(seed)
    day = np.arange(n_days)
    height = rng.gamma(2.0, 200.0, n_stations)
    base = 4 + 0.004 * height + rng.normal(0, 1, n_stations)
    synoptic = np.convolve(rng.normal(0, 1, n_days + 6), np.ones(7) / 2.6, "valid")
    truth = np.abs(base[:, None] + 1.5 * synoptic + np.sin(2 * np.pi * day / 365.0) + rng.normal(0, 1, (n_stations, n_days)))
    spread = 0.5 + 0.3 * rng.random((n_stations, n_days))
    members = truth[..., None] * 0.85 + 0.6 + spread[..., None] * rng.normal(0, 1, (n_stations, n_days, 10))
    frame = pd.DataFrame({"station": np.repeat(np.arange(n_stations), n_days), "day": np.tile(day, n_stations), "obs": truth.ravel()})
    frame["mean"] = members.mean(2).ravel()
    frame["sd"] = members.std(2).ravel()
    frame["max"] = members.max(2).ravel()
    frame["height"] = np.repeat(height, n_days)
    frame["sin"] = np.sin(2 * np.pi * frame["day"] / 365.0)
    frame["cos"] = np.cos(2 * np.pi * frame["day"] / 365.0)
    return frame


FEATURES = ["mean", "sd", "max", "height", "sin", "cos"]


def to_sequences(frame, length):
    z = frame[FEATURES]
    z = (z - z.mean()) / z.std()
    n = frame["station"].nunique()
    x = torch.tensor(z.to_numpy(np.float32)).view(n, -1, len(FEATURES))
    y = torch.tensor(frame["obs"].to_numpy(np.float32)).view(n, -1)
    return x.unfold(1, length, length).transpose(2, 3).flatten(0, 1), y.unfold(1, length, length).flatten(0, 1)


class NoiseConditionedNet(nn.Module):
    """Generates an ensemble by feeding Gaussian latents next to the predictors."""

    def __init__(self, members, latent=8, width=48):
        super().__init__()
        self.members, self.latent = members, latent
        self.encode = nn.GRU(len(FEATURES), width, batch_first=True)
        self.cond = nn.Linear(width, width)
        self.noise = nn.Linear(latent, width)
        self.mlp = nn.Sequential(nn.SiLU(), nn.Linear(width, 24), nn.SiLU(), nn.Linear(24, 1))

    def forward(self, x):
        h = self.cond(self.encode(x)[0])
        z = torch.randn(x.shape[0], x.shape[1], self.members, self.latent)
        return nn.functional.softplus(self.mlp(h.unsqueeze(2) + self.noise(z))).squeeze(3)


def fair_crps(ens, obs):
    """E|X - y| - 0.5 E|X - X'| with the unbiased ensemble estimate of the second term."""
    m = ens.shape[-1]
    skill = (ens - obs.unsqueeze(-1)).abs().mean(-1)
    pairs = (ens.unsqueeze(-1) - ens.unsqueeze(-2)).abs().sum((-1, -2))
    return skill - pairs / (2 * m * (m - 1))


def rank_histogram(ens, obs, bins=6):
    rank = (ens < obs.unsqueeze(-1)).float().mean(-1)
    return torch.histc(rank, bins, 0, 1) / rank.numel()


class PostProcessor:
    def __init__(self, args):
        self.args = args
        torch.manual_seed(args.seed)
        x, y = to_sequences(build_archive(args.stations, 720, args.seed), args.length)
        hold = len(x) // 10
        order = torch.randperm(len(x))
        self.val = x[order[:hold]][:16], y[order[:hold]][:16]
        self.x, self.y = x[order[hold:]], y[order[hold:]]
        self.net = NoiseConditionedNet(args.members)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=args.lr)
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, 200, 0.5)

    def epochs(self):
        b = self.args.batch
        while True:
            perm = torch.randperm(len(self.x))
            for i in range(0, len(perm) - b + 1, b):
                yield self.x[perm[i:i + b]], self.y[perm[i:i + b]]

    def fit(self):
        for step, (x, y) in enumerate(self.epochs(), 1):
            loss = fair_crps(self.net(x), y).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.sched.step()
            if step % 15 == 0:
                self.report(step, loss.item())
            if step == self.args.steps:
                return

    @torch.no_grad()
    def report(self, step, loss):
        ens = self.net(self.val[0])
        hist = " ".join(f"{v:.2f}" for v in rank_histogram(ens, self.val[1]).tolist())
        print(f"step {step} train {loss:.4f} val {fair_crps(ens, self.val[1]).mean().item():.4f} ranks [{hist}]")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--length", type=int, default=30)
    ap.add_argument("--stations", type=int, default=60)
    ap.add_argument("--members", type=int, default=64)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=0)
    PostProcessor(ap.parse_args()).fit()
