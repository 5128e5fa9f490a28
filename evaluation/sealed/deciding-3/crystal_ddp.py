"""Formation energy of crystals from smeared pair-distance features, data-parallel on CPU."""
import argparse
import os
import tempfile
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ELEMENTS, SITES, BINS = 30, 10, 64
SHIFTS = np.array([[i, j, k] for i in (-1, 0, 1) for j in (-1, 0, 1) for k in (-1, 0, 1)], dtype=np.float32)
GRID = np.linspace(0.8, 8.0, BINS, dtype=np.float32)


@dataclass
class Crystal:
    lattice: np.ndarray
    frac: np.ndarray
    species: np.ndarray
    energy: float


def make_crystals(n, seed):
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(n):
        lattice = np.diag(rng.uniform(4, 7, 3)) + rng.normal(0, 0.3, (3, 3))
        species = rng.integers(1, ELEMENTS, SITES)
        frac = rng.random((SITES, 3))
        energy = np.log(abs(np.linalg.det(lattice)) / 150) + 0.02 * (species - 15).mean() + 0.3 * np.sin(species).mean()
        out.append(Crystal(lattice.astype(np.float32), frac.astype(np.float32), species, float(energy)))
    return out


class CrystalSet(torch.utils.data.Dataset):
    """Adds a little thermal displacement to every structure each time it is drawn."""

    def __init__(self, crystals, noise=0.02):
        self.crystals, self.noise = crystals, noise

    def __len__(self):
        return len(self.crystals)

    def featurise(self, c, seed):
        rng = np.random.default_rng(seed)
        frac = c.frac + self.noise * rng.standard_normal(c.frac.shape, dtype=np.float32)
        delta = frac[:, None, None] - frac[None, :, None] + SHIFTS
        d = np.sqrt(np.square(delta @ c.lattice).sum(-1))
        smear = np.exp(-4.0 * np.square(d[..., None] - GRID)) * (d[..., None] > 0.5)
        return smear.sum(2)

    def __getitem__(self, key):
        i, seed = key
        c = self.crystals[i]
        return self.featurise(c, seed), c.species, c.energy


def collate(items):
    feats, species, energy = zip(*items)
    return (torch.from_numpy(np.stack(feats)), torch.from_numpy(np.stack(species)),
            torch.tensor(energy, dtype=torch.float32))


class PairMix(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(BINS, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.val = nn.Linear(dim, dim)
        self.out = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def forward(self, h, pair):
        return h + self.out((self.gate(pair) * self.val(h)[:, None]).sum(2))


class CrystalNet(nn.Module):
    def __init__(self, dim=96, depth=3):
        super().__init__()
        self.emb = nn.Embedding(ELEMENTS, dim)
        self.mix = nn.ModuleList(PairMix(dim) for _ in range(depth))
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 1))

    def forward(self, pair, species):
        h = self.emb(species)
        for m in self.mix:
            h = m(h, pair)
        return self.head(h.mean(1)).squeeze(-1)


class Feeder:
    """Same seed everywhere, so that the workers agree on the order of structures."""

    def __init__(self, data, size, rank, world, seed):
        self.data, self.size, self.rank, self.world = data, size, rank, world
        self.rng = np.random.default_rng(seed)

    def next(self):
        picks = self.rng.choice(len(self.data), self.size, replace=False)
        seeds = self.rng.integers(0, 1 << 31, self.size)
        batch = collate([self.data[i, s] for i, s in zip(picks, seeds)])
        return tuple(t[self.rank::self.world] for t in batch)


def run(rank, world, store, args):
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, world_size=world, rank=rank)
    feed = Feeder(CrystalSet(make_crystals(600, 1)), args.batch, rank, world, args.seed)
    model = DistributedDataParallel(CrystalNet())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4, fused=True)
    for step in range(1, args.steps + 1):
        pair, species, energy = feed.next()
        loss = nn.functional.huber_loss(model(pair, species), energy, delta=0.5)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        opt.step()
        if step % 10 == 0:
            value = loss.detach().clone()
            dist.all_reduce(value)
            if rank == 0:
                print(f"step {step} huber {value.item() / world:.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64, help="structures per step, all workers together")
    parser.add_argument("--seed", type=int, default=5)
    opts = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, (2, os.path.join(folder, "init"), opts), nprocs=2)
