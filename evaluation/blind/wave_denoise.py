"""Waveform speech denoiser, trained on a synthetic voiced-speech corpus at 8 kHz."""
import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

SAMPLE_RATE = 8000
CLIP = 6144


def make_corpus(n_clips, rng):
    t = np.arange(CLIP, dtype=np.float32) / SAMPLE_RATE
    clean = np.zeros((n_clips, CLIP), dtype=np.float32)
    for i in range(n_clips):
        f0 = rng.uniform(90, 240)
        for k in range(1, 8):
            clean[i] += np.sin(2 * np.pi * f0 * k * t + rng.uniform(0, 6.28)) / k
        clean[i] *= 0.5 + 0.5 * np.sin(2 * np.pi * rng.uniform(2, 5) * t)
    clean += 0.01 * rng.standard_normal(clean.shape).astype(np.float32)
    clean /= np.abs(clean).max(axis=1, keepdims=True)
    noise = rng.standard_normal(clean.shape).astype(np.float32)
    noise *= rng.uniform(0.05, 0.25, size=(n_clips, 1)).astype(np.float32)
    return torch.from_numpy(clean), torch.from_numpy(clean + noise)


class DilatedBlock(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.norm = nn.GroupNorm(1, width)
        self.conv = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)

    def forward(self, x):
        return x + self.mix(F.gelu(self.conv(self.norm(x))))


class Denoiser(nn.Module):
    def __init__(self, width=24, depth=3):
        super().__init__()
        self.analysis = nn.Conv1d(1, width, 16, stride=8, padding=4)
        self.blocks = nn.Sequential(*[DilatedBlock(width, 2 ** d) for d in range(depth)])
        self.mask = nn.Conv1d(width, width, 1)
        self.synthesis = nn.ConvTranspose1d(width, 1, 16, stride=8, padding=4)

    def forward(self, noisy):
        feats = self.analysis(noisy.unsqueeze(1))
        gate = torch.sigmoid(self.mask(self.blocks(feats)))
        return self.synthesis(feats * gate).squeeze(1)


class SpectralLoss(nn.Module):
    """Spectral convergence plus compressed-magnitude distance at several resolutions."""

    def __init__(self, sizes, fixed):
        super().__init__()
        self.sizes = sizes
        for n_fft in sizes:
            hann = torch.from_numpy(np.hanning(n_fft + 1)[:-1])
            if fixed:
                hann = hann.float()
            self.register_buffer(f"window_{n_fft}", hann, persistent=False)

    def magnitude(self, wave, n_fft):
        window = getattr(self, f"window_{n_fft}")
        spec = torch.stft(wave, n_fft, hop_length=n_fft // 4, window=window, return_complex=True)
        return (spec.real.square() + spec.imag.square()).clamp_min(1e-5).sqrt()

    def forward(self, estimate, clean):
        total = 0.0
        for n_fft in self.sizes:
            est = self.magnitude(estimate, n_fft)
            with torch.no_grad():
                ref = self.magnitude(clean, n_fft)
            total = total + (ref - est).norm() / ref.norm() + F.mse_loss(est.log1p(), ref.log1p())
        return total / len(self.sizes)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(3)
    clean, noisy = make_corpus(128, np.random.default_rng(3))

    model = Denoiser()
    criterion = SpectralLoss((256, 512, 1024, 2048), args.fixed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    elapsed = 0.0
    for step in range(args.steps):
        begin = time.perf_counter()
        pick = torch.randint(0, clean.shape[0], (4,))
        target = clean[pick]
        estimate = model(noisy[pick])
        loss = F.l1_loss(estimate, target) + 0.5 * criterion(estimate, target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if step >= 10:
            elapsed += time.perf_counter() - begin
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.5f}")
    print(f"final loss {loss.item():.5f}")
    print(f"step_ms={1000 * elapsed / max(1, args.steps - 10):.3f}")


if __name__ == "__main__":
    main()
