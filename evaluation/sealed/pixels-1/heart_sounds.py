"""Murmur detection in phonocardiograms: spectrogram transformer with a weight-averaged evaluation copy."""
import argparse
import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

RATE, SECONDS = 2000, 3


class Auscultations(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        t = np.arange(RATE * (SECONDS + 1)) / RATE
        waves, labels = [], []
        for _ in range(n):
            bpm = rng.uniform(55, 110)
            beat = (t * bpm / 60) % 1.0
            x = np.exp(-((beat - 0.1) / 0.02) ** 2) * np.sin(2 * np.pi * 60 * t)
            x += 0.7 * np.exp(-((beat - 0.42) / 0.015) ** 2) * np.sin(2 * np.pi * 85 * t)
            lab = int(rng.integers(3))
            if lab:
                centre = 0.25 if lab == 1 else 0.7
                x += 0.3 * np.exp(-((beat - centre) / 0.08) ** 2) * rng.standard_normal(t.size)
            waves.append((x + 0.05 * rng.standard_normal(t.size)).astype(np.float32))
            labels.append(lab)
        self.waves, self.labels = torch.from_numpy(np.stack(waves)), torch.tensor(labels)

    def __len__(self):
        return self.labels.numel()

    def __getitem__(self, i):
        lo = int(torch.randint(RATE, ()))
        seg = self.waves[i, lo:lo + RATE * SECONDS]
        return seg * (0.5 + torch.rand(())), self.labels[i]


def band_matrix(bins, bands, low=20.0, high=800.0):
    edges = torch.logspace(np.log10(low), np.log10(high), bands + 2)
    freq = torch.linspace(0, RATE / 2, bins)
    rise = (freq[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    fall = (edges[2:] - freq[:, None]) / (edges[2:] - edges[1:-1])
    return torch.minimum(rise, fall).clamp(min=0)


class FrontEnd(nn.Module):
    def __init__(self, n_fft=256, hop=20, bands=48):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        self.register_buffer("bands", band_matrix(n_fft // 2 + 1, bands))

    @torch.no_grad()
    def forward(self, wave, mask=False):
        spec = torch.stft(wave, self.n_fft, self.hop, window=self.window, return_complex=True)
        power = spec.real.square() + spec.imag.square()
        x = (power.transpose(1, 2) @ self.bands + 1e-5).log_()
        x = (x - x.mean((1, 2), keepdim=True)) / x.std((1, 2), keepdim=True)
        if mask:
            for row in x:
                f, t = int(torch.randint(40, ())), int(torch.randint(x.shape[1] - 30, ()))
                row[:, f:f + 8] = 0
                row[t:t + 30] = 0
        return x


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads, drop):
        super().__init__()
        self.heads, self.p = heads, drop
        self.na, self.nf = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, dim * 3), nn.GELU(), nn.Linear(dim * 3, dim))
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        b, n, d = x.shape
        qkv = self.qkv(self.na(x)).view(b, n, 3, self.heads, d // self.heads)
        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = x + self.drop(self.proj(y))
        return x + self.drop(self.ff(self.nf(x)))


class MurmurNet(nn.Module):
    def __init__(self, bands=48, dim=128, depth=4, stride=3, frames=301):
        super().__init__()
        self.stride, self.usable = stride, frames // stride * stride
        self.embed = nn.Linear(bands * stride, dim)
        self.place = nn.Parameter(torch.randn(frames // stride, dim) * 0.02)
        self.layers = nn.Sequential(*(EncoderLayer(dim, 4, 0.05) for _ in range(depth)), nn.LayerNorm(dim))
        self.score, self.out = nn.Linear(dim, 1), nn.Linear(dim, 3)

    def forward(self, feats):
        b = feats.shape[0]
        x = feats[:, :self.usable].reshape(b, self.usable // self.stride, -1)
        x = self.layers(self.embed(x) + self.place)
        return self.out((self.score(x).softmax(1) * x).sum(1))


@torch.no_grad()
def blend(shadow, model, decay):
    torch._foreach_lerp_(list(shadow.parameters()), list(model.parameters()), 1 - decay)


@torch.inference_mode()
def held_out(shadow, feats, labels):
    shadow.eval()
    return F.cross_entropy(shadow(feats), labels).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=10)
    ap.add_argument("--lr", type=float, default=8e-4)
    ap.add_argument("--eval-every", type=int, default=30)
    a = ap.parse_args()
    torch.manual_seed(55)
    train, held = Auscultations(160, 1), Auscultations(12, 2)
    front, model = FrontEnd(), MurmurNet()
    shadow = copy.deepcopy(model).requires_grad_(False)
    held_feats = front(held.waves[:, :RATE * SECONDS])
    loader = DataLoader(train, a.batch, shuffle=True, drop_last=True)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=0.02, fused=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, a.lr, total_steps=a.steps + 1)
    step = 0
    while step < a.steps:
        for wave, label in loader:
            step += 1
            loss = F.cross_entropy(model(front(wave, mask=True)), label, label_smoothing=0.05)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            blend(shadow, model, 0.98)
            if step % 10 == 0:
                print(f"step {step} loss {loss.item():.5f}", flush=True)
            if step % a.eval_every == 0:
                print(f"step {step} held-out (averaged) {held_out(shadow, held_feats, held.labels):.5f}", flush=True)
            if step >= a.steps:
                break


if __name__ == "__main__":
    main()
