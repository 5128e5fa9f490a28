import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.data import DataLoader, Subset, TensorDataset


def make_patches(n, mels, frames, classes, seed):
    """Log-mel patches of environmental sounds (harmonic stacks, bursts, drones)."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    t = np.arange(frames, dtype=np.float32)
    out = rng.normal(-4, 0.8, (n, 1, mels, frames)).astype(np.float32)
    base = rng.integers(3, mels // 3, classes)
    rate = rng.uniform(0.05, 0.5, classes)
    for i in range(n):
        env = 1.5 * (1 + np.sin(rate[y[i]] * t + rng.uniform(0, 6.28)))
        for h in range(1, 4):
            out[i, 0, min(base[y[i]] * h, mels - 1)] += env / h
    return torch.from_numpy(out), torch.from_numpy(y)


class ConvBlock(nn.Module):
    def __init__(self, i, o, pool):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o)
        self.c2, self.b2 = nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o)
        self.pool = pool

    def forward(self, x):
        x = F.relu_(self.b1(self.c1(x)))
        return F.avg_pool2d(F.relu_(self.b2(self.c2(x))), self.pool)


class SoundNet(nn.Module):
    def __init__(self, classes, w=14):
        super().__init__()
        self.bn0 = nn.BatchNorm2d(1)
        self.blocks = nn.Sequential(ConvBlock(1, w, 2), ConvBlock(w, 2 * w, 2), ConvBlock(2 * w, 4 * w, 2), ConvBlock(4 * w, 6 * w, (2, 1)))
        self.att = nn.Conv1d(6 * w, classes, 1)
        self.cla = nn.Conv1d(6 * w, classes, 1)

    def forward(self, x):
        h = self.blocks(self.bn0(x)).mean(2)
        a = torch.tanh(self.att(h)).softmax(-1)
        return (a * self.cla(h)).sum(-1)


class Trainer:
    def __init__(self, args):
        self.args = args
        x, y = make_patches(1000, args.mels, args.frames, args.classes, args.seed)
        full = TensorDataset(x, y)
        gen = torch.Generator().manual_seed(args.seed)
        self.train = DataLoader(Subset(full, range(900)), args.batch, shuffle=True, drop_last=True, generator=gen)
        self.valid = DataLoader(Subset(full, range(900, 1000)), 50, generator=gen)
        self.bn_loader = DataLoader(Subset(full, range(0, 128)), 32, generator=gen)
        self.net = SoundNet(args.classes)
        self.swa = AveragedModel(self.net)
        self.opt = torch.optim.SGD(self.net.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
        self.step = 0
        self.t0 = time.time()

    def learning_rate(self):
        c = self.args.cycle
        pos = (self.step % c) / c
        return self.args.lr * (1 - 0.9 * pos)

    def batches(self):
        while True:
            yield from self.train

    def specaug(self, x):
        f0 = int(torch.randint(0, x.shape[2] - 6, ()))
        t0 = int(torch.randint(0, x.shape[3] - 10, ()))
        x = x.clone()
        x[:, :, f0:f0 + 6] = -4
        x[..., t0:t0 + 10] = -4
        return x

    def average(self):
        self.swa.update_parameters(self.net)
        update_bn(self.bn_loader, self.swa)

    @torch.no_grad()
    def evaluate(self, net):
        net.eval()
        hit = sum((net(x).argmax(1) == y).sum().item() for x, y in self.valid)
        net.train()
        return hit / len(self.valid.dataset)

    def fit(self):
        for x, y in self.batches():
            for g in self.opt.param_groups:
                g["lr"] = self.learning_rate()
            loss = F.cross_entropy(self.net(self.specaug(x)), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.step += 1
            if self.step % self.args.cycle == 0:
                self.average()
            if self.step % 10 == 0:
                print(f"{self.step:4d} loss {loss.item():.4f}", flush=True)
            if self.step % self.args.eval_every == 0:
                print(f"{self.step:4d} acc {self.evaluate(self.net):.3f} swa {self.evaluate(self.swa):.3f}", flush=True)
            if self.step >= self.args.steps:
                break


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--mels", type=int, default=48)
    ap.add_argument("--frames", type=int, default=64)
    ap.add_argument("--classes", type=int, default=10)
    ap.add_argument("--cycle", type=int, default=5)
    ap.add_argument("--eval-every", type=int, default=20)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--seed", type=int, default=23)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    Trainer(args).fit()


if __name__ == "__main__":
    main()
