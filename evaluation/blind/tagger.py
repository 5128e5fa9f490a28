"""Instrument tagging from short log-mel excerpts of studio stems."""
import argparse
import math
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

SR, N_FFT, HOP, N_MELS, FRAMES = 11025, 512, 128, 48, 64
TAGS = 6


def mel_matrix():
    top = 2595 * math.log10(1 + SR / 2 / 700)
    pts = 700 * (10 ** (np.linspace(0, top, N_MELS + 2) / 2595) - 1)
    freqs = np.linspace(0, SR / 2, N_FFT // 2 + 1)
    up = (freqs - pts[:-2, None]) / (pts[1:-1] - pts[:-2])[:, None]
    down = (pts[2:, None] - freqs) / (pts[2:] - pts[1:-1])[:, None]
    return torch.from_numpy(np.maximum(0, np.minimum(up, down)).astype(np.float32))


def record_stem(rng, seconds):
    t = np.arange(int(SR * seconds)) / SR
    present = rng.random(TAGS) < 0.35
    wave = 0.02 * rng.normal(size=t.size)
    for k in np.flatnonzero(present):
        base = 110 * (k + 1) * 2 ** (rng.integers(0, 12) / 12)
        for h in range(1, 4):
            wave += np.sin(2 * np.pi * base * h * t + rng.random() * 6) / (h + k % 2)
    wave = wave / np.abs(wave).max()
    return (wave * 30000).astype(np.int16), present.astype(np.float32)


class StemDataset(Dataset):
    def __init__(self, stems, length, seed, fixed):
        self.stems, self.length, self.fixed = stems, length, fixed
        self.rng = np.random.default_rng(seed)
        self.window = torch.hann_window(N_FFT)
        self.mel = mel_matrix()

    def __len__(self):
        return self.length

    def features(self, wave):
        spec = torch.stft(wave, N_FFT, HOP, window=self.window, center=False, return_complex=True)
        return torch.log(self.mel @ spec.abs().square() + 1e-4)

    def __getitem__(self, index):
        samples, tags = self.stems[index % len(self.stems)]
        gain = float(self.rng.uniform(0.5, 1.0))
        total = 1 + (len(samples) - N_FFT) // HOP
        at = int(self.rng.integers(0, total - FRAMES + 1))
        if self.fixed:
            samples = samples[at * HOP:(at + FRAMES - 1) * HOP + N_FFT]
            at = 0
        wave = torch.from_numpy(samples).float() * (gain / 32768)
        logmel = self.features(wave)[:, at:at + FRAMES]
        return logmel.unsqueeze(0), torch.from_numpy(tags)


def block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout),
                         nn.ReLU(inplace=True), nn.MaxPool2d(2))


class TagNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(1)
        self.body = nn.Sequential(block(1, 8), block(8, 16), block(16, 32))
        self.head = nn.Linear(32, TAGS)

    def forward(self, x):
        return self.head(self.body(self.norm(x)).mean((2, 3)))


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--steps", type=int, default=300)
    cli.add_argument("--fixed", action="store_true")
    cfg = cli.parse_args()
    torch.manual_seed(5)
    rng = np.random.default_rng(5)
    stems = [record_stem(rng, rng.uniform(5.0, 7.0)) for _ in range(160)]
    loader = DataLoader(StemDataset(stems, cfg.steps * 12, 6, cfg.fixed), batch_size=12)
    net = TagNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    criterion = nn.BCEWithLogitsLoss()
    mark = 0.0
    for n, (x, y) in enumerate(loader, start=1):
        loss = criterion(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if n % 50 == 0:
            print("iter", n, "bce", round(loss.item(), 5), flush=True)
        if n == 10:
            mark = time.process_time()
    print(f"step_ms={1000 * (time.process_time() - mark) / (cfg.steps - 10):.3f}")
