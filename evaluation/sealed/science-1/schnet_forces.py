"""Continuous-filter network for molecular energies and forces (SchNet style)."""
import argparse
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

SPECIES = np.array([1, 6, 7, 8])
RADII = {1: 0.9, 6: 1.4, 7: 1.35, 8: 1.3}


def grow_chain(rng, n_atoms):
    """Self-avoiding branched chain with roughly covalent spacing."""
    pos = [np.zeros(3)]
    while len(pos) < n_atoms:
        root = pos[-1] if rng.random() < 0.75 else pos[rng.integers(len(pos))]
        step = rng.normal(size=3)
        cand = root + 1.45 * step / np.linalg.norm(step)
        if min(np.linalg.norm(cand - p) for p in pos) > 1.15:
            pos.append(cand)
    return np.array(pos)


def label(z, pos):
    """Morse pair energy with smooth cutoff; forces are analytic."""
    r0 = np.array([RADII[int(v)] for v in z])
    r0 = (r0[:, None] + r0[None, :]) / 2 * 1.1
    diff = pos[:, None] - pos[None, :]
    dist = np.sqrt((diff ** 2).sum(-1)) + np.eye(len(z))
    e = np.exp(-1.3 * (dist - r0))
    pair = (1 - e) ** 2 - 1
    dpair = 2 * (1 - e) * e * 1.3
    np.fill_diagonal(pair, 0.0)
    np.fill_diagonal(dpair, 0.0)
    forces = -(dpair / dist)[..., None] * diff
    return 0.5 * pair.sum(), forces.sum(1)


class Conformers(Dataset):
    def __init__(self, size, seed, lo=22, hi=40):
        rng = np.random.default_rng(seed)
        self.items = []
        for _ in range(size):
            n = int(rng.integers(lo, hi + 1))
            z = rng.choice(SPECIES, size=n, p=[0.45, 0.35, 0.1, 0.1])
            pos = grow_chain(rng, n)
            energy, forces = label(z, pos)
            i, j = np.nonzero(~np.eye(n, dtype=bool))
            self.items.append((torch.as_tensor(z), torch.as_tensor(pos, dtype=torch.float32),
                               float(energy), torch.as_tensor(forces, dtype=torch.float32),
                               torch.as_tensor(np.stack([i, j]))))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, k):
        return self.items[k]


def collate(items):
    z, pos, energy, forces, pairs = zip(*items)
    sizes = torch.tensor([len(v) for v in z])
    offset = torch.cumsum(sizes, 0) - sizes
    return {
        "z": torch.cat(z),
        "pos": torch.cat(pos),
        "energy": torch.tensor(energy, dtype=torch.float32),
        "forces": torch.cat(forces),
        "pairs": torch.cat([p + o for p, o in zip(pairs, offset)], dim=1),
        "mol": torch.repeat_interleave(torch.arange(len(z)), sizes),
    }


def ssp(x):
    return F.softplus(x) - math.log(2.0)


class RadialBasis(nn.Module):
    def __init__(self, n, cutoff):
        super().__init__()
        centers = torch.linspace(0.6, cutoff, n)
        self.register_buffer("centers", centers)
        self.gamma = 0.5 / float(centers[1] - centers[0]) ** 2
        self.cutoff = cutoff

    def forward(self, d):
        rbf = torch.exp(-self.gamma * (d[:, None] - self.centers) ** 2)
        env = 0.5 * (torch.cos(d * (math.pi / self.cutoff)) + 1.0)
        return rbf, env * (d < self.cutoff)


class Interaction(nn.Module):
    def __init__(self, dim, n_rbf):
        super().__init__()
        self.filter_in = nn.Linear(n_rbf, dim)
        self.filter_out = nn.Linear(dim, dim)
        self.inner = nn.Linear(dim, dim, bias=False)
        self.out = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, h, i, j, rbf, env):
        w = self.filter_out(ssp(self.filter_in(rbf))) * env[:, None]
        msg = self.inner(h)[j] * w
        agg = torch.zeros_like(h).index_add(0, i, msg)
        return h + self.out(agg)


class Potential(nn.Module):
    def __init__(self, dim=64, depth=3, n_rbf=32, cutoff=5.0):
        super().__init__()
        self.embed = nn.Embedding(10, dim)
        self.radial = RadialBasis(n_rbf, cutoff)
        self.blocks = nn.ModuleList([Interaction(dim, n_rbf) for _ in range(depth)])
        self.readout = nn.Sequential(nn.Linear(dim, dim // 2), nn.SiLU(), nn.Linear(dim // 2, 1))
        self.register_buffer("shift", torch.zeros(()))

    def forward(self, z, pos, pairs, mol, n_mol):
        i, j = pairs
        d = (pos[i] - pos[j]).square().sum(-1).sqrt()
        rbf, env = self.radial(d)
        h = self.embed(z)
        for block in self.blocks:
            h = block(h, i, j, rbf, env)
        atomic = self.readout(h).squeeze(-1) + self.shift
        return torch.zeros(n_mol, dtype=atomic.dtype).index_add(0, mol, atomic)


class Fit:
    def __init__(self, args):
        self.args = args
        self.train = Conformers(args.train_size, seed=5)
        self.valid = Conformers(16, seed=6)
        self.model = Potential(dim=args.dim, cutoff=args.cutoff)
        per_atom = [e / len(z) for z, _, e, _, _ in self.train.items]
        self.model.shift.fill_(float(np.mean(per_atom)))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=args.lr, amsgrad=True)
        self.sched = torch.optim.lr_scheduler.ExponentialLR(self.opt, 0.999)

    def predict(self, batch, training):
        pos = batch["pos"].requires_grad_(True)
        energy = self.model(batch["z"], pos, batch["pairs"], batch["mol"], len(batch["energy"]))
        grad, = torch.autograd.grad(energy.sum(), pos, create_graph=training)
        return energy, -grad

    def losses(self, batch, training=True):
        energy, forces = self.predict(batch, training)
        n_atoms = torch.bincount(batch["mol"]).float()
        e_loss = F.mse_loss(energy / n_atoms, batch["energy"] / n_atoms)
        f_loss = F.mse_loss(forces, batch["forces"])
        return e_loss, f_loss

    def epoch_stream(self):
        loader = DataLoader(self.train, batch_size=self.args.batch, shuffle=True,
                            drop_last=True, collate_fn=collate)
        while True:
            yield from loader

    def run(self):
        step = 0
        for batch in self.epoch_stream():
            e_loss, f_loss = self.losses(batch)
            loss = self.args.rho * e_loss + f_loss
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.sched.step()
            step += 1
            if step % self.args.log_every == 0:
                print(f"[{step}] energy {e_loss.item():.6f} force {f_loss.item():.6f}")
            if step == self.args.steps:
                break
        ve, vf = self.losses(collate(self.valid.items), training=False)
        print(f"valid energy {ve.item():.6f} force {vf.item():.6f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--train-size", type=int, default=160)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--cutoff", type=float, default=5.0)
    parser.add_argument("--rho", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--log-every", type=int, default=10)
    cli = parser.parse_args()
    torch.manual_seed(3)
    Fit(cli).run()
