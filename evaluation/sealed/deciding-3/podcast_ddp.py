"""Two-tower podcast retrieval, data-parallel over two CPU processes."""
import argparse
import os
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

EPISODES, CONTENT, HISTORY = 100_000, 128, 12


def episode_content(seed=0):
    """Sentence-encoder vectors of the episode descriptions (computed upstream, fixed)."""
    rng = np.random.default_rng(seed)
    shows = rng.standard_normal((500, CONTENT)).astype(np.float32)
    show = rng.integers(0, 500, EPISODES)
    return torch.from_numpy(shows[show] + 0.5 * rng.standard_normal((EPISODES, CONTENT)).astype(np.float32)), show


class ListeningStream:
    def __init__(self, show, rank, world, seed):
        self.rng = np.random.default_rng(seed * world + rank)
        self.order = np.argsort(show, kind="stable")
        self.start = np.searchsorted(show[self.order], np.arange(501))

    def batch(self, n):
        liked = self.rng.integers(0, 500, (n, 3))
        pick = liked[np.arange(n)[:, None], self.rng.integers(0, 3, (n, HISTORY + 1))]
        lo, hi = self.start[pick], self.start[pick + 1]
        ep = self.order[lo + (self.rng.random(lo.shape) * (hi - lo)).astype(np.int64)]
        age = self.rng.exponential(5.0, (n, HISTORY)).astype(np.float32)
        return torch.from_numpy(ep[:, :HISTORY]), torch.from_numpy(age), torch.from_numpy(ep[:, HISTORY])


class EpisodeTower(nn.Module):
    def __init__(self, content, dim):
        super().__init__()
        self.register_buffer("content", content)
        self.net = nn.Sequential(nn.Linear(CONTENT, 320), nn.GELU(), nn.Linear(320, 320), nn.GELU(), nn.Linear(320, dim))

    def forward(self, ids):
        return self.net(self.content[ids])


class ListenerTower(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.decay = nn.Parameter(torch.tensor(0.1))
        self.query = nn.Parameter(torch.randn(dim) * 0.1)
        self.net = nn.Sequential(nn.Linear(dim, 256), nn.GELU(), nn.Linear(256, dim))

    def forward(self, h, age):
        w = (h @ self.query - self.decay * age).softmax(-1)
        pooled = (w[..., None] * h).sum(1)
        return pooled + self.net(pooled)


class Retrieval(nn.Module):
    def __init__(self, content, dim=96):
        super().__init__()
        self.episode = EpisodeTower(content, dim)
        self.listener = ListenerTower(dim)
        self.log_temp = nn.Parameter(torch.tensor(2.0))

    def forward(self, history, age, nxt):
        u = F.normalize(self.listener(self.episode(history), age), dim=-1)
        v = F.normalize(self.episode(nxt), dim=-1)
        return u @ v.T * self.log_temp.exp()


def in_batch_loss(logits):
    gold = torch.arange(len(logits))
    return F.cross_entropy(logits, gold), (logits.argmax(1) == gold).float().mean()


def worker(rank, world, store, args):
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    content, show = episode_content()
    model = DistributedDataParallel(Retrieval(content))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    stream = ListeningStream(show, rank, world, args.seed)
    for step in range(1, args.steps + 1):
        loss, acc = in_batch_loss(model(*stream.batch(args.batch)))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            stats = torch.stack([loss.detach(), acc])
            dist.all_reduce(stats)
            if rank == 0:
                print(f"step {step} loss {stats[0].item() / world:.4f} in-batch acc {stats[1].item() / world:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--seed", type=int, default=3)
    ns = ap.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        mp.spawn(worker, (2, os.path.join(tmp, "store"), ns), nprocs=2)
