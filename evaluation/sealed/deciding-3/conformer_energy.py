"""Energy regression on conformers kept in one archive (SchNet-flavoured, fixed atom count)."""
import argparse
import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split

ATOMS = 18


def write_archive(path, n=2400, seed=0):
    rng = np.random.default_rng(seed)
    species = rng.choice([1, 6, 7, 8], size=(n, ATOMS), p=[0.5, 0.35, 0.07, 0.08])
    coords = rng.standard_normal((n, ATOMS, 3)).astype(np.float32) * 2.0
    d = np.linalg.norm(coords[:, :, None] - coords[:, None], axis=-1) + 2 * np.eye(ATOMS)
    q = species / 8.0
    energy = (q[:, :, None] * q[:, None] * np.exp(-d)).sum((1, 2)) - 0.1 * species.sum(1)
    np.savez(path, species=species.astype(np.uint8), coords=coords, energy=energy.astype(np.float32))


class ConformerArchive(Dataset):
    def __init__(self, path):
        self.data = np.load(path)
        e = self.data["energy"]
        self.mean, self.std = float(e.mean()), float(e.std())
        self.size = len(e)

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        z = torch.from_numpy(self.data["species"][i].astype(np.int64))
        xyz = torch.from_numpy(self.data["coords"][i])
        y = (float(self.data["energy"][i]) - self.mean) / self.std
        return z, xyz, torch.tensor(y)


class RadialBasis(nn.Module):
    def __init__(self, n=24, cutoff=8.0):
        super().__init__()
        self.register_buffer("mu", torch.linspace(0, cutoff, n))
        self.gamma = n / cutoff
        self.cutoff = cutoff

    def forward(self, d):
        env = 0.5 * (torch.cos(torch.pi * (d / self.cutoff).clamp(max=1)) + 1)
        return torch.exp(-self.gamma * (d[..., None] - self.mu) ** 2), env[..., None]


class Interaction(nn.Module):
    def __init__(self, dim, n_rbf):
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(n_rbf, dim), nn.Softplus(), nn.Linear(dim, dim))
        self.lin = nn.Linear(dim, dim, bias=False)
        self.post = nn.Sequential(nn.Linear(dim, dim), nn.Softplus(), nn.Linear(dim, dim))

    def forward(self, h, rbf, env):
        w = self.filter(rbf) * env
        msg = (w * self.lin(h)[:, None]).sum(2)
        return h + self.post(msg)


class EnergyNet(nn.Module):
    def __init__(self, dim=80, layers=3):
        super().__init__()
        self.emb = nn.Embedding(10, dim)
        self.rbf = RadialBasis()
        self.layers = nn.ModuleList(Interaction(dim, 24) for _ in range(layers))
        self.out = nn.Sequential(nn.Linear(dim, 32), nn.Softplus(), nn.Linear(32, 1))
        self.register_buffer("off_diag", 1.0 - torch.eye(ATOMS)[..., None])

    def forward(self, z, xyz):
        d = ((xyz[:, :, None] - xyz[:, None]).square().sum(-1) + 1e-8).sqrt()
        rbf, env = self.rbf(d)
        env = env * self.off_diag
        h = self.emb(z)
        for layer in self.layers:
            h = layer(h, rbf, env)
        return self.out(h).sum((1, 2)) / ATOMS


def validate(net, loader):
    net.eval()
    err, n = 0.0, 0
    with torch.no_grad():
        for z, xyz, y in loader:
            err += (net(z, xyz) - y).abs().sum().item()
            n += len(y)
    net.train()
    return err / n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    torch.manual_seed(8)
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "conformers.npz")
        write_archive(path)
        data = ConformerArchive(path)
        train, val = random_split(data, [len(data) - 48, 48])
        loader = DataLoader(train, args.batch, shuffle=True, drop_last=True)
        val_loader = DataLoader(val, 48)
        net = EnergyNet()
        opt = torch.optim.AdamW(net.parameters(), lr=args.lr, fused=True)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
        step = 0
        while step < args.steps:
            for z, xyz, y in loader:
                loss = nn.functional.smooth_l1_loss(net(z, xyz), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                sched.step()
                step += 1
                if step % 10 == 0:
                    print(f"step {step} train {loss.item():.4f}")
                if step % 50 == 0:
                    print(f"  val mae {validate(net, val_loader) * data.std:.4f}")
                if step == args.steps:
                    break


if __name__ == "__main__":
    main()
