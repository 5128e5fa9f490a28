"""Phone recogniser on waveforms with speed perturbation and CTC."""
import argparse
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

SR = 8000
N_PHONES = 40
RATES = (900, 950, 1000, 1050, 1100)      # per mille of the recorded tempo


class Resampler:
    """Band-limited sinc interpolation, polyphase form (one filter per output phase)."""

    def __init__(self, width=6, rolloff=0.97):
        self.width, self.rolloff = width, rolloff
        self.banks = {}

    def bank(self, orig, new):
        if (orig, new) not in self.banks:
            base = min(orig, new) * self.rolloff
            half = math.ceil(self.width * orig / base)
            idx = torch.arange(-half, half + orig, dtype=torch.float64) / orig
            t = (torch.arange(0, -new, -1, dtype=torch.float64)[:, None] / new + idx) * base
            t = t.clamp(-self.width, self.width)
            window = torch.cos(t * math.pi / self.width / 2) ** 2
            t = t * math.pi
            taps = torch.where(t == 0, torch.ones_like(t), t.sin() / t) * window * (base / orig)
            self.banks[orig, new] = taps.float()[:, None], half
        return self.banks[orig, new]

    def __call__(self, wav, orig, new):
        if orig == new:
            return wav
        kernel, half = self.bank(orig, new)
        n = wav.shape[-1]
        x = F.pad(wav[None, None], (half, half + orig))
        y = F.conv1d(x, kernel, stride=orig)
        return y[0].T.reshape(-1)[: math.ceil(new * n / orig)]


class Utterances(Dataset):
    def __init__(self, n=400, seed=0):
        rng = np.random.default_rng(seed)
        self.phones = [rng.integers(1, N_PHONES, rng.integers(11, 13)) for _ in range(n)]
        self.noise = rng.standard_normal(SR * 4).astype(np.float32) * 0.05
        self.wavs = [self.waveform(p) for p in self.phones]
        self.resample = Resampler()
        self.rng = np.random.default_rng(seed + 1)

    def __len__(self):
        return len(self.phones)

    def waveform(self, phones):
        t = np.arange(1200, dtype=np.float32) / SR
        segs = [np.sin(2 * np.pi * (120 + 70 * p) * t) + 0.4 * np.sin(2 * np.pi * (90 * p % 1900 + 300) * t) for p in phones]
        wav = np.concatenate(segs).astype(np.float32)
        return torch.from_numpy(wav + self.noise[: len(wav)])

    def __getitem__(self, i):
        rate = RATES[self.rng.integers(len(RATES))]
        wav = self.resample(self.wavs[i], rate, 1000)
        return wav / wav.abs().max(), torch.from_numpy(self.phones[i])


def collate(items):
    wavs, phones = zip(*items)
    lens = torch.tensor([len(w) for w in wavs])
    return (nn.utils.rnn.pad_sequence(wavs, batch_first=True), lens,
            torch.cat(phones), torch.tensor([len(p) for p in phones]))


class Frontend(nn.Module):
    def __init__(self, n_fft=256, hop=80, n_mels=40):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        edges = torch.linspace(0, 2595 * math.log10(1 + SR / 2 / 700), n_mels + 2)
        hz = 700 * (10 ** (edges / 2595) - 1)
        freqs = torch.linspace(0, SR / 2, n_fft // 2 + 1)
        up = (freqs - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
        down = (hz[2:, None] - freqs) / (hz[2:] - hz[1:-1])[:, None]
        self.register_buffer("fb", torch.minimum(up, down).clamp(min=0))

    def forward(self, wav, lens):
        with torch.no_grad():
            spec = torch.stft(wav, self.n_fft, self.hop, window=self.window, return_complex=True)
            mel = self.fb @ spec.abs().square()
            mel = (mel + 1e-5).log()
            mel = (mel - mel.mean((1, 2), keepdim=True)) / mel.std((1, 2), keepdim=True)
        return mel, lens // self.hop + 1


class PhoneNet(nn.Module):
    def __init__(self, n_mels=40, dim=80):
        super().__init__()
        self.front = Frontend(n_mels=n_mels)
        self.sub = nn.Sequential(nn.Conv1d(n_mels, dim, 5, stride=2, padding=2), nn.ReLU(),
                                 nn.Conv1d(dim, dim, 5, stride=1, padding=2), nn.ReLU())
        self.rnn = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * dim, N_PHONES)

    def forward(self, wav, lens):
        mel, frames = self.front(wav, lens)
        h = self.sub(mel).transpose(1, 2)
        h, _ = self.rnn(h)
        return self.out(h).log_softmax(-1), (frames + 1) // 2


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=12)
    args = ap.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Utterances(), args.batch, shuffle=True, collate_fn=collate, drop_last=True)
    net = PhoneNet()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    ctc = nn.CTCLoss(zero_infinity=True)
    step = 0
    while step < args.steps:
        for wav, lens, phones, plens in loader:
            logp, olens = net(wav, lens)
            loss = ctc(logp.transpose(0, 1), phones, olens.clamp(max=logp.shape[1]), plens)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            opt.step()
            step += 1
            if step % 10 == 0:
                print(f"{step:5d} ctc {loss.item():.4f}")
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
