"""3-D lesion segmentation on CT sub-volumes (residual U-Net, Dice + CE)."""
import argparse
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def export_cases(root, n, shape, seed):
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(*[np.arange(s, dtype=np.float32) for s in shape], indexing="ij"))
    noise = rng.integers(-40, 40, (2,) + shape, dtype=np.int16)
    for k in range(n):
        centre = np.array(shape) / 2 + rng.uniform(-6, 6, 3)
        body = (((grid - centre[:, None, None, None]) / (np.array(shape)[:, None, None, None] * 0.42)) ** 2).sum(0) < 1
        ct = np.where(body, 60, -900).astype(np.int16) + np.roll(noise[k % 2], k * 7, 1)
        mask = np.zeros(shape, np.uint8)
        for _ in range(4):
            c = centre + rng.uniform(-14, 14, 3)
            mask[((grid - c[:, None, None, None]) ** 2).sum(0) < rng.uniform(3, 8) ** 2] = 1
        ct[mask > 0] -= 45
        np.save(os.path.join(root, f"case{k:02d}_ct.npy"), ct.astype(np.float32))
        np.save(os.path.join(root, f"case{k:02d}_seg.npy"), mask)


class CtPatches(Dataset):
    def __init__(self, root, patch, length, seed, fg_rate=0.6):
        names = sorted(f[:-7] for f in os.listdir(root) if f.endswith("_ct.npy"))
        self.cts = [np.load(os.path.join(root, n + "_ct.npy")) for n in names]
        self.segs = [np.load(os.path.join(root, n + "_seg.npy")) for n in names]
        self.fg = [np.argwhere(s) for s in self.segs]
        self.patch, self.length, self.fg_rate = patch, length, fg_rate
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return self.length

    def corner(self, case):
        shape = np.array(self.cts[case].shape)
        if self.rng.random() < self.fg_rate:
            c = self.fg[case][self.rng.integers(len(self.fg[case]))] - self.patch // 2
        else:
            c = self.rng.integers(0, shape - self.patch + 1)
        return np.clip(c, 0, shape - self.patch)

    def intensity_window(self, case):
        """Robust intensity range of the scan, used for clipping and scaling."""
        lo, hi = np.percentile(self.cts[case], (0.5, 99.5))
        return float(lo), float(hi)

    def __getitem__(self, i):
        case = int(self.rng.integers(len(self.cts)))
        z, y, x = self.corner(case)
        p = self.patch
        sl = np.s_[z:z + p, y:y + p, x:x + p]
        lo, hi = self.intensity_window(case)
        ct = (self.cts[case][sl].clip(lo, hi) - lo) / (hi - lo)
        seg = self.segs[case][sl]
        for axis in range(3):
            if self.rng.random() < 0.5:
                ct, seg = np.flip(ct, axis), np.flip(seg, axis)
        ct = ct * np.float32(self.rng.uniform(0.9, 1.1)) + np.float32(self.rng.uniform(-0.05, 0.05))
        return torch.from_numpy(np.ascontiguousarray(ct))[None], torch.from_numpy(np.ascontiguousarray(seg)).long()


class Res3d(nn.Module):
    def __init__(self, i, o, stride=1):
        super().__init__()
        self.c1 = nn.Conv3d(i, o, 3, stride, 1, bias=False)
        self.c2 = nn.Conv3d(o, o, 3, 1, 1, bias=False)
        self.n1, self.n2 = nn.InstanceNorm3d(o, affine=True), nn.InstanceNorm3d(o, affine=True)
        self.s = nn.Conv3d(i, o, 1, stride)

    def forward(self, x):
        y = F.leaky_relu(self.n1(self.c1(x)), 0.01)
        return F.leaky_relu(self.n2(self.c2(y)) + self.s(x), 0.01)


class UNet3d(nn.Module):
    def __init__(self, w=8, classes=2):
        super().__init__()
        self.e1, self.e2, self.e3 = Res3d(1, w), Res3d(w, 2 * w, 2), Res3d(2 * w, 4 * w, 2)
        self.u2, self.u1 = nn.ConvTranspose3d(4 * w, 2 * w, 2, 2), nn.ConvTranspose3d(2 * w, w, 2, 2)
        self.d2, self.d1 = Res3d(4 * w, 2 * w), Res3d(2 * w, w)
        self.out = nn.Conv3d(w, classes, 1)

    def forward(self, x):
        a = self.e1(x)
        b = self.e2(a)
        c = self.d2(torch.cat([self.u2(self.e3(b)), b], 1))
        return self.out(self.d1(torch.cat([self.u1(c), a], 1)))


def soft_dice(logits, seg):
    p = logits.softmax(1)[:, 1].flatten(1)
    g = (seg == 1).flatten(1).float()
    return 1 - ((2 * (p * g).sum(1) + 1) / (p.sum(1) + g.sum(1) + 1)).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=2)
    ap.add_argument("--patch", type=int, default=24)
    ap.add_argument("--cases", type=int, default=6)
    ap.add_argument("--lr", type=float, default=1e-2)
    ap.add_argument("--seed", type=int, default=71)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    with tempfile.TemporaryDirectory() as root:
        export_cases(root, a.cases, (80, 128, 128), a.seed)
        loader = DataLoader(CtPatches(root, a.patch, a.steps * a.batch, a.seed), a.batch)
        net = UNet3d()
        opt = torch.optim.SGD(net.parameters(), lr=a.lr, momentum=0.99, nesterov=True, weight_decay=3e-5)
        sched = torch.optim.lr_scheduler.PolynomialLR(opt, a.steps, power=0.9)
        for step, (ct, seg) in enumerate(loader, 1):
            logits = net(ct)
            ce, dice = F.cross_entropy(logits, seg), soft_dice(logits, seg)
            loss = ce + dice
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 12.0)
            opt.step()
            sched.step()
            if step % 10 == 0:
                print(f"step {step:3d} ce {ce.item():.4f} dice {dice.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
