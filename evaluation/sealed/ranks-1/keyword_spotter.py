"""Spoken keyword spotting from one-second clips, data parallel."""
import argparse
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

RATE, CLIP, KEYWORDS, MELS = 16000, 16000, 12, 40


def synth_clips(n, seed):
    rng = np.random.default_rng(seed)
    t = np.arange(CLIP) / RATE
    labels = rng.integers(0, KEYWORDS, n)
    clips = np.empty((n, CLIP), dtype=np.float32)
    for i, k in enumerate(labels):
        pitch = rng.uniform(110, 220)
        glide = 1 + 0.3 * np.sin(2 * np.pi * (0.5 + 0.25 * k) * t + k)
        voice = sum(np.sin(2 * np.pi * pitch * h * np.cumsum(glide) / RATE) / h for h in (1, 2, 3 + k % 5))
        envelope = np.exp(-((t - rng.uniform(0.35, 0.65)) / 0.25) ** 2)
        clips[i] = 0.3 * voice * envelope
    return clips, labels.astype(np.int64)


def mel_matrix(n_fft):
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    hz = 700 * (10 ** (np.linspace(0, top, MELS + 2) / 2595) - 1)
    bins = np.linspace(0, RATE / 2, n_fft // 2 + 1)
    rise = (bins[None] - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
    fall = (hz[2:, None] - bins[None]) / (hz[2:] - hz[1:-1])[:, None]
    return torch.from_numpy(np.maximum(0, np.minimum(rise, fall)).astype(np.float32))


class FrontEnd:
    """Speed, room and noise augmentation followed by log-mel features."""

    def __init__(self, n_fft=512, hop=160, seed=0):
        rng = np.random.default_rng(seed)
        self.n_fft, self.hop, self.seed = n_fft, hop, seed
        self.window, self.mel = torch.hann_window(n_fft), mel_matrix(n_fft)
        decay = np.exp(-np.arange(4000) / rng.uniform(300, 1500, (16, 1)))
        self.rooms = (rng.standard_normal((16, 4000)) * decay * 0.05).astype(np.float32)
        self.rooms[:, 0] = 1.0
        self.noise = rng.standard_normal(10 * RATE).astype(np.float32)

    def __call__(self, clip, key):
        rng = np.random.default_rng((self.seed, *key))
        speed = rng.uniform(0.9, 1.1)
        wave = np.interp(np.arange(CLIP) * speed, np.arange(CLIP), clip, right=0.0)
        size = 32768
        wave = np.fft.irfft(np.fft.rfft(wave, size) * np.fft.rfft(self.rooms[rng.integers(16)], size))[:CLIP]
        start = rng.integers(0, len(self.noise) - CLIP)
        wave = wave + rng.uniform(0.0, 0.05) * self.noise[start:start + CLIP]
        spec = torch.stft(torch.from_numpy(wave.astype(np.float32)), self.n_fft, self.hop, window=self.window,
                          return_complex=True).abs().square_()
        feats = torch.log(self.mel @ spec + 1e-5)
        f, s = int(rng.integers(0, MELS - 5)), int(rng.integers(0, feats.shape[1] - 12))
        feats[f:f + 5] = feats.mean()
        feats[:, s:s + 12] = feats.mean()
        return feats


class ClipStream:
    """All processes walk through the same shuffled order; each takes its part of every batch."""

    def __init__(self, clips, labels, front, per_rank, seed):
        self.clips, self.labels, self.front = clips, torch.from_numpy(labels), front
        self.per_rank, self.rng = per_rank, np.random.default_rng(seed)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def gather(self, epoch, rows):
        feats = torch.stack([self.front(self.clips[i], (epoch, i)) for i in rows])
        feats = (feats - feats.mean((1, 2), keepdim=True)) / feats.std((1, 2), keepdim=True)
        return feats, self.labels[rows]

    def __iter__(self):
        size, epoch = self.per_rank * self.world, 0
        while True:
            order = self.rng.permutation(len(self.clips))
            for s in range(0, len(order) - size + 1, size):
                rows = order[s:s + size]
                feats, labels = self.gather(epoch, rows)
                mine = slice(self.rank * self.per_rank, (self.rank + 1) * self.per_rank)
                yield feats[mine], labels[mine]
            epoch += 1


class SpotterNet(nn.Module):
    def __init__(self, dim=96, depth=3):
        super().__init__()
        self.enter = nn.Conv1d(MELS, dim, 5, stride=2, padding=2)
        self.convs = nn.ModuleList([nn.Conv1d(dim, dim, 9, padding=4) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.GroupNorm(8, dim) for _ in range(depth)])
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, KEYWORDS)

    def forward(self, x):
        x = self.enter(x)
        for conv, norm in zip(self.convs, self.norms):
            x = x + F.relu(conv(norm(x)))
        h, _ = self.rnn(x.transpose(1, 2))
        return self.head(h.mean(1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch-size", type=int, default=20, help="clips per process")
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=1)
    cfg = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(cfg.seed)
    clips, labels = synth_clips(600, cfg.seed)
    stream = ClipStream(clips, labels, FrontEnd(seed=cfg.seed), cfg.batch_size, cfg.seed)
    model = DDP(SpotterNet())
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.steps)
    t0 = time.time()
    for step, (x, y) in enumerate(stream, 1):
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if step % 10 == 0:
            pair = torch.tensor([loss.item(), (logits.argmax(1) == y).float().mean().item()])
            dist.all_reduce(pair)
            if dist.get_rank() == 0:
                a, b = (pair / dist.get_world_size()).tolist()
                print(f"step {step:3d}  loss {a:.4f}  acc {b:.3f}  {(time.time() - t0) / step * 1e3:.0f} ms", flush=True)
        if step == cfg.steps:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
