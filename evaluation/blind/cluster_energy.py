"""Atomisation energies of small clusters with continuous-filter convolutions."""
import argparse
import math
import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    clusters: int = 600
    min_atoms: int = 9
    max_atoms: int = 22
    cutoff: float = 2.6
    rbf: int = 24
    hidden: int = 48
    blocks: int = 3
    batch: int = 8


def make_clusters(cfg, gen):
    """Returns species (0 = no atom), positions and energies, padded to max_atoms."""
    count = torch.randint(cfg.min_atoms, cfg.max_atoms + 1, (cfg.clusters,), generator=gen)
    real = torch.arange(cfg.max_atoms)[None] < count[:, None]
    species = torch.randint(1, 6, real.shape, generator=gen) * real
    radius = 1.15 * count.float().pow(1 / 3)
    pos = torch.randn(*real.shape, 3, generator=gen)
    pos = F.normalize(pos, dim=-1) * torch.rand(*real.shape, 1, generator=gen).pow(1 / 3)
    pos = pos * radius[:, None, None]
    dist = torch.cdist(pos, pos) + 10 * torch.eye(cfg.max_atoms)
    both = real[:, :, None] & real[:, None, :]
    charge = species.float() * 0.2
    pair = charge[:, :, None] * charge[:, None, :] * torch.exp(-dist) * both
    energy = pair.sum((1, 2)) - charge.sum(1)
    return species, pos, (energy - energy.mean()) / energy.std()


def shifted_softplus(x):
    return F.softplus(x) - math.log(2.0)


class Interaction(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.filter_in = nn.Linear(cfg.rbf, cfg.hidden)
        self.filter_out = nn.Linear(cfg.hidden, cfg.hidden)
        self.inp = nn.Linear(cfg.hidden, cfg.hidden, bias=False)
        self.mid = nn.Linear(cfg.hidden, cfg.hidden)
        self.out = nn.Linear(cfg.hidden, cfg.hidden)

    def filters(self, basis, window):
        return self.filter_out(shifted_softplus(self.filter_in(basis))) * window[..., None]

    def forward(self, h, basis, window, pairs):
        w = self.filters(basis, window)
        v = self.inp(h)
        if pairs is None:
            m = (w * v[:, None]).sum(2)
        else:
            b, i, j = pairs
            n = h.shape[1]
            flat = v.flatten(0, 1)
            m = torch.zeros_like(flat).index_add(0, b * n + i, w * flat[b * n + j]).view_as(v)
        return h + self.out(shifted_softplus(self.mid(m)))


class FilterNet(nn.Module):
    def __init__(self, cfg, listed):
        super().__init__()
        self.cfg, self.listed = cfg, listed
        self.embed = nn.Embedding(6, cfg.hidden, padding_idx=0)
        self.blocks = nn.ModuleList(Interaction(cfg) for _ in range(cfg.blocks))
        self.readout = nn.Sequential(nn.Linear(cfg.hidden, 24), nn.Softplus(), nn.Linear(24, 1))
        self.register_buffer("centres", torch.linspace(0.0, cfg.cutoff, cfg.rbf))

    def forward(self, species, pos):
        real = species > 0
        dist = torch.cdist(pos, pos)
        near = (dist < self.cfg.cutoff) & real[:, :, None] & real[:, None, :]
        near = near & ~torch.eye(pos.shape[1], dtype=torch.bool)
        pairs = None
        if self.listed:
            pairs = near.nonzero(as_tuple=True)
            dist, near = dist[pairs], near[pairs]
        basis = torch.exp(-8.0 * (dist[..., None] - self.centres).square())
        window = 0.5 * (torch.cos(math.pi * dist / self.cfg.cutoff) + 1) * near
        h = self.embed(species)
        for block in self.blocks:
            h = block(h, basis, window, pairs)
        return (self.readout(h).squeeze(-1) * real).sum(1)


def train(steps, fixed):
    cfg = Config()
    gen = torch.Generator().manual_seed(21)
    species, pos, energy = make_clusters(cfg, gen)
    torch.manual_seed(21)
    model = FilterNet(cfg, listed=fixed)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(steps):
        if step == 10:
            t0 = time.perf_counter()
        pick = torch.randint(0, cfg.clusters, (cfg.batch,), generator=gen)
        loss = F.mse_loss(model(species[pick], pos[pick]), energy[pick])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if (step + 1) % 50 == 0:
            print(f"step {step + 1} loss {loss.item():.5f}")
    print(f"step_ms={(time.perf_counter() - t0) * 1e3 / (steps - 10):.3f}")


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--steps", type=int, default=300)
    cli.add_argument("--fixed", action="store_true")
    train(**vars(cli.parse_args()))
