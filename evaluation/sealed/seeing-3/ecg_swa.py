"""Arrhythmia classification on single-lead beats, trained with stochastic weight averaging."""
import argparse
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

BEATS = ["N", "S", "V", "F", "Q"]


def gaussian_wave(t, centre, width, height):
    return height * np.exp(-((t - centre) / width) ** 2)


def synth_beats(n, length, seed):
    rng = np.random.default_rng(seed)
    t = np.linspace(-0.45, 0.55, length)[None]
    y = rng.choice(5, n, p=[0.5, 0.15, 0.2, 0.08, 0.07])
    c = y[:, None]
    jit = lambda s: rng.normal(0, s, (n, 1))
    pwave = gaussian_wave(t, -0.18 - 0.1 * (c == 1) + jit(0.01), 0.03, 0.15 * (c != 2) + jit(0.02))
    qrs = gaussian_wave(t, jit(0.005), 0.014 + 0.03 * (c == 2) + 0.015 * (c == 3) + 0.001 * rng.random((n, 1)), 1.0 + jit(0.1))
    swave = -gaussian_wave(t, 0.04 + jit(0.003), 0.015, 0.25 + jit(0.05))
    twave = gaussian_wave(t, 0.26 + jit(0.015), 0.06, 0.3 * np.where(c == 2, -1, 1) + jit(0.05))
    x = pwave + qrs + swave + twave + 0.05 * np.sin(2 * np.pi * 0.4 * t + jit(2.0)) + rng.normal(0, 0.03, (n, length))
    return torch.from_numpy(x.astype(np.float32))[:, None], torch.from_numpy(y)


class Residual(nn.Module):
    def __init__(self, i, o, k=7):
        super().__init__()
        self.c1 = nn.Conv1d(i, o, k, stride=2, padding=k // 2, bias=False)
        self.c2 = nn.Conv1d(o, o, k, padding=k // 2, bias=False)
        self.n1, self.n2 = nn.BatchNorm1d(o), nn.BatchNorm1d(o)
        self.skip = nn.Conv1d(i, o, 1, stride=2)

    def forward(self, x):
        return F.relu(self.n2(self.c2(F.relu(self.n1(self.c1(x))))) + self.skip(x))


class BeatNet(nn.Module):
    def __init__(self, w=24):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, w, 11, padding=5, bias=False), nn.BatchNorm1d(w), nn.ReLU())
        self.body = nn.Sequential(Residual(w, w), Residual(w, 2 * w), Residual(2 * w, 2 * w))
        self.fc = nn.Linear(4 * w, len(BEATS))

    def forward(self, x):
        h = self.body(self.stem(x))
        return self.fc(torch.cat([h.mean(2), h.amax(2)], 1))


@torch.no_grad()
def macro_f1(model, loader):
    model.eval()
    conf = torch.zeros(5, 5)
    for x, y in loader:
        conf += torch.bincount(y * 5 + model(x).argmax(1), minlength=25).view(5, 5)
    tp = conf.diag()
    return (2 * tp / (conf.sum(0) + conf.sum(1)).clamp(min=1)).mean().item()


class SWATrainer:
    def __init__(self, args):
        torch.manual_seed(args.seed)
        self.args = args
        x, y = synth_beats(args.beats, 256, args.seed)
        n = int(0.85 * len(x))
        self.train_loader = DataLoader(TensorDataset(x[:n], y[:n]), args.batch, shuffle=True, drop_last=True)
        self.val_loader = DataLoader(TensorDataset(x[n:], y[n:]), 128)
        self.bn_loader = DataLoader(TensorDataset(x[:n:4], y[:n:4]), args.batch)
        self.model = BeatNet()
        self.swa = AveragedModel(self.model)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
        self.swa_start = args.swa_start
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, lambda s: 0.5 * (1 + math.cos(math.pi * min(s / args.steps, 1))))
        self.swa_sched = SWALR(self.opt, swa_lr=0.3 * args.lr, anneal_epochs=5)
        self.step = 0

    def batches(self):
        while True:
            yield from self.train_loader

    def average(self):
        self.swa.update_parameters(self.model)
        update_bn(self.bn_loader, self.swa)

    def fit(self):
        a = self.args
        for x, y in self.batches():
            self.model.train()
            loss = F.cross_entropy(self.model(x), y, label_smoothing=0.05)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.step += 1
            if self.step > self.swa_start:
                self.swa_sched.step()
                if self.step % a.swa_every == 0:
                    self.average()
            else:
                self.sched.step()
            if self.step % a.log_every == 0:
                print(f"{self.step:4d} loss {loss.item():.4f} lr {self.opt.param_groups[0]['lr']:.4f}")
            if self.step == a.steps:
                break
        print(f"val macro-F1: last {macro_f1(self.model, self.val_loader):.4f} swa {macro_f1(self.swa, self.val_loader):.4f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--beats", type=int, default=4000)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--swa-start", type=int, default=4)
    ap.add_argument("--swa-every", type=int, default=10)
    ap.add_argument("--log-every", type=int, default=10)
    ap.add_argument("--seed", type=int, default=0)
    SWATrainer(ap.parse_args()).fit()
