"""Conditional sample-level vocoder on synthetic notes: frame-conditioned recurrent network."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm

HOP = 8


def mu_law(x, bits=6):
    mu = 2 ** bits - 1
    y = torch.sign(x) * torch.log1p(mu * x.abs()) / torch.log1p(torch.tensor(float(mu)))
    return ((y + 1) / 2 * mu + 0.5).long().clamp(0, mu)


class Notes:
    def __init__(self, n, samples, seed, sr=8000):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(samples) / sr
        f0 = 110 * 2 ** (torch.randint(0, 36, (n, 1), generator=g) / 12)
        amps = torch.rand(n, 5, generator=g)
        amps = amps / amps.sum(1, keepdim=True)
        wave = sum(amps[:, k:k + 1] * torch.sin(2 * torch.pi * (k + 1) * f0 * t + 6 * torch.rand(n, 1, generator=g)) for k in range(5))
        env = torch.exp(-3 * torch.rand(n, 1, generator=g) * t / t[-1])
        self.wave = 0.8 * wave * env
        frames = env.unfold(1, HOP, HOP).mean(2, keepdim=True)
        static = torch.cat([torch.log(f0 / 110), amps], 1)[:, None].expand(-1, frames.shape[1], -1)
        self.cond = torch.cat([frames, static], 2)
        self.gen = g

    def segment(self, batch, n_frames):
        i = torch.randint(len(self.wave), (batch,), generator=self.gen)
        s = int(torch.randint(0, self.cond.shape[1] - n_frames, (), generator=self.gen))
        return self.wave[i, s * HOP:(s + n_frames) * HOP], self.cond[i, s:s + n_frames]


class FrameNet(nn.Module):
    """Upsamples conditioning features to the sample rate."""

    def __init__(self, d_in, d):
        super().__init__()
        self.conv = weight_norm(nn.Conv1d(d_in, d, 3, padding=1))
        self.up = weight_norm(nn.ConvTranspose1d(d, d, HOP, stride=HOP))

    def forward(self, c):
        return torch.tanh(self.up(torch.tanh(self.conv(c.transpose(1, 2))))).transpose(1, 2)


class WaveCell(nn.Module):
    def __init__(self, d_in, hidden):
        super().__init__()
        self.inp = weight_norm(nn.Linear(d_in, 3 * hidden))
        self.rec = weight_norm(nn.Linear(hidden, 3 * hidden))

    def forward(self, gates, h):
        ir, iz, inn = gates.chunk(3, 1)
        hr, hz, hn = self.rec(h).chunk(3, 1)
        z = torch.sigmoid(iz + hz)
        cand = torch.tanh(inn + torch.sigmoid(ir + hr) * hn)
        return cand + z * (h - cand)


class Vocoder(nn.Module):
    def __init__(self, d_cond, hidden=160, d=32, bits=6):
        super().__init__()
        self.bits, self.hidden = bits, hidden
        self.frame = FrameNet(d_cond, d)
        self.embed = nn.Embedding(2 ** bits, d)
        self.cell = WaveCell(2 * d, hidden)
        self.out = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2 ** bits))

    def forward(self, codes, cond):
        """Teacher-forced logits for codes[:, 1:]."""
        x = torch.cat([self.embed(codes[:, :-1]), self.frame(cond)[:, 1:]], 2)
        gates = self.cell.inp(x)
        h = x.new_zeros(len(x), self.hidden)
        states = []
        for t in range(x.shape[1]):
            h = self.cell(gates[:, t], h)
            states.append(h)
        return self.out(torch.stack(states, 1))


def learning_rate(step, base, warmup=20, decay=4000):
    return base * min(1.0, (step + 1) / warmup) * 0.5 ** (step / decay)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--frames", type=int, default=10)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    notes = Notes(200, 4000, args.seed)
    model = Vocoder(notes.cond.shape[2])
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e3:.0f}k parameters")
    for step in range(args.steps):
        for group in opt.param_groups:
            group["lr"] = learning_rate(step, args.lr)
        wave, cond = notes.segment(args.batch, args.frames)
        codes = mu_law(wave, model.bits)
        logits = model(codes, cond)
        loss = F.cross_entropy(logits.flatten(0, 1), codes[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if (step + 1) % 10 == 0:
            print(f"step {step + 1} nll {loss.item():.4f} grad {norm.item():.3f}")


if __name__ == "__main__":
    main()
