"""Keyword spotting with simulated far-field (room impulse response) augmentation."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SR = 16000


class Keywords(Dataset):
    """One-second utterances built from formant-like tone sequences."""

    def __init__(self, n, n_words, seed):
        g = np.random.default_rng(seed)
        self.wave = np.empty((n, SR), np.float32)
        self.label = g.integers(0, n_words, n)
        t = np.arange(SR // 4) / SR
        words = g.uniform(200, 3000, (n_words, 4))
        for i, w in enumerate(self.label):
            shift = g.uniform(0.95, 1.05)
            parts = [np.sin(2 * np.pi * f * shift * t + g.uniform(0, 6)) * np.hanning(t.size) for f in words[w]]
            self.wave[i] = np.concatenate(parts)
        self.wave += g.normal(0, 0.02, self.wave.shape).astype(np.float32)

    def __len__(self):
        return len(self.wave)

    def __getitem__(self, i):
        return torch.from_numpy(self.wave[i]), int(self.label[i])


class RoomSimulator:
    """Random exponentially decaying responses; a new room for each utterance."""

    def __init__(self, rt60=(0.2, 0.6), length=0.3, seed=0):
        self.n = int(length * SR)
        self.rt60 = rt60
        self.gen = torch.Generator().manual_seed(seed)
        self.t = torch.arange(self.n) / SR

    def responses(self, b):
        lo, hi = self.rt60
        rt = lo + (hi - lo) * torch.rand(b, 1, generator=self.gen)
        h = torch.randn(b, self.n, generator=self.gen) * torch.exp(-6.9 * self.t / rt)
        h[:, 0] = 8.0 * torch.rand(b, generator=self.gen) + 4.0
        return h / h.norm(dim=1, keepdim=True)

    def __call__(self, wave):
        h = self.responses(len(wave))
        size = wave.shape[1] + self.n - 1
        wet = torch.fft.irfft(torch.fft.rfft(wave, n=size) * torch.fft.rfft(h, n=size), n=size)
        return wet[:, : wave.shape[1]]


class FarFieldCollate:
    def __init__(self, room, snr=(5.0, 25.0), seed=1):
        self.room, self.snr = room, snr
        self.gen = torch.Generator().manual_seed(seed)

    def __call__(self, items):
        wave = torch.stack([w for w, _ in items])
        wave = self.room(wave)
        snr = self.snr[0] + (self.snr[1] - self.snr[0]) * torch.rand(len(wave), 1, generator=self.gen)
        noise = torch.randn(wave.shape, generator=self.gen)
        gain = wave.norm(dim=1, keepdim=True) / noise.norm(dim=1, keepdim=True) * 10 ** (-snr / 20)
        return wave + gain * noise, torch.tensor([y for _, y in items])


class LogBands(nn.Module):
    def __init__(self, n_fft=512, hop=160, bands=40):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        edges = torch.linspace(0, 2595 * np.log10(1 + SR / 2 / 700), bands + 2)
        hz = 700 * (10 ** (edges / 2595) - 1)
        f = torch.linspace(0, SR / 2, n_fft // 2 + 1)
        up = (f - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
        down = (hz[2:, None] - f) / (hz[2:] - hz[1:-1])[:, None]
        self.register_buffer("bank", torch.minimum(up, down).clamp(min=0))
        self.register_buffer("window", torch.hann_window(n_fft))

    def forward(self, wave):
        s = torch.stft(wave, self.n_fft, self.hop, window=self.window, return_complex=True)
        return torch.log(self.bank @ (s.real ** 2 + s.imag ** 2) + 1e-5)


class TCResNet(nn.Module):
    def __init__(self, n_words, w=24):
        super().__init__()
        self.front = LogBands()
        self.stem = nn.Conv1d(40, w, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList([nn.ModuleDict({
            "a": nn.Conv1d(i, o, 9, stride=2, padding=4, bias=False), "na": nn.BatchNorm1d(o),
            "b": nn.Conv1d(o, o, 9, padding=4, bias=False), "nb": nn.BatchNorm1d(o),
            "s": nn.Conv1d(i, o, 1, stride=2)}) for i, o in ((w, 2 * w), (2 * w, 3 * w))])
        self.fc = nn.Linear(3 * w, n_words)

    def forward(self, wave):
        h = self.stem(self.front(wave))
        for m in self.blocks:
            r = m["nb"](m["b"](F.relu(m["na"](m["a"](h)))))
            h = F.relu(r + m["s"](h))
        return self.fc(F.dropout(h.mean(2), 0.1, self.training))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--words", type=int, default=12)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    collate = FarFieldCollate(RoomSimulator(seed=args.seed))
    loader = DataLoader(Keywords(800, args.words, args.seed), args.batch, shuffle=True, drop_last=True, collate_fn=collate)
    model = TCResNet(args.words)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    step, done = 0, False
    while not done:
        for wave, word in loader:
            logits = model(wave)
            loss = F.cross_entropy(logits, word, label_smoothing=0.05)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 10 == 0:
                acc = (logits.argmax(1) == word).float().mean()
                print(f"{step:4d} loss {loss.item():.4f} acc {acc.item():.2f}")
            done = step >= args.steps
            if done:
                break


if __name__ == "__main__":
    main()
