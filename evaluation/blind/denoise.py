"""Waveform speech enhancement: small strided conv net + multi-resolution STFT loss."""
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

SAMPLE_RATE = 8000


def speech_like(batch, samples, g):
    """Harmonic stacks with a wandering pitch and syllable-rate envelopes."""
    t = torch.arange(samples) / SAMPLE_RATE
    f0 = 90 + 130 * torch.rand(batch, 1, generator=g)
    vibrato = 1 + 0.03 * torch.sin(2 * np.pi * 4 * t + 6 * torch.rand(batch, 1, generator=g))
    phase = torch.cumsum(2 * np.pi * f0 * vibrato / SAMPLE_RATE, dim=1)
    wave = torch.zeros(batch, samples)
    for k in range(1, 7):
        amp = torch.rand(batch, 1, generator=g) / k
        wave += amp * torch.sin(k * phase)
    env = torch.sin(2 * np.pi * 2.5 * t + 6 * torch.rand(batch, 1, generator=g)).clamp(min=0)
    return 0.3 * wave * env


def pair_generator(batch, samples, seed, pool=192):
    """Endless (noisy, clean) crops from a pre-rendered pool of utterances."""
    g = torch.Generator().manual_seed(seed)
    bank = speech_like(pool, samples * 2, g)
    while True:
        rows = torch.randint(0, pool, (batch,), generator=g)
        start = int(torch.randint(0, samples, (1,), generator=g))
        clean = bank[rows, start:start + samples]
        level = 0.02 + 0.12 * torch.rand(batch, 1, generator=g)
        yield clean + level * torch.randn(batch, samples, generator=g), clean


class Enhancer(nn.Module):
    def __init__(self, width=48, kernel=16, stride=8):
        super().__init__()
        self.enc = nn.Conv1d(1, width, kernel, stride=stride, padding=kernel // 2 - stride // 2)
        self.blocks = nn.ModuleList(
            nn.Conv1d(width, width, 3, padding=d, dilation=d) for d in (1, 2, 4))
        self.mask = nn.Conv1d(width, width, 1)
        self.dec = nn.ConvTranspose1d(width, 1, kernel, stride=stride, padding=kernel // 2 - stride // 2)

    def forward(self, x):
        e = F.relu(self.enc(x.unsqueeze(1)))
        h = e
        for conv in self.blocks:
            h = h + F.leaky_relu(conv(h), 0.1)
        return self.dec(e * torch.sigmoid(self.mask(h))).squeeze(1)


class SpectralLoss(nn.Module):
    """Spectral convergence + log magnitude distance at one resolution."""

    def __init__(self, n_fft, hop, eps=1e-4):
        super().__init__()
        self.n_fft, self.hop, self.eps = n_fft, hop, eps
        window = np.hanning(n_fft + 1)[:-1]
        window = window / np.sqrt(np.sum(window ** 2))
        self.register_buffer("window", torch.from_numpy(window))

    def magnitude(self, x):
        frames = x.unfold(-1, self.n_fft, self.hop)
        spec = torch.fft.rfft(frames * self.window, dim=-1)
        power = spec.real.square() + spec.imag.square()
        return torch.sqrt(power + self.eps ** 2)

    def forward(self, pred, clean):
        p = self.magnitude(pred)
        c = self.magnitude(clean)
        convergence = torch.linalg.vector_norm(p - c) / torch.linalg.vector_norm(c)
        return convergence + F.l1_loss(torch.log(p), torch.log(c))


class MultiResolutionLoss(nn.Module):
    def __init__(self, resolutions=((512, 128), (256, 64), (128, 32))):
        super().__init__()
        self.terms = nn.ModuleList(SpectralLoss(n, h) for n, h in resolutions)

    def forward(self, pred, clean):
        return sum(term(pred, clean) for term in self.terms) / len(self.terms)


def si_snr(pred, clean):
    scale = (pred * clean).sum(-1, keepdim=True) / clean.square().sum(-1, keepdim=True).clamp_min(1e-8)
    target = scale * clean
    noise = pred - target
    return 10 * torch.log10(target.square().sum(-1) / noise.square().sum(-1).clamp_min(1e-8)).mean()


def main(steps=150, batch=8, samples=8192, lr=1e-3, seed=17):
    torch.manual_seed(seed)
    model = Enhancer()
    spectral = MultiResolutionLoss()
    opt = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
    data = pair_generator(batch, samples, seed)
    t0 = time.time()
    for step in range(1, steps + 1):
        noisy, clean = next(data)
        pred = model(noisy)
        loss = F.l1_loss(pred, clean) + 0.1 * spectral(pred, clean)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 3.0)
        opt.step()
        if step % 25 == 0:
            with torch.no_grad():
                snr = si_snr(pred, clean).item()
            print(f"step {step:4d} loss {loss.item():.4f} si-snr {snr:6.2f} dB  {time.time() - t0:.1f}s")


if __name__ == "__main__":
    main()
