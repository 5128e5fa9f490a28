"""Single-channel speech enhancement: complex ratio mask from a convolutional recurrent network."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

RATE = 16000


def voices(n, length, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(length) / RATE
    f0 = 90 + 130 * torch.rand(n, 1, generator=g)
    glide = 1 + 0.1 * torch.sin(2 * math.pi * (1 + 2 * torch.rand(n, 1, generator=g)) * t)
    phase = 2 * math.pi * torch.cumsum(f0 * glide / RATE, 1)
    x = torch.zeros(n, length)
    for k in range(1, 13):
        x += torch.rand(n, 1, generator=g) / k * torch.sin(k * phase)
    gate = (torch.sin(2 * math.pi * 3 * t + 6 * torch.rand(n, 1, generator=g)) > -0.3).float()
    return 0.3 * x * F.avg_pool1d(gate.unsqueeze(1), 401, 1, 200).squeeze(1)


def noises(n, length, seed):
    g = torch.Generator().manual_seed(seed)
    spec = torch.fft.rfft(torch.randn(n, length, generator=g))
    tilt = torch.rand(n, 1, generator=g) * 1.2
    f = torch.arange(spec.shape[1]).clamp(min=20)
    x = torch.fft.irfft(spec * f ** -tilt, length)
    return 0.1 * x / x.std(1, keepdim=True)


class Mixer:
    def __init__(self, count, seconds, crop, seed):
        length = int(seconds * RATE)
        self.clean, self.noise = voices(count, length, seed), noises(count, length, seed + 1)
        self.crop = crop
        self.gen = torch.Generator().manual_seed(seed)

    def cut(self, bank, batch):
        row = torch.randint(len(bank), (batch, 1), generator=self.gen)
        at = torch.randint(bank.shape[1] - self.crop, (batch, 1), generator=self.gen)
        return bank[row, at + torch.arange(self.crop)]

    def batch(self, size):
        s, n = self.cut(self.clean, size), self.cut(self.noise, size)
        snr = 15 * torch.rand(size, 1, generator=self.gen) - 5
        n = n * (s.norm(dim=1, keepdim=True) / n.norm(dim=1, keepdim=True).clamp(min=1e-4)) * 10 ** (-snr / 20)
        return s + n, s


class MaskNet(nn.Module):
    def __init__(self, n_fft=320, width=24, hidden=96):
        super().__init__()
        self.n_fft, self.hop = n_fft, n_fft // 2
        self.register_buffer("window", torch.hann_window(n_fft).sqrt(), persistent=False)
        bins = n_fft // 2
        self.c1 = nn.Conv2d(2, width, (5, 1), stride=(2, 1), padding=(2, 0))
        self.c2 = nn.Conv2d(width, width, (5, 3), stride=(2, 1), padding=(2, 1))
        self.c3 = nn.Conv2d(width, width, (5, 3), stride=(2, 1), padding=(2, 1))
        self.rnn = nn.GRU(width * bins // 8, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 2 * (bins + 1))

    def analyse(self, x):
        return torch.stft(x, self.n_fft, self.hop, window=self.window, return_complex=True)

    def forward(self, noisy):
        spec = self.analyse(noisy)
        h = torch.view_as_real(spec[:, 1:]).permute(0, 3, 1, 2)
        h = h / h.square().mean((1, 2, 3), keepdim=True).add(1e-6).sqrt()
        for conv in (self.c1, self.c2, self.c3):
            h = F.elu(conv(h))
        h, _ = self.rnn(h.permute(0, 3, 1, 2).flatten(2))
        m = torch.tanh(self.out(h)).unflatten(2, (-1, 2)).transpose(1, 2).contiguous()
        masked = spec * torch.view_as_complex(m)
        return masked, torch.istft(masked, self.n_fft, self.hop, window=self.window, length=noisy.shape[1])


def si_sdr(est, ref):
    scale = (est * ref).sum(1, keepdim=True) / ref.square().sum(1, keepdim=True).clamp(min=1e-6)
    target = scale * ref
    return 10 * torch.log10(target.square().sum(1).add(1e-6) / (est - target).square().sum(1).add(1e-6))


def objective(net, masked, wave, clean):
    ref = net.analyse(clean).abs().clamp(min=1e-4) ** 0.3
    mag = masked.abs().clamp(min=1e-4) ** 0.3
    return 20 * F.mse_loss(mag, ref) - 0.05 * si_sdr(wave, clean).mean()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--crop", type=int, default=24000)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=53)
    a = p.parse_args()
    torch.manual_seed(a.seed)
    mixer, net = Mixer(48, 3.0, a.crop, a.seed), MaskNet().to(memory_format=torch.channels_last)
    opt = torch.optim.AdamW(net.parameters(), lr=a.lr, fused=True)
    for step in range(1, a.steps + 1):
        noisy, clean = mixer.batch(a.batch)
        masked, wave = net(noisy)
        loss = objective(net, masked, wave, clean)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        if step % 10 == 0:
            with torch.no_grad():
                gain = (si_sdr(wave, clean) - si_sdr(noisy, clean)).mean().item()
            print(f"step {step}: objective {loss.item():.4f}  SI-SDR gain {gain:.2f} dB")


if __name__ == "__main__":
    main()
