"""Byte-level language model of court opinions, fully sharded over the processes."""
import argparse
import math
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

PHRASES = [b"the court finds ", b"pursuant to section ", b"affirmed. ", b"the appellant argues that ",
           b"in re ", b"we hold that ", b"see id. at ", b"reversed and remanded. ", b"the motion is denied ",
           b"under the statute, ", b"plaintiff ", b"defendant "]


def draft_opinions(n_bytes, seed):
    rng = np.random.default_rng(seed)
    transition = rng.dirichlet(np.full(len(PHRASES), 0.4), size=len(PHRASES))
    state, parts, size = 0, [], 0
    while size < n_bytes:
        state = int(rng.choice(len(PHRASES), p=transition[state]))
        text = PHRASES[state]
        if state == 1:
            text += str(int(rng.integers(1, 999))).encode() + b" "
        parts.append(text)
        size += len(text)
    return torch.from_numpy(np.frombuffer(b"".join(parts), dtype=np.uint8).copy()).long()


class Passages:
    def __init__(self, corpus, context, batch_size, seed):
        self.corpus, self.context, self.batch_size = corpus, context, batch_size
        self.rng = np.random.default_rng(seed)
        self.offset = torch.arange(context + 1)

    def __iter__(self):
        while True:
            start = torch.from_numpy(self.rng.integers(0, len(self.corpus) - self.context - 1, self.batch_size))
            rows = self.corpus[start[:, None] + self.offset]
            yield rows[:, :-1], rows[:, 1:]


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = SelfAttention(dim, heads)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class OpinionModel(nn.Module):
    def __init__(self, dim, depth, heads, context):
        super().__init__()
        self.bytes = nn.Embedding(256, dim)
        self.places = nn.Embedding(context, dim)
        self.layers = nn.ModuleList([Layer(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 256)

    def forward(self, x):
        h = self.bytes(x) + self.places(torch.arange(x.shape[1]))
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h))


def shard(model, mesh):
    units = (nn.Linear, nn.Embedding)
    for module in list(model.modules()):
        if isinstance(module, units):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def rate(step, total, warmup=8):
    ramp = min(1.0, (step + 1) / warmup)
    return ramp * (0.1 + 0.45 * (1 + math.cos(math.pi * step / total)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch-size", type=int, default=12)
    ap.add_argument("--context", type=int, default=96)
    ap.add_argument("--dim", type=int, default=144)
    ap.add_argument("--depth", type=int, default=3)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=31)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(args.seed)
    model = shard(OpinionModel(args.dim, args.depth, 4, args.context), mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: rate(s, args.steps))
    batches = iter(Passages(draft_opinions(200_000, args.seed), args.context, args.batch_size, args.seed + rank))
    t0 = time.time()
    for step in range(args.steps):
        x, y = next(batches)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()
        sched.step()
        if step % 10 == 0 or step == args.steps - 1:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"{step:3d} bits/byte {mean.item() / world / math.log(2):.4f} {time.time() - t0:.1f}s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
