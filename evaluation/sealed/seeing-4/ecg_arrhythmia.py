"""Beat-rhythm classification of ten-second windows from two-lead Holter records."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

FS = 250
RHYTHMS = ("sinus", "afib", "bigeminy", "brady")


def simulate_record(rng, minutes):
    """Two leads, 16-bit ADC counts, rhythm changing every thirty seconds or so."""
    n = int(minutes * 60 * FS)
    sig, rhythm = np.zeros((2, n), np.float32), np.zeros(n, np.int64)
    bump = np.exp(-np.linspace(-3, 3, 25) ** 2)
    wave_t = 0.3 * np.exp(-np.linspace(-2, 2, 60) ** 2)
    pos, kind, until, odd = 0, 0, 0, False
    while pos < n - 200:
        if pos >= until:
            kind, until = int(rng.integers(4)), pos + int(rng.uniform(20, 40) * FS)
        rr = {0: rng.normal(0.8, 0.02), 1: rng.uniform(0.35, 1.0), 2: 0.5 if odd else 1.0, 3: rng.normal(1.3, 0.04)}[kind]
        amp = 1.6 if kind == 2 and odd else 1.0
        sig[0, pos:pos + 25] += amp * bump
        sig[1, pos:pos + 25] -= 0.6 * amp * bump
        sig[:, pos + 60:pos + 120] += wave_t
        nxt = pos + max(int(rr * FS), 80)
        rhythm[pos:nxt] = kind
        pos, odd = nxt, not odd
    t = np.arange(n) / FS
    sig += 0.5 * np.sin(2 * np.pi * 0.23 * t + rng.uniform(0, 6)) + 0.1 * np.sin(2 * np.pi * 50 * t)
    sig += rng.normal(0, 0.04, sig.shape)
    return np.round(sig * 1000).astype(np.int16), rhythm


def clean(record):
    """Zero-phase band-pass 0.5-40 Hz and scaling of a raw record by its robust amplitude."""
    x = record.astype(np.float32) / 1000.0
    spec = np.fft.rfft(x, axis=1)
    f = np.fft.rfftfreq(x.shape[1], 1 / FS)
    gain = 1 / np.sqrt(1 + (0.5 / np.maximum(f, 1e-6)) ** 8) / np.sqrt(1 + (f / 40) ** 8)
    x = np.fft.irfft(spec * gain, x.shape[1], axis=1)
    lo, hi = np.percentile(x, (1, 99), axis=1, keepdims=True)
    return (2 * x / (hi - lo)).astype(np.float32)


class HolterWindows(Dataset):
    def __init__(self, records, minutes, seconds=10, per_epoch=1024, seed=0):
        rng = np.random.default_rng(seed)
        self.records, self.rhythms = zip(*[simulate_record(rng, minutes) for _ in range(records)])
        self.length, self.per_epoch = seconds * FS, per_epoch
        self.rng = np.random.default_rng(seed + 1)

    def __len__(self):
        return self.per_epoch

    def __getitem__(self, i):
        k = i % len(self.records)
        lead = clean(self.records[k])
        start = int(self.rng.integers(0, lead.shape[1] - self.length))
        window = lead[:, start:start + self.length]
        label = self.rhythms[k][start + self.length // 2]
        if self.rng.random() < 0.3:
            window = window * self.rng.uniform(0.8, 1.2)
        return torch.as_tensor(window, dtype=torch.float32), int(label)


class SEBlock(nn.Module):
    def __init__(self, c_in, c_out, stride, k=9):
        super().__init__()
        self.conv1 = nn.Conv1d(c_in, c_out, k, stride, k // 2, bias=False)
        self.bn1 = nn.BatchNorm1d(c_out)
        self.conv2 = nn.Conv1d(c_out, c_out, k, 1, k // 2, bias=False)
        self.bn2 = nn.BatchNorm1d(c_out)
        self.gate = nn.Sequential(nn.Linear(c_out, c_out // 4), nn.ReLU(), nn.Linear(c_out // 4, c_out), nn.Sigmoid())
        self.skip = nn.Conv1d(c_in, c_out, 1, stride)

    def forward(self, x):
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(h * self.gate(h.mean(2)).unsqueeze(2) + self.skip(x))


class RhythmNet(nn.Module):
    def __init__(self, base=16):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(2, base, 15, 2, 7, bias=False), nn.BatchNorm1d(base), nn.ReLU(), nn.MaxPool1d(2))
        self.blocks = nn.Sequential(SEBlock(base, 2 * base, 2), SEBlock(2 * base, 3 * base, 2), SEBlock(3 * base, 4 * base, 2))
        self.head = nn.Linear(8 * base, len(RHYTHMS))

    def forward(self, x):
        h = self.blocks(self.stem(x))
        return self.head(torch.cat([h.mean(2), h.amax(2)], 1))


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch-size", type=int, default=24)
    p.add_argument("--records", type=int, default=20)
    p.add_argument("--minutes", type=float, default=1.5)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=8)
    a = p.parse_args(argv)
    torch.manual_seed(a.seed)

    loader = DataLoader(HolterWindows(a.records, a.minutes, seed=a.seed), a.batch_size, shuffle=True, drop_last=True)
    net = RhythmNet()
    opt = torch.optim.AdamW(net.parameters(), lr=a.lr, weight_decay=1e-2)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=a.lr, total_steps=a.steps + 1)
    confusion = torch.zeros(4, 4, dtype=torch.long)
    it = iter(loader)
    for step in range(1, a.steps + 1):
        try:
            x, y = next(it)
        except StopIteration:
            it = iter(loader)
            x, y = next(it)
        logits = net(x)
        loss = F.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        confusion += torch.bincount(y * 4 + logits.argmax(1), minlength=16).view(4, 4)
        if step % 10 == 0:
            recall = confusion.diag() / confusion.sum(1).clamp(min=1)
            print(f"step {step:4d} loss {loss.item():.4f} recall " + " ".join(f"{n}={r:.2f}" for n, r in zip(RHYTHMS, recall.tolist())))
            confusion.zero_()


if __name__ == "__main__":
    main()
