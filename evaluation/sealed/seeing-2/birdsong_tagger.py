import argparse
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Recordings:
    """A few long field recordings with a per-frame species track."""

    def __init__(self, n_rec, seconds, sr, species, hop, seed):
        rng = np.random.default_rng(seed)
        n = seconds * sr
        self.audio = (rng.standard_normal((n_rec, n), dtype=np.float32) * 0.1).astype(np.float16)
        frames = n // hop
        self.track = np.zeros((n_rec, frames), np.int16)
        freq = 2 * math.pi * np.linspace(500, 3500, species) / sr
        for r in range(n_rec):
            pos = 0
            while pos < frames - 200:
                gap, dur = int(rng.integers(50, 600)), int(rng.integers(30, 120))
                s = 1 + min(int(rng.exponential(2.5)), species - 1)
                a, b = pos + gap, min(pos + gap + dur, frames)
                if a < b:
                    self.track[r, a:b] = s
                    t = np.arange((b - a) * hop, dtype=np.float32)
                    self.audio[r, a * hop:b * hop] += (0.5 * np.sin(freq[s - 1] * t * (1 + 1e-5 * t))).astype(np.float16)
                pos = b


class BalancedWindows(Dataset):
    """Windows centred on any frame, drawn so that rare species are seen as often as common ones."""

    def __init__(self, rec, window, hop, species, length, seed):
        self.rec, self.window, self.hop = rec, window, hop
        self.species, self.length = species, length
        frames = rec.track.shape[1]
        margin = window // hop
        r, f = np.meshgrid(np.arange(rec.track.shape[0]), np.arange(margin, frames - margin), indexing="ij")
        self.rows, self.frames = r.ravel(), f.ravel()
        labels = rec.track[self.rows, self.frames]
        counts = np.bincount(labels, minlength=species + 1)
        self.weights = 1.0 / counts[labels]
        self.weights /= self.weights.sum()
        self.rng = np.random.RandomState(seed)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        k = self.rng.choice(len(self.weights), p=self.weights)
        r, f = self.rows[k], self.frames[k]
        start = f * self.hop - self.window // 2
        wav = torch.from_numpy(self.rec.audio[r, start:start + self.window].astype(np.float32))
        span = self.rec.track[r, f - self.window // self.hop // 2:f + self.window // self.hop // 2]
        target = torch.zeros(self.species)
        present = np.unique(span)
        target[torch.from_numpy(present[present > 0].astype(np.int64)) - 1] = 1.0
        return wav, target


def mel_matrix(n_mels, n_fft, sr):
    hz = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + sr / 1400), n_mels + 2) / 2595) - 1)
    bins = np.fft.rfftfreq(n_fft, 1 / sr)[None]
    lo, mid, hi = hz[:-2, None], hz[1:-1, None], hz[2:, None]
    tri = np.minimum((bins - lo) / (mid - lo), (hi - bins) / (hi - mid)).clip(0)
    return torch.from_numpy(tri.astype(np.float32))


class LogMel(nn.Module):
    def __init__(self, sr, n_fft=256, hop=128, n_mels=40):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        self.register_buffer("mel", mel_matrix(n_mels, n_fft, sr))

    @torch.no_grad()
    def forward(self, wav):
        spec = torch.stft(wav, self.n_fft, self.hop, window=self.window, return_complex=True)
        return torch.log(self.mel @ (spec.real ** 2 + spec.imag ** 2) + 1e-5)


class ConvGRUTagger(nn.Module):
    def __init__(self, sr, species, width=48):
        super().__init__()
        self.features = LogMel(sr)
        self.norm = nn.BatchNorm1d(40)
        self.conv = nn.Sequential(
            nn.Conv1d(40, width, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(width, 2 * width, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2))
        self.gru = nn.GRU(2 * width, width, batch_first=True, bidirectional=True)
        self.score = nn.Linear(2 * width, species)
        self.gate = nn.Linear(2 * width, species)

    def forward(self, wav):
        h = self.conv(self.norm(self.features(wav))).transpose(1, 2)
        h, _ = self.gru(h)
        w = self.gate(h).softmax(1)
        return (w * self.score(h)).sum(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--sr", type=int, default=8000)
    ap.add_argument("--seconds", type=int, default=300)
    ap.add_argument("--recordings", type=int, default=10)
    ap.add_argument("--species", type=int, default=10)
    ap.add_argument("--window", type=int, default=16000)
    ap.add_argument("--hop", type=int, default=80)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=33)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    rec = Recordings(a.recordings, a.seconds, a.sr, a.species, a.hop, a.seed)
    data = BalancedWindows(rec, a.window, a.hop, a.species, a.steps * a.batch, a.seed)
    model = ConvGRUTagger(a.sr, a.species)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, a.lr, total_steps=a.steps)
    for step, (wav, target) in enumerate(DataLoader(data, a.batch), 1):
        gain = 10 ** (0.6 * torch.rand(len(wav), 1) - 0.3)
        logits = model(wav * gain)
        loss = F.binary_cross_entropy_with_logits(logits, target)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 3.0)
        opt.step()
        sched.step()
        if step % 10 == 0:
            hit = ((logits > 0) == (target > 0.5)).float().mean().item()
            print(f"step {step:4d} bce {loss.item():.4f} hit {hit:.3f}", flush=True)


if __name__ == "__main__":
    main()
