"""First-order meta-learning of a deep narrow regressor; tasks are split over two processes
and the meta-gradient is averaged between them."""
import argparse
import os
import tempfile
from collections import OrderedDict

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call
from torch.multiprocessing import spawn


class TaskFamily:
    """Regression of responses of randomly wired second-order circuits."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def sample(self, shots):
        amp, freq, damp = (torch.rand(3, generator=self.g) + 0.4).tolist()
        phase = torch.rand(1, generator=self.g).item() * 6.28

        def respond(n):
            t = torch.rand(n, 1, generator=self.g) * 4
            y = amp * torch.exp(-damp * t / 2) * torch.sin(4 * freq * t + phase)
            side = 0.1 * torch.randn(n, 7, generator=self.g)
            return torch.cat([t, t.sin(), t.cos(), side], 1), y

        return respond(shots), respond(shots)


class NarrowBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + 0.3 * self.down(F.silu(self.up(self.norm(x))))


class Regressor(nn.Module):
    def __init__(self, width=64, depth=12):
        super().__init__()
        self.inp = nn.Linear(10, width)
        self.blocks = nn.ModuleList(NarrowBlock(width) for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h = self.inp(x)
        for b in self.blocks:
            h = b(h)
        return self.out(h)


def adapt(model, support, inner_lr, inner_steps):
    x, y = support
    fast = OrderedDict((k, p.detach().clone().requires_grad_()) for k, p in model.named_parameters())
    for _ in range(inner_steps):
        loss = F.mse_loss(functional_call(model, fast, (x,)), y)
        grads = torch.autograd.grad(loss, fast.values())
        with torch.no_grad():
            for p, g in zip(fast.values(), grads):
                p.sub_(g, alpha=inner_lr)
    return fast


def average_gradients(model, world):
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        p.grad.div_(world)


def accumulate(model, grads, scale):
    for p, g in zip(model.parameters(), grads):
        p.grad = g * scale if p.grad is None else p.grad.add_(g, alpha=scale)


def meta_worker(rank, world, path, args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    torch.manual_seed(args.seed)
    model = Regressor()
    family = TaskFamily(args.seed + 1000 * (rank + 1))
    opt = torch.optim.Adam(model.parameters(), lr=args.meta_lr, fused=True)
    local = args.tasks // world
    for it in range(1, args.steps + 1):
        opt.zero_grad()
        query_loss = torch.zeros(())
        for _ in range(local):
            support, (qx, qy) = family.sample(args.shots)
            fast = adapt(model, support, args.inner_lr, args.inner_steps)
            loss = F.mse_loss(functional_call(model, fast, (qx,)), qy)
            accumulate(model, torch.autograd.grad(loss, fast.values()), 1.0 / local)
            query_loss += loss.detach() / local
        average_gradients(model, world)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        if it % 10 == 0:
            dist.all_reduce(query_loss)
            if rank == 0:
                print(f"meta step {it} query mse {query_loss.item() / world:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--tasks", type=int, default=4)
    ap.add_argument("--shots", type=int, default=256)
    ap.add_argument("--inner-steps", type=int, default=2)
    ap.add_argument("--inner-lr", type=float, default=0.02)
    ap.add_argument("--meta-lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=37)
    args = ap.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        spawn(meta_worker, args=(2, os.path.join(tmp, "meta"), args), nprocs=2)
