"""Sequence-to-sequence sleep staging from two-channel EEG (30 s epochs, 100 Hz)."""
import argparse
import collections
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

STAGES = ("W", "N1", "N2", "N3", "REM")
FS = 100
EPOCH_SEC = 30


class NightRecordings(Dataset):
    """Synthetic polysomnography: every night is a Markov chain of stages."""

    BANDS = {0: (9.0, 1.0), 1: (6.0, 0.7), 2: (13.0, 0.9), 3: (1.5, 2.2), 4: (5.0, 0.8)}

    def __init__(self, nights, epochs_per_night, context, seed):
        rng = np.random.default_rng(seed)
        n = FS * EPOCH_SEC
        t = np.arange(n, dtype=np.float32) / FS
        stay = 0.85
        self.signals, self.stages, self.index = [], [], []
        for night in range(nights):
            stage, labels = 0, []
            x = np.empty((epochs_per_night, 2, n), dtype=np.float32)
            for e in range(epochs_per_night):
                if rng.random() > stay:
                    stage = int(rng.integers(len(STAGES)))
                freq, amp = self.BANDS[stage]
                phase = rng.uniform(0, 2 * np.pi, size=(2, 1)).astype(np.float32)
                jitter = np.float32(freq * rng.normal(1.0, 0.08))
                x[e] = amp * np.sin(2 * np.pi * jitter * t + phase)
                x[e] += rng.standard_normal((2, n), dtype=np.float32)
                labels.append(stage)
            self.signals.append(x)
            self.stages.append(np.asarray(labels, dtype=np.int64))
            self.index += [(night, s) for s in range(0, epochs_per_night - context + 1, 2)]
        self.context = context

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        night, start = self.index[i]
        stop = start + self.context
        return (torch.from_numpy(self.signals[night][start:stop]),
                torch.from_numpy(self.stages[night][start:stop]))


class EpochEncoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem = nn.Conv1d(2, width, 50, stride=6, padding=22)
        self.mid = nn.Conv1d(width, 2 * width, 8, padding=4)
        self.top = nn.Conv1d(2 * width, 2 * width, 8, padding=4)
        self.norms = nn.ModuleList([nn.GroupNorm(8, c) for c in (width, 2 * width, 2 * width)])
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        x = F.max_pool1d(F.relu(self.norms[0](self.stem(x))), 2)
        x = F.max_pool1d(F.relu(self.norms[1](self.mid(x))), 2)
        x = F.max_pool1d(F.relu(self.norms[2](self.top(x))), 4)
        return self.drop(x.mean(-1))


class SleepStager(nn.Module):
    def __init__(self, width=32, hidden=96):
        super().__init__()
        self.encoder = EpochEncoder(width)
        self.context = nn.GRU(2 * width, hidden, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, len(STAGES))

    def forward(self, x):
        b, s = x.shape[:2]
        z = self.encoder(x.flatten(0, 1)).view(b, s, -1)
        z, _ = self.context(z)
        return self.head(z)


class ActivationMonitor:
    """Collects convolution responses and reports how they are distributed."""

    def __init__(self, model):
        self.layers = {n: m for n, m in model.named_modules() if isinstance(m, nn.Conv1d)}
        self.records = collections.defaultdict(list)

    def _recorder(self, name):
        def hook(module, inputs, output):
            self.records[name].append(output.detach()[:, :, ::2].clone())
        return hook

    def attach(self):
        for name, layer in self.layers.items():
            layer.register_forward_hook(self._recorder(name))

    def report(self):
        parts = []
        for name, chunks in self.records.items():
            a = torch.cat(chunks)
            silent = (a <= 0).all(dim=2).float().mean().item()
            parts.append(f"{name.split('.')[-1]} rms {a.square().mean().sqrt().item():.3f} silent {silent:.3f}")
        self.records.clear()
        return " | ".join(parts)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.model = SleepStager()
        self.data = NightRecordings(6, 60, args.context, seed=args.seed)
        g = torch.Generator().manual_seed(args.seed)
        self.loader = DataLoader(self.data, batch_size=args.batch_size, shuffle=True,
                                 drop_last=True, generator=g)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr, weight_decay=1e-2)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=args.lr, total_steps=args.steps + 1, pct_start=0.2)
        self.monitor = ActivationMonitor(self.model)

    def batches(self):
        while True:
            yield from self.loader

    def fit(self):
        began = time.time()
        self.model.train()
        for step, (x, y) in enumerate(self.batches(), start=1):
            inspect = step % self.args.log_every == 0
            if inspect:
                self.monitor.attach()
            logits = self.model(x)
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), label_smoothing=0.05)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
            self.optimizer.step()
            self.schedule.step()
            if inspect:
                acc = (logits.argmax(-1) == y).float().mean().item()
                print(f"{step:4d} loss {loss.item():.4f} acc {acc:.3f} [{time.time() - began:.1f}s] "
                      f"{self.monitor.report()}", flush=True)
            if step >= self.args.steps:
                return


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch-size", type=int, default=12)
    p.add_argument("--context", type=int, default=5)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--log-every", type=int, default=5)
    p.add_argument("--seed", type=int, default=11)
    return p.parse_args()


if __name__ == "__main__":
    args = parse()
    torch.manual_seed(args.seed)
    Trainer(args).fit()
