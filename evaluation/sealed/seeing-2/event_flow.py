import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

# Conditional normalising flow for collider events: p(observables | process parameters)


def make_events(n, dim, ctx, seed):
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=(n, ctx)).astype(np.float32)
    mix = rng.normal(size=(ctx, dim)).astype(np.float32) / np.sqrt(ctx)
    z = rng.normal(size=(n, dim)).astype(np.float32)
    x = np.sinh(0.4 * z + 0.3 * theta @ mix) + 0.2 * z[:, ::-1] ** 2
    x = (x - x.mean(0)) / x.std(0)
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(theta)


class ActNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(dim))
        self.log_scale = nn.Parameter(torch.zeros(dim))
        self.register_buffer("ready", torch.zeros((), dtype=torch.bool))

    def forward(self, x, ctx):
        if not self.ready:
            with torch.no_grad():
                self.loc.copy_(-x.mean(0))
                self.log_scale.copy_(-(x.std(0) + 1e-6).log())
                self.ready.fill_(True)
        return (x + self.loc) * self.log_scale.exp(), self.log_scale.sum()


class InvertibleLinear(nn.Module):
    def __init__(self, dim):
        super().__init__()
        q, _ = torch.linalg.qr(torch.randn(dim, dim))
        self.weight = nn.Parameter(q)

    def forward(self, x, ctx):
        w = self.weight.expand(x.shape[0], -1, -1)
        z = torch.bmm(w, x.unsqueeze(-1)).squeeze(-1)
        return z, torch.linalg.slogdet(w).logabsdet


class ContextNet(nn.Module):
    def __init__(self, n_in, n_ctx, n_hidden, n_out):
        super().__init__()
        self.inp = nn.Linear(n_in + n_ctx, n_hidden)
        self.mid = nn.Linear(n_hidden, n_hidden)
        self.norm = nn.LayerNorm(n_hidden)
        self.out = nn.Linear(n_hidden, n_out)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x, ctx):
        h = F.gelu(self.inp(torch.cat([x, ctx], -1)))
        h = h + F.gelu(self.mid(self.norm(h)))
        return self.out(h)


class AffineCoupling(nn.Module):
    def __init__(self, dim, ctx, hidden):
        super().__init__()
        self.half = dim // 2
        self.net = ContextNet(self.half, ctx, hidden, 2 * (dim - self.half))

    def forward(self, x, ctx):
        a, b = x[:, :self.half], x[:, self.half:]
        shift, raw = self.net(a, ctx).chunk(2, -1)
        log_s = 1.5 * torch.tanh(raw / 1.5)
        return torch.cat([a, (b + shift) * log_s.exp()], -1), log_s.sum(-1)


class Flow(nn.Module):
    def __init__(self, dim, ctx, hidden, depth):
        super().__init__()
        steps = []
        for _ in range(depth):
            steps += [ActNorm(dim), InvertibleLinear(dim), AffineCoupling(dim, ctx, hidden)]
        self.steps = nn.ModuleList(steps)
        self.register_buffer("const", torch.tensor(0.5 * dim * np.log(2 * np.pi), dtype=torch.float32))

    def log_prob(self, x, ctx):
        total = x.new_zeros(x.shape[0])
        for step in self.steps:
            x, logdet = step(x, ctx)
            total = total + logdet
        return total - 0.5 * x.pow(2).sum(-1) - self.const


def batch_stream(x, ctx, size, gen):
    while True:
        order = torch.randperm(len(x), generator=gen)
        for idx in order.split(size):
            if len(idx) == size:
                yield x[idx], ctx[idx]


def warmup_cosine(step, total, warm):
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + np.cos(np.pi * (step - warm) / max(1, total - warm)))


def train(args):
    torch.manual_seed(args.seed)
    x, ctx = make_events(20000, args.dim, args.ctx, args.seed)
    held_x, held_c = x[-1024:], ctx[-1024:]
    stream = batch_stream(x[:-1024], ctx[:-1024], args.batch, torch.Generator().manual_seed(args.seed))
    flow = Flow(args.dim, args.ctx, args.hidden, args.depth)
    opt = torch.optim.AdamW(flow.parameters(), lr=args.lr, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: warmup_cosine(s, args.steps, 10))

    for step in range(1, args.steps + 1):
        bx, bc = next(stream)
        noisy = bx + 0.01 * torch.randn_like(bx)
        nll = -flow.log_prob(noisy, bc).mean() / args.dim
        opt.zero_grad(set_to_none=True)
        nll.backward()
        norm = nn.utils.clip_grad_norm_(flow.parameters(), 5.0)
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"step {step:4d} nll/dim {nll.item():.4f} |g| {norm.item():.3f}", flush=True)
        if step % args.eval_every == 0:
            with torch.no_grad():
                print(f"   held-out {-flow.log_prob(held_x, held_c).mean().item() / args.dim:.4f}", flush=True)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=512)
    p.add_argument("--dim", type=int, default=20)
    p.add_argument("--ctx", type=int, default=8)
    p.add_argument("--hidden", type=int, default=256)
    p.add_argument("--depth", type=int, default=6)
    p.add_argument("--lr", type=float, default=5e-4)
    p.add_argument("--eval-every", type=int, default=40)
    p.add_argument("--seed", type=int, default=13)
    train(p.parse_args())
