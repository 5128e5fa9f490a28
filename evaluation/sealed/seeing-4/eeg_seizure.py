"""Sample-wise seizure detection in scalp EEG with a dilated convolutional network."""
import argparse
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def simulate(n, channels, length, seed):
    rng = np.random.default_rng(seed)
    eeg = rng.normal(0, 1, (n, channels, length)).astype(np.float32).cumsum(2) * 0.05
    eeg += rng.normal(0, 0.5, eeg.shape).astype(np.float32)
    mark = np.zeros((n, length), np.float32)
    t = np.arange(length) / 128
    for i in range(n):
        if rng.random() < 0.6:
            a = int(rng.integers(0, length - 128))
            b = min(length, a + int(rng.integers(128, length)))
            amp = rng.uniform(0.5, 1.5) * rng.random((channels, 1))
            eeg[i, :, a:b] += amp * np.sign(np.sin(2 * np.pi * rng.uniform(3, 5) * t[a:b]))
            mark[i, a:b] = 1
    return torch.from_numpy(eeg), torch.from_numpy(mark)


def auroc(score, label):
    """Area under the ROC curve by the rank statistic, mid-ranks for ties."""
    order = np.argsort(score, kind="stable")
    s, y = score[order], label[order]
    _, first, count = np.unique(s, return_index=True, return_counts=True)
    rank = np.repeat(first + (count + 1) / 2, count)
    pos = y.sum()
    neg = len(y) - pos
    return float((rank[y > 0].sum() - pos * (pos + 1) / 2) / max(pos * neg, 1))


@dataclass
class Meter:
    """Collects what the training loop reports."""
    scores: list = field(default_factory=list)
    labels: list = field(default_factory=list)
    losses: list = field(default_factory=list)
    auc: float = 0.5
    sensitivity: float = 0.0

    def update(self, loss, logits, target):
        self.losses.append(loss.item())
        self.scores.append(logits.detach().numpy().ravel())
        self.labels.append(target.numpy().ravel())
        score, label = np.concatenate(self.scores), np.concatenate(self.labels)
        self.auc = auroc(score, label)
        self.sensitivity = float((score[label > 0] > 0).mean())

    def __str__(self):
        return f"loss {np.mean(self.losses[-10:]):.4f} auc {self.auc:.4f} sens {self.sensitivity:.3f}"


class GatedDilated(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.conv = nn.Conv1d(width, 2 * width, 3, padding=dilation, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)
        self.norm = nn.GroupNorm(4, width)

    def forward(self, x):
        a, b = self.conv(self.norm(x)).chunk(2, 1)
        return x + self.mix(torch.tanh(a) * torch.sigmoid(b))


class SeizureNet(nn.Module):
    def __init__(self, channels, width=48, blocks=4):
        super().__init__()
        self.spatial = nn.Conv1d(channels, width, 7, stride=2, padding=3)
        self.blocks = nn.ModuleList(GatedDilated(width, 2 ** i) for i in range(blocks))
        self.out = nn.ConvTranspose1d(width, 1, 4, stride=2, padding=1)

    def forward(self, x):
        x = self.spatial(x)
        for b in self.blocks:
            x = b(x)
        return self.out(F.relu(x)).squeeze(1)


class Session:
    def __init__(self, opts):
        torch.manual_seed(opts.seed)
        self.opts = opts
        self.eeg, self.mark = simulate(opts.segments, opts.channels, opts.length, opts.seed)
        self.net = SeizureNet(opts.channels)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=opts.lr)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, opts.steps)
        self.pos_weight = ((1 - self.mark).sum() / self.mark.sum()).clamp(max=5)
        self.meter = Meter()

    def minibatch(self):
        idx = torch.randint(len(self.eeg), (self.opts.batch,))
        x = self.eeg[idx]
        drop = (torch.rand(len(x), x.shape[1], 1) > 0.1).float()
        return x * drop, self.mark[idx]

    def advance(self):
        x, y = self.minibatch()
        logits = self.net(x)
        loss = F.binary_cross_entropy_with_logits(logits, y, pos_weight=self.pos_weight)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.sched.step()
        self.meter.update(loss, logits, y)

    def run(self):
        for step in range(1, self.opts.steps + 1):
            self.advance()
            if step % self.opts.report == 0:
                print(f"[{step}/{self.opts.steps}] {self.meter}")


def cli():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=12)
    p.add_argument("--segments", type=int, default=240)
    p.add_argument("--channels", type=int, default=19)
    p.add_argument("--length", type=int, default=768)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--report", type=int, default=10)
    p.add_argument("--seed", type=int, default=2)
    return p.parse_args()


if __name__ == "__main__":
    Session(cli()).run()
