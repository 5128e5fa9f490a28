"""Dense retrieval of recipes with periodically mined hard negatives."""
import argparse
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB, QUERY_LEN, RECIPE_LEN = 4000, 12, 40


class Cookbook:
    """Recipes drawn from cuisines; a query is a noisy excerpt of its recipe."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        cuisines = rng.integers(1, VOCAB, (25, 160))
        pick = cuisines[rng.integers(0, 25, n)]
        cols = rng.integers(0, 160, (n, RECIPE_LEN))
        self.recipes = torch.from_numpy(np.take_along_axis(pick, cols, 1))
        spots = torch.from_numpy(rng.integers(0, RECIPE_LEN, (n, QUERY_LEN)))
        self.queries = self.recipes.gather(1, spots)
        noise = torch.from_numpy(rng.random((n, QUERY_LEN)) < 0.3)
        self.queries[noise] = torch.from_numpy(rng.integers(1, VOCAB, int(noise.sum())))


class TextEncoder(nn.Module):
    def __init__(self, dim=112, heads=4, depth=2):
        super().__init__()
        self.words = nn.Embedding(VOCAB, dim)
        self.place = nn.Parameter(torch.randn(RECIPE_LEN, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, heads, 3 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Linear(dim, 96)
        nn.init.normal_(self.words.weight, std=0.05)

    def forward(self, tokens):
        h = self.body(self.words(tokens) + self.place[: tokens.shape[1]])
        return F.normalize(self.out(h.mean(1)), dim=-1)


class DualEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.text = TextEncoder()
        self.scale = nn.Parameter(torch.tensor(2.7))

    def forward(self, queries, positives, negatives):
        n = len(queries)
        q = self.text(queries)
        docs = self.text(torch.cat([positives, negatives]))
        scores = self.scale.exp().clamp(max=50) * (q @ docs.t())
        return F.cross_entropy(scores, torch.arange(n)), (scores.detach().argmax(1) < n).float().mean()


@torch.no_grad()
def embed(encoder, tokens, chunk=128):
    return torch.cat([encoder(part) for part in tokens.split(chunk)])


class NegativeMiner:
    def __init__(self, book, depth, margin):
        self.book, self.depth, self.margin = book, depth, margin
        n = len(book.recipes)
        self.table = torch.randint(n, (n, depth), generator=torch.Generator().manual_seed(0))

    @torch.no_grad()
    def refresh(self, model):
        if dist.get_rank() == 0:
            encoder = model.module.text
            docs = embed(encoder, self.book.recipes)
            queries = embed(encoder, self.book.queries)
            scores = queries @ docs.t()
            scores.fill_diagonal_(-2.0)
            ranked = scores.topk(self.depth + self.margin, dim=1).indices
            self.table.copy_(ranked[:, self.margin:])
        dist.broadcast(self.table, src=0)

    def pick(self, idx, gen):
        column = torch.randint(self.depth, (len(idx),), generator=gen)
        return self.table[idx, column]


def main(args):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    book = Cookbook(args.recipes, args.seed)
    model = DDP(DualEncoder())
    miner = NegativeMiner(book, depth=8, margin=4)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.2, 1.0, total_iters=10)
    gen = torch.Generator().manual_seed(args.seed + 77 * rank)
    own = torch.arange(rank, args.recipes, world)
    began = time.time()
    for step in range(args.steps):
        if step and step % args.refresh_every == 0:
            miner.refresh(model)
        idx = own[torch.randperm(len(own), generator=gen)[: args.batch_size]]
        negatives = book.recipes[miner.pick(idx, gen)]
        loss, hit = model(book.queries[idx], book.recipes[idx], negatives)
        opt.zero_grad()
        loss.backward()
        opt.step()
        warm.step()
        if (step + 1) % 10 == 0:
            stat = torch.stack([loss.detach(), hit])
            dist.all_reduce(stat)
            if rank == 0:
                stat /= world
                print(f"step {step + 1:4d} loss {stat[0]:.4f} in-positives {stat[1]:.3f} "
                      f"elapsed {time.time() - began:.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--recipes", type=int, default=1200)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--refresh-every", type=int, default=8)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=10)
    main(p.parse_args())
