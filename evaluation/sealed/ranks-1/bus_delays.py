"""Bus delay forecasting; each process trains alone and weights are averaged now and then."""
import argparse
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

STOPS, FEATURES, HISTORY, HORIZON = 48, 7, 36, 6


def simulate_lines(n_days, seed):
    """Delays spread along the line and relax; traffic and rain push them up."""
    rng = np.random.default_rng(seed)
    ticks = n_days * 72
    hour = np.arange(ticks) % 72 / 72
    traffic = np.exp(-((hour - 0.25) / 0.06) ** 2) + 0.8 * np.exp(-((hour - 0.7) / 0.08) ** 2)
    rain = np.repeat(rng.random(ticks // 12 + 1) < 0.2, 12)[:ticks].astype(np.float64)
    delay = np.zeros((ticks, STOPS))
    slow = rng.uniform(0.3, 1.2, STOPS)
    for k in range(1, ticks):
        carried = np.roll(delay[k - 1], 1)
        carried[0] = 0
        push = slow * traffic[k] * (1 + 0.5 * rain[k]) + 0.2 * rng.standard_normal(STOPS)
        delay[k] = 0.45 * delay[k - 1] + 0.45 * carried + push
    shared = np.stack([hour, np.sin(2 * np.pi * hour), np.cos(2 * np.pi * hour), traffic, rain], 1)
    where = np.linspace(-1, 1, STOPS)
    feats = np.concatenate([delay[..., None] / 5, np.repeat(shared[:, None], STOPS, 1),
                            np.broadcast_to(where[None, :, None], (ticks, STOPS, 1))], -1)
    return torch.from_numpy(feats.astype(np.float32))


class DelayWindows:
    def __init__(self, feats, batch_size, rank, seed):
        self.feats, self.batch_size = feats, batch_size
        self.rng = np.random.default_rng([seed, rank])
        self.span = torch.arange(HISTORY + HORIZON)

    def next(self):
        start = self.rng.integers(0, len(self.feats) - HISTORY - HORIZON, self.batch_size)
        block = self.feats[torch.from_numpy(start)[:, None] + self.span]
        return block[:, :HISTORY], block[:, HISTORY:, :, 0]


class LineForecaster(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.enter = nn.Linear(FEATURES, dim)
        self.temporal = nn.GRU(dim, dim, batch_first=True)
        self.spatial = nn.ModuleList([nn.Conv1d(dim, dim, 5, padding=2) for _ in range(2)])
        self.norms = nn.ModuleList([nn.GroupNorm(4, dim) for _ in range(2)])
        self.head = nn.Linear(dim, HORIZON)

    def forward(self, x):
        b, t, s, _ = x.shape
        h = F.relu(self.enter(x)).transpose(1, 2).reshape(b * s, t, -1)
        _, last = self.temporal(h)
        z = last[0].view(b, s, -1).transpose(1, 2)
        for conv, norm in zip(self.spatial, self.norms):
            z = z + F.relu(conv(norm(z)))
        return self.head(z.transpose(1, 2)).transpose(1, 2)


@torch.no_grad()
def average_weights(params):
    flat = torch.cat([p.reshape(-1) for p in params])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    start = 0
    for p in params:
        p.copy_(flat[start:start + p.numel()].view_as(p))
        start += p.numel()


def train(cfg):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(cfg.seed)
    model = LineForecaster()
    params = list(model.parameters())
    average_weights(params)
    windows = DelayWindows(simulate_lines(30, cfg.seed), cfg.batch_size, rank, cfg.seed)
    opt = torch.optim.Adam(params, lr=cfg.lr)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.99)
    began, window = time.time(), []
    for step in range(1, cfg.steps + 1):
        x, y = windows.next()
        loss = F.smooth_l1_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        sched.step()
        window.append(loss.item())
        if step % cfg.average_every == 0:
            average_weights(params)
        if step % 10 == 0:
            mean = torch.tensor(np.mean(window))
            dist.all_reduce(mean)
            window.clear()
            if rank == 0:
                print(f"step {step} loss {mean.item() / world:.4f} {(time.time() - began) / step * 1e3:.0f} ms", flush=True)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--average-every", type=int, default=8)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=19)
    cfg = p.parse_args()
    dist.init_process_group("gloo")
    train(cfg)
    dist.destroy_process_group()
