# Beat classification on long Holter recordings, class-balanced beat sampling.
import argparse
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

CLASSES = ("N", "S", "V", "F", "Q")
PRIOR = np.array([0.90, 0.03, 0.05, 0.01, 0.01])


class HolterArchive:
    """Several day-long single-lead recordings kept as int16 with beat annotations."""

    def __init__(self, recordings=6, beats_per_recording=30_000, spacing=150, seed=0):
        rng = np.random.default_rng(seed)
        t = np.linspace(-0.5, 0.5, spacing, dtype=np.float32)
        shapes = []
        for c in range(len(CLASSES)):
            width = 0.02 + 0.018 * c
            qrs = np.exp(-(t / width) ** 2) - 0.25 * np.exp(-((t - 2 * width) / width) ** 2)
            twave = (0.25 - 0.08 * c) * np.exp(-((t - 0.28) / 0.07) ** 2)
            shapes.append(1000 * (qrs + twave))
        shapes = np.stack(shapes).astype(np.int16)
        self.signals, rec_id, position, label = [], [], [], []
        hum = (40 * np.sin(np.arange(spacing * 400) * 0.013)).astype(np.int16)
        for r in range(recordings):
            lab = rng.choice(len(CLASSES), size=beats_per_recording, p=PRIOR)
            sig = shapes[lab].reshape(-1)
            sig += np.resize(np.roll(hum, 991 * r), sig.shape[0])
            self.signals.append(sig)
            rec_id.append(np.full(beats_per_recording, r, np.int32))
            position.append(np.arange(beats_per_recording, dtype=np.int64) * spacing + spacing // 2)
            label.append(lab)
        self.rec_id = np.concatenate(rec_id)
        self.position = np.concatenate(position)
        self.label = np.concatenate(label)

    def window(self, beat, half):
        sig = self.signals[self.rec_id[beat]]
        lo, hi = self.position[beat] - half, self.position[beat] + half
        seg = sig[max(lo, 0):min(hi, sig.shape[0])].astype(np.float32)
        return np.pad(seg, (max(0, -lo), max(0, hi - sig.shape[0])))


class BeatSource:
    def __init__(self, archive, half=256, smoothing=0.5, seed=1):
        self.archive, self.half = archive, half
        self.rng = np.random.default_rng(seed)
        counts = np.bincount(archive.label, minlength=len(CLASSES)).astype(np.float64)
        per_class = (counts.sum() / counts) ** smoothing
        w = per_class[archive.label]
        self.prob = w / w.sum()

    def augment(self, x):
        x = x * self.rng.uniform(0.8, 1.25)
        drift = self.rng.uniform(0, 120) * np.sin(
            np.linspace(0, self.rng.uniform(1, 6), x.shape[0]) + self.rng.uniform(0, 6.28))
        x = x + drift + self.rng.normal(0, 25, x.shape[0])
        return np.roll(x, self.rng.integers(-12, 13))

    def example(self):
        beat = self.rng.choice(self.prob.shape[0], p=self.prob)
        x = self.augment(self.archive.window(beat, self.half))
        x = (x - x.mean()) / (x.std() + 1e-3)
        return x.astype(np.float32), int(self.archive.label[beat])

    def batches(self, size):
        while True:
            xs, ys = zip(*(self.example() for _ in range(size)))
            yield torch.from_numpy(np.stack(xs)).unsqueeze(1), torch.tensor(ys)


class SqueezeExcite(nn.Module):
    def __init__(self, ch, r=4):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(ch, ch // r), nn.ReLU(), nn.Linear(ch // r, ch), nn.Sigmoid())

    def forward(self, x):
        return x * self.net(x.mean(-1)).unsqueeze(-1)


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(cin, cout, 7, stride, 3, bias=False), nn.BatchNorm1d(cout), nn.ReLU(),
            nn.Dropout(0.1), nn.Conv1d(cout, cout, 7, 1, 3, bias=False), nn.BatchNorm1d(cout))
        self.se = SqueezeExcite(cout)
        self.skip = nn.Sequential()
        if stride != 1 or cin != cout:
            self.skip = nn.Sequential(nn.Conv1d(cin, cout, 1, stride, bias=False), nn.BatchNorm1d(cout))

    def forward(self, x):
        return F.relu(self.se(self.body(x)) + self.skip(x))


def build_model():
    return nn.Sequential(
        nn.Conv1d(1, 32, 15, 2, 7, bias=False), nn.BatchNorm1d(32), nn.ReLU(),
        Block(32, 32, 1), Block(32, 48, 2), Block(48, 64, 2), Block(64, 96, 2),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(96, len(CLASSES)))


def focal(logits, target, gamma=1.5):
    logp = F.log_softmax(logits, 1)
    picked = logp.gather(1, target[:, None]).squeeze(1)
    return (-(1 - picked.exp()) ** gamma * picked).mean()


def train(cfg):
    torch.manual_seed(cfg.seed)
    source = BeatSource(HolterArchive(seed=cfg.seed), seed=cfg.seed + 1)
    model = build_model()
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=1e-2, fused=True)
    warm = 10
    lr_at = lambda s: min(1.0, (s + 1) / warm) * (0.5 + 0.5 * math.cos(math.pi * s / max(1, cfg.steps)))
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lr_at)
    confusion = torch.zeros(len(CLASSES), len(CLASSES), dtype=torch.long)
    stream = source.batches(cfg.batch)
    for step in range(cfg.steps):
        x, y = next(stream)
        logits = model(x)
        loss = focal(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        confusion.index_put_((y, logits.detach().argmax(1)), torch.ones_like(y), accumulate=True)
        if (step + 1) % cfg.print_every == 0:
            recall = confusion.diag().float() / confusion.sum(1).clamp(min=1)
            print(f"[{step + 1:4d}] focal={loss.item():.5f} "
                  + " ".join(f"{c}:{r:.2f}" for c, r in zip(CLASSES, recall.tolist())), flush=True)
            confusion.zero_()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=24)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--print-every", type=int, default=10)
    train(p.parse_args())
