"""Conditional density model of detector responses: logistic mixtures per channel."""
import argparse
import math
import time

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F


def simulate_events(n, n_ctx, n_obs, seed):
    g = np.random.default_rng(seed)
    energy = g.gamma(2.0, 1.0, size=(n, 1))
    angles = g.uniform(-1, 1, size=(n, n_ctx - 1))
    ctx = np.concatenate([np.log(energy), angles], axis=1)
    mix = g.normal(size=(n_ctx, n_obs)) / math.sqrt(n_ctx)
    width = 0.1 + 0.2 * np.exp(-0.3 * energy)
    obs = np.tanh(ctx @ mix) + width * g.standard_normal((n, n_obs))
    bump = g.random((n, n_obs)) < 0.15
    obs = obs + bump * g.normal(1.0, 0.2, size=(n, n_obs))
    return ctx.astype(np.float32), obs.astype(np.float32)


class Conditioner(nn.Module):
    def __init__(self, n_in, n_out, width):
        super().__init__()
        self.inp = nn.Linear(n_in, width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, n_out)
        nn.init.normal_(self.out.weight, std=0.01)
        nn.init.zeros_(self.out.bias)

    def forward(self, h):
        h = F.silu(self.inp(h))
        h = h + F.silu(self.mid(h))
        return self.out(h)


class ResponseModel(nn.Module):
    """Every detector channel is a mixture of logistics whose parameters depend on the context."""

    def __init__(self, n_obs, n_ctx, n_mix, width):
        super().__init__()
        self.n_obs, self.n_mix = n_obs, n_mix
        self.cond = Conditioner(n_ctx, n_obs * 3 * n_mix, width)
        self.register_buffer("grid", torch.linspace(-2, 2, n_mix))

    def mixture(self, ctx):
        w, mu, ls = self.cond(ctx).view(-1, self.n_obs, 3, self.n_mix).unbind(2)
        return F.log_softmax(w, -1), mu + self.grid, ls.clamp(-5, 5)

    def forward(self, ctx):
        logw, mu, ls = self.mixture(ctx)
        w = logw.exp()
        mean = (w * mu).sum(-1)
        second = (w * (mu.square() + torch.exp(2 * ls) * (math.pi**2 / 3))).sum(-1)
        return mean, (second - mean.square()).clamp_min(1e-8).sqrt()

    def log_prob(self, x, ctx):
        logw, mu, ls = self.mixture(ctx)
        z = (x.unsqueeze(-1) - mu) * torch.exp(-ls)
        log_pdf = F.logsigmoid(z) + F.logsigmoid(-z) - ls
        return torch.logsumexp(logw + log_pdf, -1).sum(1)


@torch.no_grad()
def calibration(model, ctx, obs):
    mean, std = model(ctx)
    pull = (obs - mean) / std
    return pull.mean().item(), pull.std().item()


def minibatches(ctx, obs, size, generator):
    n = len(ctx)
    while True:
        order = torch.randperm(n, generator=generator)
        for i in range(0, n - size + 1, size):
            pick = order[i:i + size]
            yield ctx[pick], obs[pick]


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--events", type=int, default=40000)
    ap.add_argument("--batch", type=int, default=3072)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--mixtures", type=int, default=12)
    ap.add_argument("--no-compile", action="store_true")
    ap.add_argument("--seed", type=int, default=11)
    args = ap.parse_args()

    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed + 1)
    n_ctx, n_obs = 6, 16
    ctx, obs = map(torch.from_numpy, simulate_events(args.events, n_ctx, n_obs, args.seed))
    obs = (obs - obs.mean(0)) / obs.std(0)
    held_ctx, held_obs = ctx[-2000:], obs[-2000:]
    ctx, obs = ctx[:-2000], obs[:-2000]

    model = ResponseModel(n_obs, n_ctx, n_mix=args.mixtures, width=96)
    if not args.no_compile:
        model = torch.compile(model)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.98))
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=max(args.steps, 2))

    t0 = time.perf_counter()
    for step, (c, x) in enumerate(minibatches(ctx, obs, args.batch, gen), start=1):
        opt.zero_grad()
        nll = -model.log_prob(x, c).mean()
        nll.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        sched.step()
        if step % 10 == 0 or step == 1:
            print(f"[{step:5d}] nll {nll.item():9.4f}   {time.perf_counter() - t0:7.1f}s", flush=True)
        if step % 500 == 0:
            bias, spread = calibration(model, held_ctx, held_obs)
            print(f"        pull mean {bias:+.3f} std {spread:.3f}", flush=True)
        if step >= args.steps:
            break


if __name__ == "__main__":
    main()
