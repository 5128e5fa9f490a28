"""Gearbox fault diagnosis from vibration: learnable PCEN front end + residual CNN."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class VibrationRig:
    """Accelerometer windows: gear-mesh tones, sidebands and impacts for several fault types."""

    def __init__(self, n, length, fs, faults, seed):
        rng = np.random.default_rng(seed)
        t = np.arange(length, dtype=np.float32) / fs
        self.y = rng.integers(0, faults, n)
        speed = rng.uniform(18, 30, (n, 1)).astype(np.float32)
        mesh = np.sin(2 * np.pi * 23 * speed * t)
        side = 1 + 0.3 * self.y[:, None] * np.sin(2 * np.pi * speed * t)
        impacts = (np.mod(t * speed * (1 + self.y[:, None]), 1.0) < 0.02) * rng.normal(0, 1, (n, length))
        sig = mesh * side + 0.8 * impacts + rng.normal(0, 0.4, (n, length))
        self.x = (sig / 4 * 32767).clip(-32768, 32767).astype(np.int16)
        self.rng = rng

    def batches(self, size, crop):
        while True:
            order = self.rng.permutation(len(self.x))
            for i in range(0, len(order) - size + 1, size):
                rows = order[i:i + size]
                s = int(self.rng.integers(0, self.x.shape[1] - crop + 1))
                x = torch.from_numpy(self.x[rows, s:s + crop]).float() / 32768.0
                yield x, torch.from_numpy(self.y[rows])


def triangular_bank(n_bands, n_fft, fs):
    edges = np.geomspace(60, fs / 2, n_bands + 2)
    bins = np.fft.rfftfreq(n_fft, 1 / fs)[None]
    up = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    down = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    bank = np.minimum(up, down).clip(0)
    return (bank / (bank.sum(1, keepdims=True) + 1e-8)).astype(np.float32)


class PCENFrontEnd(nn.Module):
    def __init__(self, fs, n_fft=512, hop=64, n_bands=48):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.from_numpy(np.hanning(n_fft)))
        self.register_buffer("bank", torch.from_numpy(triangular_bank(n_bands, n_fft, fs)))
        self.log_alpha = nn.Parameter(torch.full((n_bands, 1), np.log(0.9), dtype=torch.float32))
        self.log_delta = nn.Parameter(torch.full((n_bands, 1), np.log(2.0), dtype=torch.float32))
        self.log_r = nn.Parameter(torch.full((n_bands, 1), np.log(0.5), dtype=torch.float32))
        self.smoothers = (3, 9, 27)
        self.mix = nn.Parameter(torch.zeros(len(self.smoothers)))

    def energies(self, x):
        frames = x.unfold(-1, self.n_fft, self.hop) * self.window
        spec = torch.fft.rfft(frames)
        power = spec.real.square() + spec.imag.square()
        return (power @ self.bank.t().to(power.dtype)).transpose(1, 2)

    def floor(self, e):
        w = self.mix.softmax(0)
        parts = [F.avg_pool1d(e, k, 1, k // 2, count_include_pad=False) for k in self.smoothers]
        return sum(wi * p for wi, p in zip(w, parts))

    def forward(self, x):
        e = self.energies(x)
        alpha, delta, r = self.log_alpha.exp(), self.log_delta.exp(), self.log_r.exp()
        gain = (1e-4 + self.floor(e)) ** -alpha
        out = (e * gain + delta) ** r - delta ** r
        return out.float()


class Res1d(nn.Module):
    def __init__(self, ch, dil):
        super().__init__()
        self.c1 = nn.Conv1d(ch, ch, 3, padding=dil, dilation=dil)
        self.c2 = nn.Conv1d(ch, ch, 1)
        self.n = nn.BatchNorm1d(ch)

    def forward(self, x):
        return x + self.c2(F.relu(self.n(self.c1(x))))


class Diagnoser(nn.Module):
    def __init__(self, fs, faults, ch=72):
        super().__init__()
        self.front = PCENFrontEnd(fs)
        self.inp = nn.Conv1d(48, ch, 3, padding=1)
        self.body = nn.Sequential(*[Res1d(ch, 2 ** k) for k in range(3)])
        self.out = nn.Linear(2 * ch, faults)

    def forward(self, x):
        h = self.body(self.inp(self.front(x)))
        return self.out(torch.cat([h.mean(-1), h.std(-1)], 1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--fs", type=int, default=12800)
    ap.add_argument("--length", type=int, default=14000)
    ap.add_argument("--crop", type=int, default=12800)
    ap.add_argument("--faults", type=int, default=5)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=61)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    rig = VibrationRig(256, a.length, a.fs, a.faults, a.seed)
    stream = rig.batches(a.batch, a.crop)
    model = Diagnoser(a.fs, a.faults)
    front = list(model.front.parameters())
    rest = [p for n, p in model.named_parameters() if not n.startswith("front.")]
    opt = torch.optim.Adam([{"params": rest}, {"params": front, "lr": 5 * a.lr}], lr=a.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.steps)
    for step in range(1, a.steps + 1):
        x, y = next(stream)
        logits = model(x + 0.002 * torch.randn_like(x))
        loss = F.cross_entropy(logits, y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if step % 10 == 0:
            acc = (logits.argmax(1) == y).float().mean().item()
            print(f"{step:4d} loss {loss.item():.4f} acc {acc:.3f} r {model.front.log_r.exp().mean().item():.4f}", flush=True)


if __name__ == "__main__":
    main()
