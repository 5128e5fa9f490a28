"""Formation energies of molecules from tabulated distance filters on a nearest-neighbour graph."""
import argparse
import time
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F

ELEMENTS = 12


class Batch(NamedTuple):
    species: torch.Tensor    # [molecules * atoms]
    neighbour: torch.Tensor  # [molecules * atoms * k], grouped by receiving atom
    shell: torch.Tensor      # distance bin of each pair, same order
    energy: torch.Tensor     # [molecules]


def make_batch(molecules, atoms, k, shells, device):
    """Random molecules, their k nearest neighbours and a smooth pair energy as the target."""
    position = torch.rand(molecules, atoms, 3, device=device) * atoms ** (1 / 3)
    species = torch.randint(ELEMENTS, (molecules, atoms), device=device)
    distance = torch.cdist(position, position, compute_mode="donot_use_mm_for_euclid_dist")
    distance.diagonal(dim1=1, dim2=2).fill_(float("inf"))
    near, who = distance.topk(k, dim=-1, largest=False)
    base = torch.arange(molecules, device=device).view(-1, 1, 1) * atoms
    grid = torch.linspace(0, 1, shells + 1, device=device)[1:-1].contiguous()
    edges = torch.quantile(near[:16].flatten(), grid)
    shell = torch.bucketize(near, edges)
    charge = torch.linspace(-1, 1, ELEMENTS, device=device)
    other = charge[species].gather(1, who.flatten(1)).view_as(near)
    pair = charge[species].unsqueeze(-1) * other * torch.exp(-near)
    return Batch(species.flatten(), (who + base).flatten(), shell.flatten(), pair.sum((1, 2)))


class FilterTable(nn.Module):
    """One learned filter of the given width per distance shell."""

    def __init__(self, shells, width, as_embedding):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shells, width) * 0.5)
        self.as_embedding = as_embedding

    def forward(self, shell):
        if self.as_embedding:
            return F.embedding(shell, self.weight)
        return self.weight[shell]


class Interaction(nn.Module):
    def __init__(self, width, shells, k, as_embedding):
        super().__init__()
        self.k = k
        self.filters = FilterTable(shells, width, as_embedding)
        self.norm = nn.LayerNorm(width)
        self.send = nn.Linear(width, width)
        self.message = nn.Linear(width, width)
        self.update = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))

    def forward(self, h, neighbour, shell):
        sent = self.send(self.norm(h)).index_select(0, neighbour)
        filtered = sent * self.filters(shell).to(sent.dtype)
        message = F.silu(self.message(filtered))
        received = message.view(h.shape[0], self.k, -1).mean(1)
        return h + self.update(received)


class EnergyModel(nn.Module):
    def __init__(self, width, shells, k, depth, atoms, as_embedding=False):
        super().__init__()
        self.atoms = atoms
        self.species = nn.Embedding(ELEMENTS, width)
        self.interactions = nn.ModuleList(
            Interaction(width, shells, k, as_embedding) for _ in range(depth))
        self.readout = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(),
                                     nn.Linear(width, 1))

    def forward(self, batch):
        h = self.species(batch.species)
        for interaction in self.interactions:
            h = interaction(h, batch.neighbour, batch.shell)
        return self.readout(h).float().view(-1, self.atoms).sum(1)


class Trainer:
    def __init__(self, args):
        self.device = args.device
        if args.small:
            molecules, self.atoms, k, shells, width, depth, pool = 16, 20, 4, 16, 32, 2, 2
        else:
            molecules, self.atoms, k, shells, width, depth, pool = 512, 80, 16, 96, 256, 5, 8
        self.batches = [make_batch(molecules, self.atoms, k, shells, args.device) for _ in range(pool)]
        energies = torch.cat([b.energy for b in self.batches])
        self.shift, self.spread = energies.mean(), energies.std()
        self.model = EnergyModel(width, shells, k, depth, self.atoms, as_embedding=args.fixed)
        self.model.to(args.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-4, fused=True)

    def step(self, number):
        batch = self.batches[number % len(self.batches)]
        target = (batch.energy - self.shift) / self.spread
        with torch.autocast(self.device, dtype=torch.bfloat16):
            predicted = self.model(batch)
        loss = F.smooth_l1_loss(predicted / self.atoms ** 0.5, target)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def run(self, steps, warmup=10):
        start = None
        for number in range(steps):
            if number == warmup:
                self.wait()
                start = time.perf_counter()
            loss = self.step(number)
            if (number + 1) % 20 == 0:
                print(f"step {number + 1}: loss {loss.item():.4f}")
        self.wait()
        if start is not None:
            print(f"step_ms={1000 * (time.perf_counter() - start) / (steps - warmup):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(29)
    torch.set_float32_matmul_precision("high")
    Trainer(options).run(options.steps)
