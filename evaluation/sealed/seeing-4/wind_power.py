"""Probabilistic wind farm output forecasting (quantile N-BEATS style stack) with resumable training."""
import argparse
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn


class Farms:
    """Ten-minute SCADA history of several farms, standardised, with wind speed and direction channels."""

    def __init__(self, farms, length, seed):
        rng = np.random.default_rng(seed)
        drift = rng.normal(0, 0.12, (farms, length))
        speed = np.empty((farms, length))
        s = np.full(farms, 7.0)
        for t in range(length):
            s += 0.02 * (7.5 - s) + drift[:, t]
            speed[:, t] = s
        speed = np.abs(speed) + 0.3 * rng.normal(size=speed.shape)
        power = 1 / (1 + np.exp(-(speed - 8) * 1.2)) * (speed < 22)
        angle = np.cumsum(rng.normal(0, 0.03, speed.shape), 1)
        self.channels = np.stack([power, speed / 10, np.sin(angle), np.cos(angle)], 1).astype(np.float32)

    def sample(self, rng, batch, past, horizon):
        n, _, length = self.channels.shape
        f, a = rng.integers(0, n, batch), rng.integers(0, length - past - horizon, batch)
        span = a[:, None] + np.arange(past + horizon)
        x = self.channels[f[:, None], :, span].transpose(0, 2, 1)
        return torch.from_numpy(x[:, :, :past].copy()), torch.from_numpy(x[:, 0, past:].copy())


class Stack(nn.Module):
    def __init__(self, n_in, width, theta):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n_in, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.back = nn.Linear(width, n_in)
        self.fore = nn.Linear(width, theta)

    def forward(self, x):
        h = self.net(x)
        return self.back(h), self.fore(h)


class QuantileStacks(nn.Module):
    def __init__(self, past, horizon, quantiles, channels=4, width=320, stacks=3):
        super().__init__()
        self.horizon, self.nq = horizon, len(quantiles)
        self.stacks = nn.ModuleList(Stack(channels * past, width, horizon * self.nq) for _ in range(stacks))

    def forward(self, x):
        rest, total = x.flatten(1), 0.0
        for s in self.stacks:
            back, fore = s(rest)
            rest = rest - back
            total = total + fore
        return total.view(-1, self.nq, self.horizon)


def pinball(pred, y, q):
    e = y.unsqueeze(1) - pred
    return torch.maximum(q[:, None] * e, (q[:, None] - 1) * e).mean()


class Trainer:
    def __init__(self, args):
        self.args = args
        torch.manual_seed(args.seed)
        self.rng = np.random.default_rng(args.seed)
        self.data = Farms(args.farms, args.history, args.seed)
        self.q = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95])
        self.model = QuantileStacks(args.past, args.horizon, self.q)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, args.steps)
        self.step, self.log = 0, []

    def state(self):
        return {**self.__dict__, "model": self.model.state_dict(), "opt": self.opt.state_dict(), "sched": self.sched.state_dict()}

    def save(self, path):
        torch.save(self.state(), path + ".tmp")
        os.replace(path + ".tmp", path)

    def restore(self, path):
        saved = torch.load(path, weights_only=False)
        for name in ("model", "opt", "sched"):
            getattr(self, name).load_state_dict(saved[name])
        self.step, self.log, self.rng = saved["step"], saved["log"], saved["rng"]

    def train_one(self):
        x, y = self.data.sample(self.rng, self.args.batch, self.args.past, self.args.horizon)
        x = x + 0.01 * torch.randn_like(x)
        loss = pinball(self.model(x), y, self.q)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.sched.step()
        self.step += 1
        self.log.append(loss.item())

    def run(self):
        path = os.path.join(self.args.out or tempfile.mkdtemp(prefix="wind_"), "last.pt")
        if self.args.resume:
            self.restore(self.args.resume)
        while self.step < self.args.steps:
            self.train_one()
            if self.step % self.args.print_every == 0:
                print(f"step {self.step} pinball {np.mean(self.log[-self.args.print_every:]):.5f}")
            if self.step % self.args.save_every == 0:
                self.save(path)
        print(f"last checkpoint at step {self.step - self.step % self.args.save_every}")
        if self.args.out is None and os.path.exists(path):
            os.remove(path)
            os.rmdir(os.path.dirname(path))


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=256)
    p.add_argument("--farms", type=int, default=64)
    p.add_argument("--history", type=int, default=52000)
    p.add_argument("--past", type=int, default=144)
    p.add_argument("--horizon", type=int, default=36)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--save-every", type=int, default=10)
    p.add_argument("--print-every", type=int, default=10)
    p.add_argument("--out", default=None)
    p.add_argument("--resume", default=None)
    p.add_argument("--seed", type=int, default=14)
    Trainer(p.parse_args()).run()
