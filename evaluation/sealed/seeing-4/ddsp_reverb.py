"""Harmonic-plus-noise instrument model with a learned room response, fitted by spectral losses."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

RATE = 16000


def make_notes(n, seconds, hop, seed):
    """Monophonic notes with vibrato and decay, played through a fixed exponential room."""
    gen = torch.Generator().manual_seed(seed)
    length = int(seconds * RATE)
    frames = length // hop
    midi = torch.randint(45, 75, (n, 1), generator=gen).float()
    t = torch.arange(length) / RATE
    f0 = 440 * 2 ** ((midi - 69) / 12) * (1 + 0.004 * torch.sin(2 * math.pi * 5 * t))
    loud = torch.exp(-t / (0.2 + torch.rand(n, 1, generator=gen)))
    phase = 2 * math.pi * torch.cumsum(f0 / RATE, 1)
    dry = sum(torch.sin(k * phase) * 0.5 / k ** 1.5 for k in range(1, 9)) * loud
    room = torch.exp(-torch.arange(4096) / 700.0) * torch.randn(4096, generator=gen)
    room[0] = 8.0
    wet = torch.fft.irfft(torch.fft.rfft(dry, 2 * length) * torch.fft.rfft(room, 2 * length))[:, :length]
    wet = 0.5 * wet / wet.abs().amax(1, keepdim=True)
    return wet, f0[:, ::hop][:, :frames], loud[:, ::hop][:, :frames].log().clamp(min=-10)


def upsample(x, length):
    return F.interpolate(x.transpose(1, 2), size=length, mode="linear", align_corners=True).transpose(1, 2)


class Controller(nn.Module):
    def __init__(self, hidden, harmonics, bands):
        super().__init__()
        self.inp = nn.Sequential(nn.Linear(2, hidden), nn.LayerNorm(hidden), nn.LeakyReLU(0.1))
        self.gru = nn.GRU(hidden, hidden, batch_first=True)
        self.amp = nn.Linear(hidden, harmonics + 1)
        self.noise = nn.Linear(hidden, bands)

    def forward(self, f0, loud):
        x = torch.stack([torch.log2(f0 / 440), loud / 5], -1)
        h, _ = self.gru(self.inp(x))
        amp = F.softplus(self.amp(h))
        return amp[..., :1] * torch.softmax(amp[..., 1:], -1), torch.sigmoid(self.noise(h) - 5)


class Room(nn.Module):
    """Trainable impulse response applied in the frequency domain."""

    def __init__(self, seconds=1.0):
        super().__init__()
        self.taps = int(seconds * RATE)
        self.tail = nn.Parameter(1e-3 * torch.randn(self.taps - 1))
        self.decay = nn.Parameter(torch.tensor(4.0))

    def forward(self, audio):
        t = torch.arange(1, self.taps) / RATE
        tail = self.tail * torch.exp(-F.softplus(self.decay) * t)
        response = torch.cat([torch.ones(1), tail])
        n = audio.shape[-1] + self.taps - 1
        spec = torch.fft.rfft(audio, n) * torch.fft.rfft(response, n)
        return torch.fft.irfft(spec, n)[..., : audio.shape[-1]]


class Instrument(nn.Module):
    def __init__(self, hop, harmonics=16, bands=33, hidden=96):
        super().__init__()
        self.hop, self.harmonics = hop, harmonics
        self.control = Controller(hidden, harmonics, bands)
        self.room = Room()
        self.register_buffer("order", torch.arange(1, harmonics + 1).float())

    def forward(self, f0, loud, length):
        amp, mags = self.control(f0, loud)
        amp = amp * (f0.unsqueeze(-1) * self.order < RATE / 2)
        pitch = upsample(f0.unsqueeze(-1), length)
        phase = 2 * math.pi * torch.cumsum(pitch / RATE, 1)
        tone = (torch.sin(phase * self.order) * upsample(amp, length)).sum(-1)
        noise = torch.rand(f0.shape[0], f0.shape[1], self.hop) * 2 - 1
        shaped = torch.fft.irfft(torch.fft.rfft(noise) * F.interpolate(mags, size=self.hop // 2 + 1), self.hop)
        return self.room(tone + shaped.flatten(1)[:, :length])


class SpectralLoss(nn.Module):
    def __init__(self, sizes=(1024, 256)):
        super().__init__()
        self.sizes = sizes
        for s in sizes:
            self.register_buffer(f"win{s}", torch.hann_window(s))

    def forward(self, pred, true):
        total = 0.0
        for s in self.sizes:
            both = torch.stft(torch.cat([pred, true]), s, s // 2, window=getattr(self, f"win{s}"), return_complex=True)
            p, q = both.abs().clamp(min=1e-5).chunk(2)
            total = total + F.l1_loss(p, q) + F.l1_loss(p.log(), q.log())
        return total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=3)
    ap.add_argument("--hop", type=int, default=160)
    ap.add_argument("--seconds", type=float, default=1.4)
    ap.add_argument("--lr", type=float, default=5e-4)
    ap.add_argument("--seed", type=int, default=9)
    args = ap.parse_args()
    torch.manual_seed(args.seed)

    audio, f0, loud = make_notes(48, args.seconds, args.hop, args.seed)
    model, criterion = Instrument(args.hop), SpectralLoss()
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.999)
    for step in range(1, args.steps + 1):
        pick = torch.randint(len(audio), (args.batch,))
        pred = model(f0[pick], loud[pick], audio.shape[1])
        loss = criterion(pred, audio[pick])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 3.0)
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"step {step}: spectral {loss.item():.4f}, room decay {F.softplus(model.room.decay).item():.3f}")


if __name__ == "__main__":
    main()
