"""Mel-conditioned waveform generator trained with multi-resolution mel + waveform losses."""
import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SR = 16000
HOP = 128
MEL_RES = ((512, 128, 40), (1024, 256, 64), (2048, 512, 80))

mel_basis = {}
hann_window = {}


def hz_to_mel(f):
    return 2595.0 * np.log10(1.0 + np.asarray(f, dtype=np.float64) / 700.0)


def mel_to_hz(m):
    return 700.0 * (10.0 ** (np.asarray(m, dtype=np.float64) / 2595.0) - 1.0)


def mel_filters(sr, n_fft, n_mels, fmin, fmax):
    freqs = np.linspace(0, sr / 2, 1 + n_fft // 2)
    centers = mel_to_hz(np.linspace(hz_to_mel(fmin), hz_to_mel(fmax), n_mels + 2))
    widths = np.diff(centers)
    ramps = np.subtract.outer(centers, freqs)
    weights = np.zeros((n_mels, len(freqs)), dtype=np.float32)
    for i in range(n_mels):
        lower = -ramps[i] / widths[i]
        upper = ramps[i + 2] / widths[i + 1]
        weights[i] = np.maximum(0, np.minimum(lower, upper))
    weights *= (2.0 / (centers[2:n_mels + 2] - centers[:n_mels]))[:, None]
    return weights


def mel_spectrogram(y, n_fft, hop, n_mels, fmin=0.0, fmax=8000.0):
    global mel_basis, hann_window
    if (n_fft, n_mels, fmax) not in mel_basis:
        mel = mel_filters(SR, n_fft, n_mels, fmin, fmax)
        mel_basis[f"{n_fft}_{n_mels}_{fmax}_{y.device}"] = torch.from_numpy(mel).to(y.device)
        hann_window[f"{n_fft}_{y.device}"] = torch.hann_window(n_fft).to(y.device)
    y = F.pad(y.unsqueeze(1), ((n_fft - hop) // 2, (n_fft - hop) // 2), mode="reflect").squeeze(1)
    spec = torch.stft(y, n_fft, hop_length=hop, win_length=n_fft, window=hann_window[f"{n_fft}_{y.device}"],
                      center=False, return_complex=True)
    mag = torch.sqrt(spec.real.pow(2) + spec.imag.pow(2) + 1e-9)
    mel = torch.matmul(mel_basis[f"{n_fft}_{n_mels}_{fmax}_{y.device}"], mag)
    return torch.log(torch.clamp(mel, min=1e-5))


class ToneDataset(Dataset):
    """Gliding harmonic tones with a noise floor; random frame-aligned segments."""

    def __init__(self, n, seg, seed, utt_len=16384):
        self.frames = seg // HOP
        rng = np.random.default_rng(seed)
        t = np.arange(utt_len) / SR
        self.wav = np.empty((n, utt_len), dtype=np.float32)
        for i in range(n):
            f0 = rng.uniform(90, 400) * (1 + 0.2 * np.sin(2 * np.pi * rng.uniform(1, 5) * t))
            phase = 2 * np.pi * np.cumsum(f0) / SR
            sig = sum(rng.uniform(0.1, 1.0) / k * np.sin(k * phase) for k in range(1, 7))
            sig = sig + 0.02 * rng.normal(size=utt_len)
            self.wav[i] = 0.9 * sig / np.abs(sig).max()
        with torch.no_grad():
            self.cond = mel_spectrogram(torch.from_numpy(self.wav), 1024, HOP, 40)

    def __len__(self):
        return len(self.wav)

    def __getitem__(self, i):
        start = int(torch.randint(0, self.cond.shape[2] - self.frames + 1, ()))
        wav = self.wav[i, start * HOP:(start + self.frames) * HOP]
        return self.cond[i, :, start:start + self.frames], torch.from_numpy(wav)


class DilatedRes(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(ch, ch, 3, padding=d, dilation=d) for d in (1, 3, 9))

    def forward(self, x):
        for conv in self.convs:
            x = x + conv(F.leaky_relu(x, 0.1))
        return x


class Generator(nn.Module):
    def __init__(self, n_mels=40, width=96, rates=(8, 4, 4)):
        super().__init__()
        self.pre = nn.Conv1d(n_mels, width, 7, padding=3)
        self.ups, self.res = nn.ModuleList(), nn.ModuleList()
        for r in rates:
            self.ups.append(nn.ConvTranspose1d(width, width // 2, 2 * r, stride=r, padding=r // 2))
            width //= 2
            self.res.append(DilatedRes(width))
        self.post = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, mel):
        x = self.pre(mel)
        for up, res in zip(self.ups, self.res):
            x = res(up(F.leaky_relu(x, 0.1)))
        return torch.tanh(self.post(F.leaky_relu(x, 0.1))).squeeze(1)


def mel_loss(y_hat, y):
    total = 0.0
    for n_fft, hop, n_mels in MEL_RES:
        total = total + F.l1_loss(mel_spectrogram(y_hat, n_fft, hop, n_mels), mel_spectrogram(y, n_fft, hop, n_mels))
    return total / len(MEL_RES)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--segment", type=int, default=4096)
    parser.add_argument("--lambda-mel", type=float, default=1.0)
    args = parser.parse_args()

    torch.manual_seed(5)
    loader = DataLoader(ToneDataset(200, args.segment, seed=5), batch_size=args.batch_size, shuffle=True, drop_last=True)
    gen = Generator()
    optim = torch.optim.AdamW(gen.parameters(), lr=4e-4, betas=(0.8, 0.99), fused=True)
    sched = torch.optim.lr_scheduler.ExponentialLR(optim, gamma=0.999)
    steps, t0 = 0, time.time()
    while steps < args.steps:
        for mel, wav in loader:
            y_hat = gen(mel)[:, :wav.shape[1]]
            l_mel = mel_loss(y_hat, wav)
            l_wav = F.l1_loss(y_hat, wav)
            loss = args.lambda_mel * l_mel + l_wav
            optim.zero_grad(set_to_none=True)
            loss.backward()
            optim.step()
            steps += 1
            if steps % 25 == 0:
                sched.step()
                print(f"steps {steps:5d} mel {l_mel.item():.3f} wav {l_wav.item():.4f} "
                      f"{(time.time() - t0) / steps:.3f} s/step", flush=True)
            if steps >= args.steps:
                break


if __name__ == "__main__":
    main()
