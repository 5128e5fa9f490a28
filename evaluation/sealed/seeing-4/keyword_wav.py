"""Spoken keyword spotting from 16-bit wave files (log-mel front end, depthwise-separable CNN)."""
import argparse
import math
import os
import random
import struct
import tempfile
import wave

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

RATE = 16000
WORDS = ["yes", "no", "up", "down", "left", "right", "stop", "go"]


def speak(word, rng):
    t = np.arange(RATE) / RATE
    k = WORDS.index(word)
    f = 300 + 130 * k + rng.normal(0, 15) + (200 * (k % 3) - 200) * t
    env = np.exp(-((t - rng.uniform(0.4, 0.6)) / 0.18) ** 2)
    x = env * (np.sin(2 * np.pi * np.cumsum(f) / RATE) + 0.5 * np.sin(2.7 * np.pi * np.cumsum(f) / RATE))
    return np.clip(9000 * x + rng.normal(0, 500, RATE), -32768, 32767).astype("<i2")


def prepare(root, per_word):
    if os.path.exists(os.path.join(root, "done")):
        return
    os.makedirs(root, exist_ok=True)
    rng = np.random.default_rng(12)
    for word in WORDS:
        for i in range(per_word):
            with wave.open(os.path.join(root, f"{word}_{i:03d}.wav"), "wb") as w:
                w.setnchannels(1)
                w.setsampwidth(2)
                w.setframerate(RATE)
                w.writeframes(speak(word, rng).tobytes())
    open(os.path.join(root, "done"), "w").close()


def load_wav(path):
    with wave.open(path, "rb") as w:
        if w.getframerate() != RATE or w.getsampwidth() != 2:
            raise ValueError(f"unexpected format in {path}")
        count = w.getnframes() * w.getnchannels()
        samples = struct.unpack(f"<{count}h", w.readframes(w.getnframes()))
    return torch.tensor(samples, dtype=torch.float32) / 32768.0


class Keywords(Dataset):
    def __init__(self, root, shift=1600):
        self.files = sorted(f for f in os.listdir(root) if f.endswith(".wav"))
        self.root, self.shift = root, shift

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        name = self.files[i]
        audio = load_wav(os.path.join(self.root, name))
        audio = torch.roll(audio, random.randint(-self.shift, self.shift))
        return audio * random.uniform(0.7, 1.3), WORDS.index(name.split("_")[0])


def mel_filters(n_mels, n_fft):
    def mel(f):
        return 2595 * math.log10(1 + f / 700)
    edges = torch.linspace(mel(40), mel(RATE / 2 - 100), n_mels + 2)
    hz = 700 * (10 ** (edges / 2595) - 1)
    bins = torch.linspace(0, RATE / 2, n_fft // 2 + 1)
    up = (bins - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
    down = (hz[2:, None] - bins) / (hz[2:] - hz[1:-1])[:, None]
    return torch.minimum(up, down).clamp(min=0)


class LogMel(nn.Module):
    def __init__(self, n_mels=40, n_fft=512, hop=256):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft), persistent=False)
        self.register_buffer("filters", mel_filters(n_mels, n_fft), persistent=False)

    @torch.no_grad()
    def forward(self, audio):
        spec = torch.stft(audio, self.n_fft, self.hop, window=self.window, return_complex=True)
        power = spec.real.square() + spec.imag.square()
        return (self.filters @ power + 1e-6).log().unsqueeze(1)


class Separable(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.dw = nn.Conv2d(c, c, 3, padding=1, groups=c, bias=False)
        self.pw = nn.Conv2d(c, c, 1, bias=False)
        self.bn = nn.BatchNorm2d(c)

    def forward(self, x):
        return F.relu(self.bn(self.pw(self.dw(x)))) + x


class KeywordNet(nn.Module):
    def __init__(self, c=40, blocks=3):
        super().__init__()
        self.front = LogMel()
        self.stem = nn.Sequential(nn.Conv2d(1, c, (8, 4), stride=(2, 2), padding=(3, 1), bias=False), nn.BatchNorm2d(c), nn.ReLU())
        self.blocks = nn.Sequential(*[Separable(c) for _ in range(blocks)])
        self.head = nn.Linear(c, len(WORDS))

    def forward(self, audio):
        x = self.blocks(self.stem(self.front(audio)))
        return self.head(x.mean((2, 3)))


def train(args):
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    prepare(args.root, 40)
    loader = DataLoader(Keywords(args.root), batch_size=args.batch, shuffle=True, drop_last=True)
    net = KeywordNet()
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    step = 0
    while step < args.steps:
        for audio, target in loader:
            loss = F.cross_entropy(net(audio), target)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 10 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--root", default=os.path.join(tempfile.gettempdir(), "keywords16k"))
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=4)
    train(ap.parse_args())
