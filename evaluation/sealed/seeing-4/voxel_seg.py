"""Semantic segmentation of lidar sweeps: pillar/voxel averaging, point MLPs and a height-map CNN."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

LABELS = ["ground", "wall", "car", "pole", "tree"]


def sweep(rng, n):
    label = rng.choice(5, n, p=[0.45, 0.2, 0.15, 0.05, 0.15])
    xyz = rng.uniform(-20, 20, (n, 3))
    xyz[:, 2] = rng.normal(0, 0.05, n)
    anchors = rng.uniform(-18, 18, (5, 6, 2))
    for k in range(1, 5):
        m = label == k
        pick = anchors[k][rng.integers(0, 6, m.sum())]
        spread = [0, 2.5, 1.2, 0.1, 1.0][k]
        xyz[m, :2] = pick + rng.normal(0, spread, (m.sum(), 2)) * ([1, 0.05] if k == 1 else [1, 1])
        xyz[m, 2] = rng.uniform(0, [0, 3, 1.5, 4, 3.9][k], m.sum())
    return np.clip(xyz, -19.9, 19.9).astype(np.float32), rng.random(n).astype(np.float32), label


class Sweeps(torch.utils.data.Dataset):
    def __init__(self, count, points, seed):
        rng = np.random.default_rng(seed)
        self.items = [sweep(rng, points) for _ in range(count)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        xyz, refl, lab = self.items[i]
        a = np.random.uniform(0, 2 * np.pi)
        rot = np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]], np.float32)
        xyz = np.concatenate([np.clip(xyz[:, :2] @ rot.T, -19.99, 19.99), xyz[:, 2:]], 1)
        return torch.from_numpy(xyz), torch.from_numpy(refl), torch.from_numpy(lab)


def join(batch):
    xyz, refl, lab = zip(*batch)
    owner = torch.cat([torch.full((len(p),), i) for i, p in enumerate(xyz)])
    return torch.cat(xyz), torch.cat(refl), owner, torch.cat(lab)


def quantise(xyz, owner, size, low=(-20.0, -20.0, -1.0)):
    """Voxel rows [sweep, ix, iy, iz] of the occupied cells and, per point, the row it falls in."""
    cell = ((xyz - torch.tensor(low)) / size).floor().long()
    rows, inverse = torch.unique(torch.cat([owner.unsqueeze(1), cell], 1), dim=0, return_inverse=True)
    return rows, inverse


def scatter_mean(x, index, rows):
    total = x.new_zeros(rows, x.shape[1]).index_add_(0, index, x)
    count = torch.bincount(index, minlength=rows).clamp(min=1).unsqueeze(1)
    return total / count


def point_mlp(*dims):
    mods = []
    for a, b in zip(dims[:-1], dims[1:]):
        mods += [nn.Linear(a, b), nn.LayerNorm(b), nn.ReLU()]
    return nn.Sequential(*mods)


class VoxelPointNet(nn.Module):
    def __init__(self, width=48, voxel=0.5, grid=40):
        super().__init__()
        self.voxel, self.grid = voxel, grid
        self.enter = point_mlp(7, width)
        self.in_voxel = point_mlp(width, width)
        self.map = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
        self.leave = point_mlp(3 * width, width)
        self.head = nn.Linear(width, len(LABELS))

    def forward(self, xyz, refl, owner):
        rows, inverse = quantise(xyz, owner, self.voxel)
        centre = scatter_mean(xyz, inverse, len(rows))
        feat = self.enter(torch.cat([xyz / 10, xyz - centre[inverse], refl.unsqueeze(1)], 1))
        vox = self.in_voxel(scatter_mean(feat, inverse, len(rows)))
        side = int(40 / self.voxel)
        scale = side // self.grid
        pillar = (rows[:, 0] * self.grid + rows[:, 1] // scale) * self.grid + rows[:, 2] // scale
        sweeps = int(owner[-1]) + 1
        bev = scatter_mean(vox, pillar, sweeps * self.grid ** 2).view(sweeps, self.grid, self.grid, -1)
        bev = self.map(bev.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).reshape(-1, vox.shape[1])
        return self.head(self.leave(torch.cat([feat, vox[inverse], bev[pillar][inverse]], 1)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--points", type=int, default=3000)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=31)
    args = ap.parse_args()
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    loader = torch.utils.data.DataLoader(Sweeps(64, args.points, args.seed), args.batch, shuffle=True, drop_last=True, collate_fn=join)
    net = VoxelPointNet()
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
    step = 0
    while step < args.steps:
        for xyz, refl, owner, lab in loader:
            logits = net(xyz, refl, owner)
            loss = F.cross_entropy(logits, lab)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 10 == 0:
                acc = (logits.argmax(1) == lab).float().mean()
                print(f"step {step:4d} loss {loss.item():.4f} acc {acc.item():.3f}")
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
