"""Two-process training of a neighbour-sampling classifier on one citation graph.
Every process holds the whole graph and works on its own share of the seed nodes."""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def build_graph(nodes, dim, fan, classes, seed):
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(classes, (nodes,), generator=g)
    centre = torch.randn(classes, dim, generator=g)
    feat = 0.5 * centre[label] + torch.randn(nodes, dim, generator=g)
    order = label.argsort(stable=True)
    rank_of = torch.empty_like(order)
    rank_of[order] = torch.arange(nodes)
    near = rank_of[:, None] + torch.randint(-300, 301, (nodes, fan), generator=g)
    return feat, order[near % nodes], label


class GraphStore(nn.Module):
    """Features and neighbour table, kept on the module so that they move with it."""

    def __init__(self, feat, neighbours):
        super().__init__()
        self.register_buffer("feat", feat)
        self.register_buffer("neighbours", neighbours)

    def expand(self, nodes, fan, gen):
        col = torch.randint(self.neighbours.shape[1], (len(nodes), fan), generator=gen)
        return self.neighbours[nodes.unsqueeze(1), col]


class GatherLayer(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.self_lin, self.nbr_lin = nn.Linear(d_in, d_out), nn.Linear(d_in, d_out, bias=False)
        self.norm = nn.LayerNorm(d_out)

    def forward(self, own, nbr):
        return F.relu(self.norm(self.self_lin(own) + self.nbr_lin(nbr.mean(-2))))


class CitationNet(nn.Module):
    def __init__(self, store, dim, width, classes, fans=(8, 6)):
        super().__init__()
        self.store, self.fans = store, fans
        self.embed = nn.Sequential(nn.Linear(dim, width), nn.ReLU())
        self.l1, self.l2 = GatherLayer(width, width), GatherLayer(width, width)
        self.out = nn.Linear(width, classes)

    def forward(self, seeds, gen):
        hop1 = self.store.expand(seeds, self.fans[0], gen)
        hop2 = self.store.expand(hop1.flatten(), self.fans[1], gen).view(*hop1.shape, -1)
        x0, x1, x2 = (self.embed(self.store.feat[i]) for i in (seeds, hop1, hop2))
        h1 = self.l1(x1, x2)
        h0 = self.l1(x0, x1)
        return self.out(self.l2(h0, h1))


def worker(rank, world, rendezvous, args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    torch.manual_seed(args.seed)
    feat, neighbours, label = build_graph(args.nodes, args.dim, 12, 16, args.seed)
    net = CitationNet(GraphStore(feat, neighbours), args.dim, args.width, 16)
    ddp = DistributedDataParallel(net)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, fused=True)
    gen = torch.Generator().manual_seed(args.seed * 100 + rank)
    own = torch.arange(rank, args.nodes, world)
    for step in range(1, args.steps + 1):
        seeds = own[torch.randint(len(own), (args.batch,), generator=gen)]
        logits = ddp(seeds, gen)
        loss = F.cross_entropy(logits, label[seeds])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            stat = torch.stack([loss.detach(), (logits.argmax(1) == label[seeds]).float().mean()])
            dist.all_reduce(stat)
            if rank == 0:
                print(f"step {step:4d} loss {stat[0].item() / world:.5f} acc {stat[1].item() / world:.4f}",
                      flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--nodes", type=int, default=80000)
    ap.add_argument("--dim", type=int, default=64)
    ap.add_argument("--width", type=int, default=96)
    ap.add_argument("--batch", type=int, default=320)
    ap.add_argument("--seed", type=int, default=14)
    args = ap.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        mp.spawn(worker, args=(2, os.path.join(tmp, "rdv"), args), nprocs=2)
