"""Keyword spotting from raw waveforms with an in-graph log-mel front end."""
import argparse
import math

import torch
from torch import nn
import torch.nn.functional as F

SR, N_FFT, HOP, N_MELS = 8000, 768, 384, 40


def hz_to_mel(f):
    return 2595.0 * math.log10(1.0 + f / 700.0)


def mel_bank():
    pts = torch.linspace(hz_to_mel(40.0), hz_to_mel(SR / 2), N_MELS + 2)
    hz = 700.0 * (10 ** (pts / 2595.0) - 1.0)
    bins = torch.linspace(0, SR / 2, N_FFT // 2 + 1)
    up = (bins[None] - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
    down = (hz[2:, None] - bins[None]) / (hz[2:] - hz[1:-1])[:, None]
    return torch.minimum(up, down).clamp(min=0)


def dft_basis():
    k = torch.arange(N_FFT // 2 + 1).float()[:, None]
    n = torch.arange(N_FFT).float()[None]
    ang = 2 * math.pi * k * n / N_FFT
    win = torch.hann_window(N_FFT)
    return (ang.cos() * win).t().contiguous(), (ang.sin() * win).t().contiguous()


def log_mel(wave, tables=None):
    if tables is None:
        (cos, sin), bank = dft_basis(), mel_bank()
    else:
        (cos, sin), bank = tables
    frames = wave.unfold(1, N_FFT, HOP)
    power = (frames @ cos).square() + (frames @ sin).square()
    return torch.log(power @ bank.t() + 1e-5)


class Spotter(nn.Module):
    def __init__(self, n_words=12):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(N_MELS, 64, 5, padding=2), nn.BatchNorm1d(64), nn.ReLU(),
            nn.Conv1d(64, 64, 5, stride=2, padding=2), nn.BatchNorm1d(64), nn.ReLU(),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, n_words),
        )

    def forward(self, mel):
        return self.net(mel.transpose(1, 2))


def synth(n, gen):
    y = torch.randint(0, 12, (n,), generator=gen)
    t = torch.arange(SR // 2).float() / SR
    f0 = 200 + 120 * y.float()[:, None]
    return torch.sin(2 * math.pi * f0 * t) + 0.3 * torch.randn(n, SR // 2, generator=gen), y


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(90)
    waves, words = synth(512, gen)
    model = Spotter()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    tables = (dft_basis(), mel_bank()) if args.fixed else None
    for step in range(args.steps):
        idx = torch.randint(0, 512, (24,), generator=gen)
        wave = waves[idx] * torch.empty(24, 1).uniform_(0.5, 1.5) + 0.05 * torch.randn(24, SR // 2)
        loss = F.cross_entropy(model(log_mel(wave, tables)), words[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0:
            print(f"{step} {loss.item():.5f}")
